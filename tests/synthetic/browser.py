"""A real headless Chromium, driven over its own protocol through two pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
_PATIENCE_S = 60.0
_KEYS = {"ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27}
_KEYS |= {"Enter": 13, "Tab": 9}


def find_browser() -> str | None:
    """Path of an installed Chromium; the variable CHROMIUM names another."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab of a browser."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._rest, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int = 1366, height: int = 768, **more: Any) -> None:
        """Open a page in a window of that size; `touch` and `dark` describe the machine."""
        touch, dark = more.get("touch", False), more.get("dark", True)
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=more.get("scale", 1),
            mobile=touch,
        )
        self._call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """Value of an expression; promises are waited for."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, patience_s: float = _PATIENCE_S) -> Any:
        """Wait until an expression is true, and give it."""
        end = time.monotonic() + patience_s
        while not (value := self.js(expression)):
            assert time.monotonic() < end, f"never true: {expression}; {self.errors}"
            time.sleep(0.05)
        return value

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file in a file input."""
        root = self._call("DOM.getDocument")["root"]["nodeId"]
        node = self._call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._call("DOM.setFileInputFiles", nodeId=node, files=[str(path.resolve())])

    def drop_file(self, path: Path, x: float, y: float) -> None:
        """Drop a file at a point."""
        data = {"items": [], "files": [str(path.resolve())], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def drag(self, start: tuple[float, float], end: tuple[float, float], **more: Any) -> None:
        """Press, move in steps, let go; `modifiers` 8 is shift."""
        shared = {"button": "left", "buttons": 1, "clickCount": 1, **more}
        self._mouse("mousePressed", start, **shared)
        for step in range(1, 6):
            point = tuple(a + (b - a) * step / 5 for a, b in zip(start, end, strict=True))
            self._mouse("mouseMoved", point, **shared)
        self._mouse("mouseReleased", end, **{**shared, "buttons": 0})

    def hover(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._mouse("mouseMoved", (x, y))

    def wheel(self, x: float, y: float, delta: float) -> None:
        """Turn the wheel."""
        self._mouse("mouseWheel", (x, y), deltaX=0, deltaY=delta)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        x, y = self.middle(selector)
        self._mouse("mousePressed", (x, y), button="left", clickCount=1)
        self._mouse("mouseReleased", (x, y), button="left", clickCount=1)

    def middle(self, selector: str) -> tuple[float, float]:
        """Middle of an element on the screen."""
        x, y = self.js(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'nearest'});"
            "const box = element.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return x, y

    def touch(self, *paths: tuple[tuple[float, float], tuple[float, float]]) -> None:
        """Move a finger along each path, all at once."""
        for step in range(6):
            points = [
                {
                    "x": a[0] + (b[0] - a[0]) * step / 5,
                    "y": a[1] + (b[1] - a[1]) * step / 5,
                    "id": n,
                }
                for n, (a, b) in enumerate(paths)
            ]
            kind = "touchMove" if step else "touchStart"
            self._call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def key(self, name: str) -> None:
        """Press a key: a character, or a name such as Escape."""
        code = _KEYS.get(name, ord(name[0].upper()))
        press = {"key": name, "windowsVirtualKeyCode": code}
        text = {"text": "\r" if name == "Enter" else name} if name not in _KEYS else {}
        text = {"text": "\r"} if name == "Enter" else text
        self._call("Input.dispatchKeyEvent", type="keyDown", **press, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **press)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._call("Input.insertText", text=text)

    def picture(self, path: Path, quality: int = 85) -> None:
        """Keep what the window shows as a JPEG or PNG, by the name's ending."""
        kind = "png" if path.suffix == ".png" else "jpeg"
        more = {} if kind == "png" else {"quality": quality}
        data = self._call("Page.captureScreenshot", format=kind, **more)["data"]
        path.write_bytes(base64.b64decode(data))

    def _mouse(self, kind: str, point: tuple[float, ...], **more: Any) -> None:
        self._call("Input.dispatchMouseEvent", type=kind, x=point[0], y=point[1], **more)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], _PATIENCE_S)
            assert ready, "the browser says nothing"
            piece = os.read(self._reader, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        about = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(
                about["exceptionDetails"].get("exception", {}).get("description", "?")
            )
        elif message.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        return message


@contextmanager
def browsing(binary: str) -> Iterator[Page]:
    """Start a browser with an empty profile; it ends with the block."""
    to_browser, writer = os.pipe()
    reader, from_browser = os.pipe()
    # Chromium reads its orders from descriptor 3 and answers on 4.
    script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = (
            *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
            *("--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
            *("--disable-extensions", "--disable-background-networking", "--mute-audio"),
            *("--disable-component-update", "--disable-dev-shm-usage", "about:blank"),
        )
        process = subprocess.Popen(
            ["bash", "-c", script, "browser", binary, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Page(reader, writer)
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)
            os.close(writer)
            os.close(reader)
