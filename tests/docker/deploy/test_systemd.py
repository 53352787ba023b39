"""The unit is valid and stays closed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from api.settings import ServeSettings, read_service_settings

SYSTEMD = Path(__file__).parents[3] / "docker/systemd"
UNIT = (SYSTEMD / "medclip.service").read_text()
WORST_RATING = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@needs_systemd
def test_systemd_knows_every_line(tmp_path: Path) -> None:
    unit = tmp_path / "medclip.service"
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert not [line for line in done.stderr.splitlines() if "medclip" in line]
    unit.write_text(UNIT.replace("NoNewPrivileges", "NoNewPrivilege"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "NoNewPrivilege" in done.stderr


@needs_systemd
def test_the_unit_is_rated_as_closed() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", str(SYSTEMD / "medclip.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"exposure level for medclip.service: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= WORST_RATING


def test_settings_of_the_page_are_settings_and_it_gets_the_time_that_it_needs() -> None:
    settings = read_service_settings(SYSTEMD / "serve.yaml", {})
    assert settings.key_file == "/etc/medclip/api_key"
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(stop_s) > ServeSettings(model="m").drain_s
