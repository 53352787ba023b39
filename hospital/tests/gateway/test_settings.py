"""Settings that would open a door are refused by name."""

from pathlib import Path

import pytest
import yaml

from api.settings import read_service_settings
from medclip_dcl.core.errors import ConfigError
from medclip_hospital.gateway.settings import read_gateway_settings

FILE = Path(__file__).parents[2] / "gateway.yaml"


def test_the_file_that_comes_with_it_is_valid_and_variables_stand_above_it() -> None:
    settings = read_gateway_settings(FILE, {"MEDCLIP_GATEWAY_PORT": "104", "MEDCLIP_QUEUE": "3"})
    assert settings.port == 104
    assert settings.destination.kind == "dicomweb"
    destination = '{"kind": "dimse", "ae_title": "PACS", "host": "h", "port": 1}'
    given = {"MEDCLIP_GATEWAY_DESTINATION": destination, "MEDCLIP_GATEWAY_HOST": "0.0.0.0"}
    changed = read_gateway_settings(FILE, given | {"MEDCLIP_GATEWAY_PLAIN": "true"})
    assert (changed.destination.kind, changed.host) == ("dimse", "0.0.0.0")  # since it is said


def test_the_service_takes_no_notice_of_them() -> None:
    environment = {"MEDCLIP_MODEL": "m", "MEDCLIP_GATEWAY_PORT": "104"}
    assert read_service_settings(None, environment).port == 8000


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"host": "0.0.0.0"}, "not loopback; set tls, or plain=true"),
        ({"callers": {}}, "callers"),
        ({"callers": {"CR1": []}}, "names no address"),
        ({"callers": {"CR1": ["the ward"]}}, "the ward"),
        ({"callers": {"FAR TOO LONG A TITLE": ["::1"]}}, "callers"),
        ({"ae_title": "A\\B"}, "ae_title"),
        ({"objects": ["seg"]}, "objects"),
        ({"destination": {"kind": "hl7"}}, "destination"),
        ({"service": "127.0.0.1:8000"}, "service"),
        ({"spool_gib": 3}, "spool_gib"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], fault: str, tmp_path: Path) -> None:
    tree = yaml.safe_load(FILE.read_text()) | given
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=fault):
        read_gateway_settings(file, {})
