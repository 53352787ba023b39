from pathlib import Path

from api.auth import is_loopback
from api.settings import read_service_settings

FILE = Path(__file__).parents[2] / "configs/serve.yaml"


def test_the_demo_is_served_to_this_machine_alone() -> None:
    settings = read_service_settings(FILE, {})
    assert (settings.model, settings.index) == ("runs/demo/model", "runs/demo/index")
    assert settings.allow_anonymous
    assert is_loopback(settings.host)
    assert settings.port == 8000
