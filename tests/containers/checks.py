"""What must hold of the running containers; most lines are a fault that once was there."""

import json
import re
import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.containers.clients import MEBIBYTE, Answer, ask, form, slow_upload, stalled
from tests.containers.engine import ROOT, Engine

PAGE = ROOT / "docs/deployment.md"
CANARIES = ("CANARYFILE", "CANARYQUERY", "CANARYHOST", "CANARYPHRASE")
LARGEST_IMAGE_GB = 1.5


class Report:
    """Counts checks, prints one line for each, and keeps figures."""

    def __init__(self, engine: str) -> None:
        self.passed = self.failed = 0
        self.figures: dict[str, float] = {}
        self._engine = engine
        self._started = time.monotonic()

    def that(self, name: str, holds: bool, found: object = "") -> None:
        """Note whether something holds."""
        self.passed += holds
        self.failed += not holds
        word = "ok  " if holds else "FAIL"
        seconds = time.monotonic() - self._started
        print(f"{word} {self._engine:6} {seconds:4.0f} s  {name}: {found}", flush=True)

    def equal(self, name: str, found: object, expected: object) -> None:
        """Note whether two values are equal."""
        shown = found if found == expected else f"{found}, expected {expected}"
        self.that(name, found == expected, shown)


def blocks() -> dict[str, str]:
    """The page's commands that are run, named by what stands in bold or first before them."""
    found = re.findall(r"([^\n]+)\n\n```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    named = {}
    for line, block in found:
        bold = re.match(r"\*\*(.+?)\.\*\*", line)
        named[bold[1] if bold else " ".join(re.findall(r"\w+", line)[:2])] = block
    return named


def run(engine: Engine, report: Report, *, full: bool) -> None:
    """Go through the page from start to stop, and check what it says on the way."""
    page = blocks()
    for name in ("A key", "The model"):
        engine.shell(page.pop(name))
    started = time.monotonic()
    engine.shell(page.pop("Build and"))
    report.figures["build_and_start_s"] = time.monotonic() - started
    report.that("page: build and start", True, f"{time.monotonic() - started:.0f} s")
    report.that("ready", _until_ready(60), f"{time.monotonic() - started:.0f} s")
    output = engine.shell(page.pop("Ask"))
    report.that("page: ask", '"findings"' in output)

    key = (engine.tree / "docker/secrets/api_key").read_text().strip()
    keyed = {"X-API-Key": key}
    headers, body = form(engine.image.read_bytes())
    _answers(engine, report, keyed)
    _image(engine, report)
    _hardening(engine, report, key)
    _network(engine, report)
    _keys(engine, report, page, headers, body, keyed)
    _publishing(engine, report, page, headers | keyed, body)
    _permissions(engine, report)
    _replicas(engine, report, page)
    _failures(engine, report, keyed)
    _deaths(engine, report)
    _stopping(engine, report, headers | keyed, body)
    output = engine.shell(page.pop("Look at it"))
    report.that("page: look", '"event"' in output)
    logs = engine.shell("docker compose logs 2>&1")
    report.equal("names in the logs", [name for name in CANARIES if name in logs], [])
    report.equal("keys in the logs", logs.count(key), 0)
    if full:
        _fast_engine(engine, report, headers | keyed, body)
    engine.shell(page.pop("Stop"))
    report.equal("page: containers after down", engine.containers("cpu"), [])
    report.equal("blocks of the page that were not run", list(page), [])


def _answers(engine: Engine, report: Report, keyed: dict[str, str]) -> None:
    dicom = engine.image.read_bytes()
    for route, fields, own in (
        ("classify", {}, dicom),
        ("ground", {"phrase": "CANARYPHRASE effusion"}, dicom),
        ("retrieve", {"target": "text"}, dicom),
    ):
        headers, body = form(own, fields)
        path = f"/{route}"
        found = ask("POST", path, headers, body).status
        found_with_key = ask("POST", path, {**headers, **keyed}, body).status
        report.equal(f"{route} without and with key", (found, found_with_key), (401, 200))


def _image(engine: Engine, report: Report) -> None:
    image = "medclip-dcl:0.1.0-cpu"
    size = int(engine.inspect(image, "{{.Size}}")) / 1e9
    report.figures["image_gb"] = size
    report.that("size of the image", size <= LARGEST_IMAGE_GB, f"{size:.2f} GB")
    labels = json.loads(engine.inspect(image, "{{json .Config.Labels}}"))
    found = labels.get("org.opencontainers.image.version")
    report.equal("version in the labels", found, "0.1.0")
    programs = engine.inside("cpu", "find / -xdev -type f -perm /6000 2>/dev/null")
    report.equal("setuid programs", programs, "")
    installer = engine.inside("cpu", "command -v pip; python -m pip --version 2>&1 | tail -1")
    report.that("installer", "No module named pip" in installer, installer)
    listing = "import importlib.metadata as m; print(*(d.name.lower().replace('_', '-')"
    listing += " + '==' + d.version for d in m.distributions()), sep='\\n')"
    installed = set(engine.inside("cpu", f'python -c "{listing}"').split())
    locked = re.findall(r"^([\w.-]+)==([\w.+-]+)", (ROOT / "docker/cpu.lock").read_text(), re.M)
    wanted = {f"{name.lower().replace('_', '-').replace('.', '-')}=={v}" for name, v in locked}
    report.equal("packages other than the lock's", sorted(installed ^ wanted), [])
    listed = json.loads(engine.inside("cpu", "cat /usr/share/sbom/medclip-dcl.cdx.json"))
    report.equal("packages in the list", len(listed["components"]), len(installed))


def _hardening(engine: Engine, report: Report, key: str) -> None:
    for service, user in (("cpu", "10001"), ("proxy", "101")):
        report.equal(f"{service}: user", engine.inside(service, "id -u"), user)
        status = engine.inside(service, "cat /proc/1/status")
        found = dict(re.findall(r"^(CapBnd|NoNewPrivs|Seccomp):\s+(\w+)$", status, re.M))
        expected = {"CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
        report.equal(f"{service}: privileges", found, expected)
        # /dev/mqueue holds messages between processes, no files.
        command = "find / -type d -writable ! -path '/proc/*' ! -path '/tmp/*' 2>/dev/null"
        command += " | grep -v ^/dev/mqueue"
        report.equal(f"{service}: writable folders", engine.inside(service, command), "/tmp")
        mounts = engine.inside(service, "grep ' /tmp ' /proc/mounts")
        report.that(f"{service}: /tmp without execution", "noexec" in mounts)
    limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null"
    report.equal("memory limit", engine.inside("cpu", limit), str(8 * 2**30))
    about = engine.shell(f"docker inspect {engine.containers('cpu')[0]}")
    report.equal("key in the settings", about.count(key), 0)
    policy = engine.inspect(engine.containers("cpu")[0], "{{.HostConfig.RestartPolicy.Name}}")
    report.equal("restart policy", policy, "unless-stopped")


def _network(engine: Engine, report: Report) -> None:
    """A port that the host opens on every address is out of the service's reach."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        reported = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True)
        addresses = [item for item in reported.stdout.split() if ":" not in item]
        own = engine.inside("cpu", "hostname -i").split()[0]
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
        reached = engine.inside("cpu", command).split()
    if engine.name == "podman":
        report.that("ports of the host (not held on Podman, as the page says)", True, reached)
    else:
        report.equal("ports of the host that are reached", reached, [])


def _keys(
    engine: Engine,
    report: Report,
    page: dict[str, str],
    headers: dict[str, str],
    body: bytes,
    keyed: dict[str, str],
) -> None:
    engine.shell(page.pop("Exchange keys"))
    new = (engine.tree / "docker/secrets/api_key").read_text().split()[-1]
    found = [
        ask("POST", "/classify", {**headers, **credential}, body).status
        for credential in ({"Authorization": f"Bearer {new}"}, keyed)
    ]
    report.equal("page: new key and old one after a rename", found, [200, 200])


def _publishing(
    engine: Engine, report: Report, page: dict[str, str], headers: dict[str, str], body: bytes
) -> None:
    """Publish as the page says, and as a job does, while somebody asks."""
    answers: list[Answer] = []
    done = threading.Event()

    def asking() -> None:
        while not done.is_set():
            answers.append(ask("POST", "/classify", headers, body))

    asker = threading.Thread(target=asking)
    asker.start()
    try:
        engine.shell(page.pop("Publish another model and index"))
        report.that("page: publish by rename", _logged(engine, '"swapped"', 1))
        published = engine.tree / "runs/published"
        sealed = subprocess.run(
            [sys.executable, "-m", "tests.containers.sealing", str(published / "model")],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        report.that(
            "commit another model as a job does", sealed.returncode == 0, sealed.stderr[-300:]
        )
        report.that("what a job committed is served", _logged(engine, '"swapped"', 2))
    finally:
        done.set()
        asker.join()
    failures = [answer.body[:200] for answer in answers if answer.status != 200]
    report.equal(f"failures among {len(answers)} requests", failures, [])


def _permissions(engine: Engine, report: Report) -> None:
    """An artifact that may not be read is named, and taken once it may."""
    published = engine.tree / "runs/published"
    header = published / "model/artifact.json"
    header.chmod(0o600)
    engine.shell("docker compose restart cpu")
    report.that(
        "unreadable: who, mode and remedy", _logged(engine, "cannot be read by uid 10001", 1)
    )
    report.equal("unreadable: ready", ask("GET", "/ready").status, 503)
    header.chmod(0o644)
    report.that("readable again", _until_ready(30))


def _replicas(engine: Engine, report: Report, page: dict[str, str]) -> None:
    engine.shell(page.pop("More load"))
    replicas = engine.containers("cpu")
    report.equal("page: replicas", len(replicas), 2)
    for one in replicas:  # podman-compose does not wait for them
        _logged(engine, '"event": "ready"', 1, f"docker logs {one}")
    time.sleep(6)  # the proxy looks the name up every 5 seconds
    since = time.time()
    for _ in range(20):
        ask("GET", "/ready")
    counts = [_requests_since(engine, one, since) for one in replicas]
    report.that("replicas that answer", min(counts) > 0, counts)
    engine.shell(f"docker stop -t 5 {engine.containers('cpu')[-1]}")
    found = [ask("GET", "/ready").status for _ in range(20)]
    report.equal("requests with a replica gone", found, [200] * 20)
    engine.shell("docker compose up --detach --wait --no-recreate --scale cpu=1")
    _until_ready(30)


def _requests_since(engine: Engine, container: str, since: float) -> int:
    reported = engine.shell(f"docker logs --since {int(since)} {container} 2>&1")
    return reported.count('"/ready"')


def _failures(engine: Engine, report: Report, keyed: dict[str, str]) -> None:
    """What the proxy refuses has the service's form, and no name is logged."""
    report.equal("413", *_failed(ask("POST", "/classify", keyed, bytes(66 * MEBIBYTE)), 413))
    long = ask("GET", f"/classify?{'x' * 20000}")
    report.equal("414", *_failed(long, 414))
    with stalled(300, {**keyed, **form(b"")[0]}) as senders:  # the service waits for a form
        select.select(senders, [], [], 8)  # until one of them is refused: the others hold 256
        crowded = ask("GET", "/health")
        refused = [wire.recv(12)[-3:] for wire in select.select(senders, [], [], 0)[0]]
    report.equal("429", *_failed(crowded, 429))
    report.equal("those of 300 senders that are refused", set(refused), {b"429"})
    report.that("answers once they are gone", _until_answered("/health", 15), len(refused))
    engine.shell("docker compose stop cpu")
    gone = ask("GET", "/health?patient=CANARYQUERY", {"Host": "CANARYHOST"})
    report.equal("503 without service", *_failed(gone, 503))
    engine.shell("docker compose start cpu")
    report.that("found again by the proxy", _until_ready(60))


def _failed(answer: Answer, status: int) -> tuple[object, object]:
    """What a refusal shows, and what it should."""
    try:
        tree = json.loads(answer.body)
    except ValueError:
        return (answer.status, answer.body[:60]), status
    retry = answer.headers.get("Retry-After", "")
    same = tree.get("request_id") == answer.headers.get("X-Request-ID")
    return (answer.status, sorted(tree), retry.isdigit(), same), (
        status,
        ["code", "message", "request_id"],
        status in {429, 503},
        True,
    )


def _deaths(engine: Engine, report: Report) -> None:
    container = engine.containers("cpu")[0]
    engine.shell(f"kill -9 {engine.inspect(container, '{{.State.Pid}}')}")
    time.sleep(2)
    report.that("a container that dies is started again", _until_ready(60))
    engine.shell(f"docker update --memory 1g --memory-swap 1g {container}")
    engine.inside("cpu", 'python -c "bytearray(3 << 30)"')
    report.that("memory beyond the limit ends in the container", _until_ready(60))
    engine.shell(f"docker update --memory 8g --memory-swap 8g {container}", fails=True)


def _stopping(engine: Engine, report: Report, headers: dict[str, str], body: bytes) -> None:
    container = engine.containers("cpu")[0]
    with ThreadPoolExecutor(12) as threads:
        uploads = [threads.submit(slow_upload, headers, body, 6) for _ in range(12)]
        time.sleep(2)
        engine.shell("docker compose stop cpu")
        found = [item.result() for item in uploads]
    report.equal("uploads under way at SIGTERM", found, [200] * 12)
    report.equal("exit after SIGTERM", engine.inspect(container, "{{.State.ExitCode}}"), "0")
    engine.shell("docker compose start cpu")
    report.that("ready after a stop", _until_ready(60))


def _fast_engine(engine: Engine, report: Report, headers: dict[str, str], body: bytes) -> None:
    """The image that is built with OpenVINO answers by it, read-only and without privileges."""
    engine.shell("ENGINE=openvino docker compose up --build --detach --wait cpu")
    report.that("ready with ENGINE=openvino", _until_ready(120))
    answer = ask("POST", "/classify", headers, body)
    found = json.loads(answer.body).get("engine") if answer.status == 200 else answer.body[:60]
    report.equal(
        "engine of an answer with ENGINE=openvino", (answer.status, found), (200, "openvino")
    )
    size = int(engine.inspect("medclip-dcl:0.1.0-cpu", "{{.Size}}")) / 1e9
    report.figures["image_with_openvino_gb"] = size
    engine.shell("docker compose up --build --detach --wait cpu")


def _until_ready(patience_s: float) -> bool:
    return _until_answered("/ready", patience_s)


def _until_answered(path: str, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if ask("GET", path).status == 200:
            return True
        time.sleep(0.5)
    return False


def _logged(
    engine: Engine, word: str, times: int, command: str = "docker compose logs cpu"
) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if engine.shell(f"{command} 2>&1").count(word) >= times:
            return True
        time.sleep(1)
    return False
