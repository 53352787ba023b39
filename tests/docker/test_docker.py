"""The rules that can be read from the image's and the compose file; `make containers` runs them."""

import re
import shlex
from typing import Any

import pytest
import yaml
from packaging.version import Version

from api.auth import is_loopback
from api.settings import ServeSettings, read_service_settings
from medclip_hospital.gateway.settings import read_gateway_settings
from tests.house.tree import ROOT

DOCKER = ROOT / "docker"
SERVICES = ("cpu", "gpu", "proxy", "prometheus", "grafana", "gateway", "orthanc", "viewer")
HARDENED = {
    "read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"],
    "ipc": "none", "restart": "unless-stopped",
}  # fmt: skip
PINNED = re.compile(r"^([\w.-]+)==([\w.]+)", re.MULTILINE)
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
TEXT = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
LINES = TEXT.replace("\\\n", " ").splitlines()
DOCKERFILE = [tuple(line.split(maxsplit=1)) for line in LINES if line.strip()]
"""Instructions in order, continued lines joined, comments left out."""
_, FROM = (index for index, (word, _) in enumerate(DOCKERFILE) if word == "FROM")
LAST_STAGE = DOCKERFILE[FROM:]


def locked(file: str) -> set[tuple[str, str]]:
    """Names and versions of a lock."""
    return set(PINNED.findall((ROOT / file).read_text()))


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened_and_reads_the_hosts_folders(name: str) -> None:
    service = COMPOSE["services"][name]
    assert {setting: service[setting] for setting in HARDENED} == HARDENED
    assert service["user"].split(":")[0] not in {"0", "root"}
    assert service["pids_limit"] <= 256
    assert service["mem_limit"] == service["memswap_limit"]
    (tmpfs,) = service["tmpfs"]
    assert tmpfs.startswith("/tmp:size=")
    assert {"noexec", "nosuid", "nodev"} <= set(tmpfs.split(":")[1].split(","))
    longest_s = ServeSettings(model="m").drain_s
    assert int(service["stop_grace_period"].removesuffix("s")) > longest_s
    assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "devices"}
    bound = [item for item in service["volumes"] if item["type"] == "bind"]
    assert bound
    assert all(volume["read_only"] is True for volume in bound)
    assert "docker.sock" not in str(bound)


def test_what_people_open_is_published_on_loopback_and_nothing_else():
    services = COMPOSE["services"]
    published = {name: item["ports"] for name, item in services.items() if "ports" in item}
    assert set(published) == {"proxy", "grafana", "orthanc", "viewer"}
    assert services["orthanc"]["ports"] == ["127.0.0.1:4242:4242"]  # DICOM, not its own pages
    assert all(is_loopback(port.split(":")[0]) for ports in published.values() for port in ports)
    for name in ("cpu", "gpu", "gateway"):
        assert set(services[name]["networks"]) == {"inside"}
    assert set(services["prometheus"]["networks"]) == {"inside", "watching"}
    for name in ("inside", "watching"):
        network = COMPOSE["networks"][name]
        assert network["internal"] is True
        assert network["driver_opts"] == {"com.docker.network.bridge.inhibit_ipv4": "true"}


def test_keys_are_asked_for_and_lie_in_a_folder_and_variables_are_settings() -> None:
    for name in ("cpu", "gpu"):
        service = COMPOSE["services"][name]
        sources = {item["target"]: item["source"] for item in service["volumes"]}
        assert sources["/run/secrets"] == "./secrets"  # a file that is renamed in it is seen
        given = {key: str(value) for key, value in service["environment"].items()}
        assert not [key for key in given if "KEY" in key]
        settings = read_service_settings(DOCKER / "serve.yaml", given)
        assert settings.key_file == "/run/secrets/api_key"
        assert not settings.allow_anonymous
    ignored = (DOCKER / ".gitignore").read_text().split()
    assert "secrets/" in ignored


def test_the_image_fetches_nothing_and_leaves_settings_alone():
    words = [word for name, rest in LAST_STAGE if name == "ENV" for word in shlex.split(rest)]
    given = dict(word.split("=", 1) for word in words)
    assert given["HF_HUB_OFFLINE"] == given["TRANSFORMERS_OFFLINE"] == "1"
    # The service sets up its memory itself.
    assert not [name for name in given if name.startswith(("MEDCLIP_", "MALLOC_"))]


def test_packages_come_from_the_lock_by_hash() -> None:
    installs = [part for _, rest in DOCKERFILE for part in rest.split("&&") if " install " in part]
    packages = [part for part in installs if "pip" in part]
    assert len(packages) == 2
    assert all("--require-hashes" in part for part in packages)
    assert not any(name == "ADD" or "curl" in rest or "wget" in rest for name, rest in DOCKERFILE)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_image_has_the_versions_of_the_lock(name: str) -> None:
    ours, own = locked("requirements.lock"), locked(f"docker/{name}.lock")
    assert len(own & ours) > 50
    # The project's lock leaves CUDA to torch, and holds torch where it has no newer CPU build.
    others = {item for item, _ in own - ours}
    assert all(item.startswith(("nvidia-", "cuda-", "triton", "torch")) for item in others)
    assert bool(others) == (name == "gpu")
    assert Version(dict(own)["torch"]) >= Version(dict(ours)["torch"])


def test_the_builder_sees_code_alone() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for name, rest in DOCKERFILE
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    locks = {"docker/tools.lock", "docker/${DEVICE}.lock", "docker/openvino.lock"}
    of_gateway = {"hospital/medclip_hospital", "docker/hospital/gateway.lock"}
    assert copied - locks == allowed - of_gateway - {"docker/*.lock"}
    assert locks <= copied


def test_the_proxy_gives_deadlines_and_repeats_nothing() -> None:
    text = (DOCKER / "nginx.conf").read_text()
    given = dict(re.findall(r"^\s*(\w+) ([^;{\n]+);", text, re.MULTILINE))
    for name in ("client_header_timeout", "client_body_timeout", "send_timeout"):
        assert int(given[name].removesuffix("s")) <= 15
    defaults = ServeSettings(model="m")
    assert given["client_max_body_size"] == f"{defaults.max_body_mb}m"
    longest_s = defaults.body_deadline_s + defaults.deadline_s
    assert int(given["proxy_read_timeout"].removesuffix("s")) > longest_s
    assert given["access_log"] == "off"
    assert given["error_log"] == "stderr emerg"  # below it, lines quote requests
    assert given["server_tokens"] == "off"
    assert given["proxy_request_buffering"] == "off"  # else who has no key fills the memory
    assert given["proxy_max_temp_file_size"] == "0"


def test_the_gateway_s_settings_are_valid_and_its_image_has_the_versions_of_the_lock() -> None:
    settings = read_gateway_settings(DOCKER / "hospital/gateway.yaml", {})
    assert settings.plain  # said, since the network is that of the containers alone
    assert str(settings.spool) == "/spool"
    own = locked("docker/hospital/gateway.lock")
    assert own <= locked("requirements.lock")
    assert "torch" not in {name for name, _ in own}
