"""The unit is valid and stays closed."""

import re
import shutil
from pathlib import Path

import pytest

from api.settings import ServeSettings, read_service_settings
from tests.support.processes import ROOT, ended

SYSTEMD = ROOT / "docker/systemd"
UNIT = (SYSTEMD / "medclip.service").read_text()
WORST_RATING = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@needs_systemd
def test_systemd_knows_every_line(tmp_path: Path) -> None:
    unit = tmp_path / "medclip.service"
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT))
    verify = ["systemd-analyze", "verify", unit]
    assert not [line for line in ended(verify).stderr.splitlines() if "medclip" in line]
    unit.write_text(UNIT.replace("NoNewPrivileges", "NoNewPrivilege"))
    assert "NoNewPrivilege" in ended(verify).stderr


@needs_systemd
def test_the_unit_is_rated_as_closed() -> None:
    unit = SYSTEMD / "medclip.service"
    done = ended(["systemd-analyze", "security", "--offline=yes", unit])
    rating = re.search(r"exposure level for medclip.service: ([\d.]+)", done.stdout)
    assert rating is not None, done.stderr
    assert float(rating[1]) <= WORST_RATING


def test_settings_of_the_page_are_settings_and_it_gets_the_time_that_it_needs() -> None:
    settings = read_service_settings(SYSTEMD / "serve.yaml", {})
    assert settings.key_file == "/etc/medclip/api_key"
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(stop_s) > ServeSettings(model="m").drain_s
