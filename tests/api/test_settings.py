from pathlib import Path

import pytest

from api.settings import read_service_settings
from medclip_dcl.core.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.yaml"
    path.write_text(text)
    return path


def test_variables_stand_above_the_file_and_arguments_above_both(tmp_path: Path) -> None:
    file = write(tmp_path, "model: a\nqueue: 3\nport: 1\n")
    environment = {"MEDCLIP_QUEUE": "5", "MEDCLIP_PORT": "2", "HOME": "elsewhere"}
    settings = read_service_settings(file, environment, port=0, host=None)
    assert (settings.model, settings.queue, settings.port) == ("a", 5, 0)
    assert settings.host == "127.0.0.1"
    # JSON or plain text; MEDCLIP_CONFIG names the file.
    environment = {"MEDCLIP_MODEL": "runs/no", "MEDCLIP_ALLOWED_HOSTS": '["a", "b"]'}
    settings = read_service_settings(None, environment | {"MEDCLIP_CONFIG": "x"})
    assert (settings.model, settings.allowed_hosts) == ("runs/no", ("a", "b"))


@pytest.mark.parametrize("name", ["MEDCLIP_QUEU", "MEDCLIP_API_KEY", "medclip_queue"])
def test_unknown_variables_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_service_settings(None, {"MEDCLIP_MODEL": "a", name: "1"})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("model: a\nquue: 1", "quue"),
        ("queue: 1", "model"),
        ("model: a\nqueue: 0", "queue"),
        ("- a", "keys"),
        ("{", "line 1, column 2"),
    ],
)
def test_faults_of_the_file_are_named(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        read_service_settings(write(tmp_path, text), {})
