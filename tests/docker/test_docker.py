"""The rules that the image and the compose file keep; no engine runs here."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.auth import is_loopback
from api.settings import ServeSettings, read_settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
SERVICES = ("cpu", "gpu", "proxy")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return tree


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    """Instructions in order, continued lines joined, comments left out."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def last_stage(dockerfile: list[tuple[str, str]]) -> list[tuple[str, str]]:
    starts = [index for index, (word, _) in enumerate(dockerfile) if word == "FROM"]
    assert len(starts) == 2
    return dockerfile[starts[-1] :]


def environment(dockerfile: list[tuple[str, str]]) -> dict[str, str]:
    words = [
        word for name, rest in last_stage(dockerfile) if name == "ENV" for word in shlex.split(rest)
    ]
    return dict(word.split("=", 1) for word in words)


def test_there_are_two_kinds_of_service_and_one_proxy(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == set(SERVICES)
    assert compose["services"]["cpu"]["profiles"] == ["cpu"]
    assert compose["services"]["gpu"]["profiles"] == ["gpu"]
    assert compose["services"]["proxy"]["profiles"] == ["cpu", "gpu"]
    (device,) = compose["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] not in {"0", "root"}
    assert service["pids_limit"] <= 256
    assert service["mem_limit"] == service["memswap_limit"]
    (tmpfs,) = service["tmpfs"]
    assert tmpfs.startswith("/tmp:size=")
    assert {"noexec", "nosuid", "nodev"} <= set(tmpfs.split(":")[1].split(","))
    assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices"}


@pytest.mark.parametrize("name", SERVICES)
def test_everything_is_mounted_read_only(compose: dict[str, Any], name: str) -> None:
    volumes = compose["services"][name]["volumes"]
    assert volumes
    assert all(volume["read_only"] is True for volume in volumes)
    assert "docker.sock" not in str(volumes)


def test_the_proxy_alone_is_published_and_on_loopback(compose: dict[str, Any]) -> None:
    ports = {name: compose["services"][name].get("ports", []) for name in SERVICES}
    assert ports["cpu"] == ports["gpu"] == []
    assert [is_loopback(port.split(":")[0]) for port in ports["proxy"]] == [True]
    assert compose["networks"]["inside"]["internal"] is True
    for name in ("cpu", "gpu"):
        assert list(compose["services"][name]["networks"]) == ["inside"]


def test_secrets_are_files_and_no_variables(compose: dict[str, Any]) -> None:
    assert set(compose["secrets"]["api_key"]) == {"file"}
    for name in ("cpu", "gpu"):
        assert compose["services"][name]["secrets"] == ["api_key"]
        assert not [key for key in compose["services"][name]["environment"] if "KEY" in key]
    ignored = (DOCKER / ".gitignore").read_text().split()
    assert "secrets/" in ignored


def test_variables_of_the_containers_are_settings(compose: dict[str, Any]) -> None:
    for name in ("cpu", "gpu"):
        given = {key: str(value) for key, value in compose["services"][name]["environment"].items()}
        read_settings(DOCKER / "serve.yaml", given)


def test_the_container_asks_for_a_key(dockerfile: list[tuple[str, str]]) -> None:
    settings = read_settings(DOCKER / "serve.yaml", {})
    assert settings.key_file == "/run/secrets/api_key"
    assert not settings.allow_anonymous
    (entry,) = (rest for name, rest in last_stage(dockerfile) if name == "ENTRYPOINT")
    assert '"--config", "/app/serve.yaml"' in entry


def test_the_image_runs_as_a_user_of_its_own(dockerfile: list[tuple[str, str]]) -> None:
    stage = last_stage(dockerfile)
    names = [name for name, _ in stage]
    assert [rest for name, rest in stage if name == "USER"] == ["10001:10001"]
    assert names.index("USER") > max(
        index for index, name in enumerate(names) if name in {"RUN", "COPY"}
    )
    assert "HEALTHCHECK" in names
    assert any("/health" in rest for name, rest in stage if name == "HEALTHCHECK")


def test_the_image_fetches_nothing_and_leaves_settings_alone(
    dockerfile: list[tuple[str, str]],
) -> None:
    given = environment(dockerfile)
    assert given["HF_HUB_OFFLINE"] == given["TRANSFORMERS_OFFLINE"] == "1"
    # The service sets up its memory itself.
    assert not [name for name in given if name.startswith(("MEDCLIP_", "MALLOC_"))]


def test_packages_come_from_the_lock(dockerfile: list[tuple[str, str]]) -> None:
    installs = [rest for name, rest in dockerfile if name == "RUN" and "--group serve" in rest]
    assert len(installs) == 1
    assert "--constraint requirements.lock" in installs[0]
    assert not any(name == "ADD" or "curl" in rest or "wget" in rest for name, rest in dockerfile)


def test_the_builder_sees_code_alone(dockerfile: list[tuple[str, str]]) -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for name, rest in dockerfile
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied == allowed
    assert not allowed & {".git", "runs", "docker/secrets", "tests"}


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
    assert given["error_log"] == "stderr crit"
    assert given["server_tokens"] == "off"
    assert given["proxy_request_buffering"] == "on"
