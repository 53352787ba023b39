"""What must hold of the running containers; most lines are a fault that once was there."""

import contextlib
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.files import write_bytes
from medclip_dcl.inference.model_package import ARTIFACT, rewrite_package
from tests.containers.engine import HOST, PORT, Engine
from tests.support.processes import ROOT, ended

PAGE = ROOT / "docs/deployment.md"
CANARIES = ("CANARYFILE", "CANARYQUERY", "CANARYHOST", "CANARYPHRASE")
LARGEST_IMAGE_GB = 1.5
MEBIBYTE = 2**20
_URL = f"http://{HOST}:{PORT}"
_IMAGE = "medclip-dcl:0.1.0-cpu"


def blocks() -> dict[str, str]:
    """The page's commands that are run, named by what stands in bold or first before them."""
    lines = re.findall(r"([^\n]+)\n\n```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    named = {}
    for line, block in lines:
        bold = re.match(r"\*\*(.+?)\.\*\*", line)
        named[bold[1] if bold else " ".join(re.findall(r"\w+", line)[:2])] = block
    return named


class Checks:
    """Counts checks, prints one line for each, and keeps figures."""

    def __init__(self, engine: Engine) -> None:
        self.passed = self.failed = 0
        self.figures: dict[str, float] = {}
        self._engine, self._page = engine, blocks()
        self._started = time.monotonic()

    def that(self, name: str, holds: bool, value: object = "") -> None:
        """Note whether something holds."""
        self.passed += holds
        self.failed += not holds
        word = "ok  " if holds else "FAIL"
        seconds = time.monotonic() - self._started
        print(f"{word} {self._engine.name:6} {seconds:4.0f} s  {name}: {value}", flush=True)

    def equal(self, name: str, value: object, expected: object) -> None:
        """Note whether two values are equal."""
        shown = value if value == expected else f"{value}, expected {expected}"
        self.that(name, value == expected, shown)

    def run(self, *, full: bool) -> None:
        """Go through the page from start to stop, and check what it says on the way."""
        for name in ("A key", "The model"):
            self._do(name)
        started = time.monotonic()
        self._do("Build and")
        self.figures["build_and_start_s"] = time.monotonic() - started
        self.that("page: build and start", True, f"{time.monotonic() - started:.0f} s")
        self.that("ready", until_answered("/ready", 60), f"{time.monotonic() - started:.0f} s")
        self.that("page: ask", '"findings"' in self._do("Ask"))

        self._key = (self._engine.tree / "docker/secrets/api_key").read_text().strip()
        self._image_data = self._engine.image.read_bytes()
        self._keyed = {"X-API-Key": self._key}
        self._answers()
        self._image()
        self._hardening()
        self._network()
        self._keys()
        self._publishing()
        self._permissions()
        self._replicas()
        self._failures()
        self._deaths()
        self._stopping()
        self.that("page: look", '"event"' in self._do("Look at it"))
        logs = self._engine.shell("docker compose logs 2>&1")
        self.equal("names in the logs", [name for name in CANARIES if name in logs], [])
        self.equal("keys in the logs", logs.count(self._key), 0)
        if full:
            self._fast_engine()
        self._do("Stop")
        self.equal("page: containers after down", self._engine.containers("cpu"), [])
        self.equal("blocks of the page that were not run", list(self._page), [])

    def _do(self, name: str) -> str:
        return self._engine.shell(self._page.pop(name))

    def _ask(
        self, headers: dict[str, str], path: str = "/classify", fields: dict[str, str] | None = None
    ) -> httpx.Response:
        files = image_part(self._image_data)
        return ask("POST", path, headers=headers, data=fields, files=files)

    def _answers(self) -> None:
        fields_of = {
            "/classify": {},
            "/ground": {"phrase": "CANARYPHRASE effusion"},
            "/retrieve": {"target": "text"},
        }
        for path, fields in fields_of.items():
            codes = [self._ask(headers, path, fields).status_code for headers in ({}, self._keyed)]
            self.equal(f"{path} without and with key", codes, [401, 200])

    def _image(self) -> None:
        size = int(self._engine.inspect(_IMAGE, "{{.Size}}")) / 1e9
        self.figures["image_gb"] = size
        self.that("size of the image", size <= LARGEST_IMAGE_GB, f"{size:.2f} GB")
        labels = json.loads(self._engine.inspect(_IMAGE, "{{json .Config.Labels}}"))
        version = labels.get("org.opencontainers.image.version")
        self.equal("version in the labels", version, "0.1.0")
        inside = self._engine.inside
        programs = inside("cpu", "find / -xdev -type f -perm /6000 2>/dev/null")
        self.equal("setuid programs", programs, "")
        installer = inside("cpu", "command -v pip; python -m pip --version 2>&1 | tail -1")
        self.that("installer", "No module named pip" in installer, installer)
        listing = "import importlib.metadata as m; print(*(d.name.lower().replace('_', '-')"
        listing += " + '==' + d.version for d in m.distributions()), sep='\\n')"
        installed = set(inside("cpu", f'python -c "{listing}"').split())
        lock = (ROOT / "docker/cpu.lock").read_text()
        locked = re.findall(r"^([\w.-]+)==([\w.+-]+)", lock, re.MULTILINE)
        wanted = {f"{name.lower().replace('_', '-').replace('.', '-')}=={v}" for name, v in locked}
        self.equal("packages other than the lock's", sorted(installed ^ wanted), [])
        listed = json.loads(inside("cpu", "cat /usr/share/sbom/medclip-dcl.cdx.json"))
        self.equal("packages in the list", len(listed["components"]), len(installed))

    def _hardening(self) -> None:
        inside = self._engine.inside
        for service, user in (("cpu", "10001"), ("proxy", "101")):
            self.equal(f"{service}: user", inside(service, "id -u"), user)
            status = inside(service, "cat /proc/1/status")
            privileges = dict(re.findall(r"^(CapBnd|NoNewPrivs|Seccomp):\s+(\w+)$", status, re.M))
            expected = {"CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
            self.equal(f"{service}: privileges", privileges, expected)
            # /dev/mqueue holds messages between processes, no files.
            command = "find / -type d -writable ! -path '/proc/*' ! -path '/tmp/*' 2>/dev/null"
            command += " | grep -v ^/dev/mqueue"
            self.equal(f"{service}: writable folders", inside(service, command), "/tmp")
            mounts = inside(service, "grep ' /tmp ' /proc/mounts")
            self.that(f"{service}: /tmp without execution", "noexec" in mounts)
        files = ("memory/memory.limit_in_bytes", "memory.max")
        limit = f"cat {' '.join(f'/sys/fs/cgroup/{file}' for file in files)} 2>/dev/null"
        self.equal("memory limit", inside("cpu", limit), str(8 * 2**30))
        (container, *_) = self._engine.containers("cpu")
        about = self._engine.shell(f"docker inspect {container}")
        self.equal("key in the settings", about.count(self._key), 0)
        policy = self._engine.inspect(container, "{{.HostConfig.RestartPolicy.Name}}")
        self.equal("restart policy", policy, "unless-stopped")

    def _network(self) -> None:
        """A port that the host opens on every address is out of the service's reach."""
        with socket.create_server(("0.0.0.0", 0)) as server:
            port = server.getsockname()[1]
            reported = ended(["hostname", "-I"], check=True).stdout.split()
            addresses = [item for item in reported if ":" not in item]
            own = self._engine.inside("cpu", "hostname -i").split()[0]
            addresses.append(f"{own.rpartition('.')[0]}.1")  # the bridge's, where it has one
            probe = (
                "import concurrent.futures, socket, sys\n"
                "def reached(address):\n"
                " try: socket.create_connection((address, int(sys.argv[1])), 2)\n"
                " except OSError: return False\n"
                " return True\n"
                "with concurrent.futures.ThreadPoolExecutor() as threads:\n"
                " for address, is_open in zip(sys.argv[2:], threads.map(reached, sys.argv[2:])):\n"
                "  if is_open: print(address)\n"
            )
            command = f'python -c "{probe}" {port} {" ".join(addresses)}'
            reached = self._engine.inside("cpu", command).split()
        if self._engine.name == "podman":
            self.that("ports of the host (not held on Podman, as the page says)", True, reached)
        else:
            self.equal("ports of the host that are reached", reached, [])

    def _keys(self) -> None:
        self._do("Exchange keys")
        new = (self._engine.tree / "docker/secrets/api_key").read_text().split()[-1]
        credentials = ({"Authorization": f"Bearer {new}"}, self._keyed)
        codes = [self._ask(headers).status_code for headers in credentials]
        self.equal("page: new key and old one after a rename", codes, [200, 200])

    def _publishing(self) -> None:
        """Publish as the page says, and as a job does, while somebody asks."""
        answers: list[httpx.Response] = []
        done = threading.Event()

        def asking() -> None:
            while not done.is_set():
                answers.append(self._ask(self._keyed))

        asker = threading.Thread(target=asking)
        asker.start()
        try:
            self._do("Publish another model and index")
            self.that("page: publish by rename", self._logged('"swapped"', 1))
            model = open_artifact(self._engine.tree / "runs/published/model", ARTIFACT)

            def write(draft: Path) -> None:
                for name in model.files:
                    (draft / name).parent.mkdir(exist_ok=True)
                    write_bytes(draft / name, (model.path / name).read_bytes())

            rewrite_package(model, model.path, model.files, write)
            self.that("what a job committed is served", self._logged('"swapped"', 2))
        finally:
            done.set()
            asker.join()
        failures = [answer.text[:200] for answer in answers if answer.status_code != 200]
        self.equal(f"failures among {len(answers)} requests", failures, [])

    def _permissions(self) -> None:
        """An artifact that may not be read is named, and taken once it may."""
        header = self._engine.tree / "runs/published/model/artifact.json"
        header.chmod(0o600)
        self._engine.shell("docker compose restart cpu")
        named = self._logged("cannot be read by uid 10001", 1)
        self.that("unreadable: who, mode and remedy", named)
        self.equal("unreadable: ready", ask("GET", "/ready").status_code, 503)
        header.chmod(0o644)
        self.that("readable again", until_answered("/ready", 30))

    def _replicas(self) -> None:
        self._do("More load")
        replicas = self._engine.containers("cpu")
        self.equal("page: replicas", len(replicas), 2)
        for one in replicas:  # podman-compose does not wait for them
            self._logged('"event": "ready"', 1, f"docker logs {one}")
        time.sleep(6)  # the proxy looks the name up every 5 seconds
        since = int(time.time())
        for _ in range(20):
            ask("GET", "/ready")
        logs = [self._engine.shell(f"docker logs --since {since} {one} 2>&1") for one in replicas]
        counts = [log.count('"/ready"') for log in logs]
        self.that("replicas that answer", min(counts) > 0, counts)
        self._engine.shell(f"docker stop -t 5 {replicas[-1]}")
        codes = [ask("GET", "/ready").status_code for _ in range(20)]
        self.equal("requests with a replica gone", codes, [200] * 20)
        self._engine.shell("docker compose up --detach --wait --no-recreate --scale cpu=1")
        until_answered("/ready", 30)

    def _failures(self) -> None:
        """What the proxy refuses has the service's form, and no name is logged."""
        large = ask("POST", "/classify", headers=self._keyed, content=bytes(66 * MEBIBYTE))
        self._refused("413", large, 413)
        self._refused("414", ask("GET", f"/classify?{'x' * 20000}"), 414)
        waited_for = self._keyed | {"Content-Type": "multipart/form-data; boundary=x"}
        with stalled(300, waited_for) as senders:
            select.select(senders, [], [], 8)  # until one of them is refused: the others hold 256
            crowded = ask("GET", "/health")
            refused = [wire.recv(12)[-3:] for wire in select.select(senders, [], [], 0)[0]]
        self._refused("429", crowded, 429)
        self.equal("those of 300 senders that are refused", set(refused), {b"429"})
        gone = until_answered("/health", 15)
        self.that("answers once they are gone", gone, len(refused))
        self._engine.shell("docker compose stop cpu")
        absent = ask("GET", "/health?patient=CANARYQUERY", headers={"Host": "CANARYHOST"})
        self._refused("503 without service", absent, 503)
        self._engine.shell("docker compose start cpu")
        self.that("found again by the proxy", until_answered("/ready", 60))

    def _refused(self, name: str, answer: httpx.Response, status: int) -> None:
        try:
            tree = answer.json()
        except ValueError:
            tree = {}
        retry = answer.headers.get("Retry-After", "").isdigit()
        same = tree.get("request_id", "none") == answer.headers.get("X-Request-ID")
        expected = (status, ["code", "message", "request_id"], status in {429, 503}, True)
        self.equal(name, (answer.status_code, sorted(tree), retry, same), expected)

    def _deaths(self) -> None:
        (container, *_) = self._engine.containers("cpu")
        self._engine.shell(f"kill -9 {self._engine.inspect(container, '{{.State.Pid}}')}")
        time.sleep(2)
        self.that("a container that dies is started again", until_answered("/ready", 60))
        self._engine.shell(f"docker update --memory 1g --memory-swap 1g {container}")
        self._engine.inside("cpu", 'python -c "bytearray(3 << 30)"')
        self.that("memory beyond the limit ends in the container", until_answered("/ready", 60))
        self._engine.shell(f"docker update --memory 8g --memory-swap 8g {container}", fails=True)

    def _stopping(self) -> None:
        (container, *_) = self._engine.containers("cpu")
        upload = (slow_upload, self._keyed, self._image_data, 6)
        with ThreadPoolExecutor(12) as threads:
            uploads = [threads.submit(*upload) for _ in range(12)]
            time.sleep(2)
            self._engine.shell("docker compose stop cpu")
            codes = [item.result() for item in uploads]
        self.equal("uploads under way at SIGTERM", codes, [200] * 12)
        code = self._engine.inspect(container, "{{.State.ExitCode}}")
        self.equal("exit after SIGTERM", code, "0")
        self._engine.shell("docker compose start cpu")
        self.that("ready after a stop", until_answered("/ready", 60))

    def _fast_engine(self) -> None:
        """The image that is built with OpenVINO answers by it, read-only and without privileges."""
        up = "docker compose up --build --detach --wait cpu"
        self._engine.shell(f"ENGINE=openvino {up}")
        self.that("ready with ENGINE=openvino", until_answered("/ready", 120))
        answer = self._ask(self._keyed)
        engine = answer.json().get("engine") if answer.status_code == 200 else answer.text[:60]
        self.equal("an answer with ENGINE=openvino", engine, "openvino")
        size = int(self._engine.inspect(_IMAGE, "{{.Size}}")) / 1e9
        self.figures["image_with_openvino_gb"] = size
        self._engine.shell(up)

    def _logged(self, word: str, times: int, command: str = "docker compose logs cpu") -> bool:
        return until(lambda: self._engine.shell(f"{command} 2>&1").count(word) >= times, 60)


def until(holds: Callable[[], bool], patience_s: float) -> bool:
    """Wait until something holds; False where it does not in time."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.5)
    return False


def until_answered(path: str, patience_s: float) -> bool:
    """Wait until a route answers."""
    return until(lambda: ask("GET", path).status_code == 200, patience_s)


def image_part(data: bytes) -> dict[str, tuple[str, bytes]]:
    """Return an image as the files of a form, under a name that no log may hold."""
    return {"image": ("CANARYFILE.dcm", data)}


def ask(method: str, path: str, **given: Any) -> httpx.Response:
    """Send one request through the proxy; a status of 0: the connection ended without an answer."""
    try:
        with httpx.Client(base_url=_URL, timeout=90, trust_env=False) as client:
            return client.request(method, path, **given)
    except httpx.TransportError:
        return httpx.Response(0)


@contextlib.contextmanager
def stalled(count: int, headers: Mapping[str, str]) -> Iterator[list[socket.socket]]:
    """Keep uploads open that announce 62 MiB and send nothing of it."""
    head = "POST /classify HTTP/1.1\r\nHost: here\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head += f"Content-Length: {62 * MEBIBYTE}\r\n\r\n"
    senders = []
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sender = stack.enter_context(socket.create_connection((HOST, PORT)))
            senders.append(sender)
            sender.settimeout(2)
            with contextlib.suppress(OSError):  # who has no key may be cut off meanwhile
                sender.sendall(head.encode())
        yield senders


def slow_upload(headers: Mapping[str, str], data: bytes, seconds: float) -> int:
    """Ask about an image in pieces over so many seconds; gives the status."""
    request = httpx.Request("POST", _URL, headers=headers, files=image_part(data))
    body, pieces = request.read(), 10
    step = -(-len(body) // pieces)

    def given() -> Iterator[bytes]:
        for start in range(0, len(body), step):
            yield body[start : start + step]
            time.sleep(seconds / pieces)

    return ask("POST", "/classify", headers=request.headers, content=given()).status_code
