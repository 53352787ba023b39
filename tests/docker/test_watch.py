"""Alert rules and dashboard ask for metrics that the service has; promtool holds the rules."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from api.logging import Metrics
from tests.support.processes import ROOT, ended

WATCH = ROOT / "docker/watch"
DASHBOARD = json.loads((WATCH / "grafana/dashboards/medclip.json").read_text())
(ALERTS,) = yaml.safe_load((WATCH / "alerts.yaml").read_text())["groups"]
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS += [rule["expr"] for rule in ALERTS["rules"]]


def test_every_metric_that_is_asked_for_exists() -> None:
    ends = ("", "_total", "_bucket", "_sum", "_count")
    existing = {family.name + end for family in Metrics().registry.collect() for end in ends}
    asked = {name for text in EXPRESSIONS for name in re.findall(r"medclip_\w+", text)}
    assert len(asked) > 8
    assert asked <= existing


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules_and_they_fire_where_they_should(tmp_path: Path) -> None:
    shutil.copytree(WATCH, tmp_path, dirs_exist_ok=True)
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    shown = [text.replace("$__rate_interval", "5m") for text in EXPRESSIONS]
    asked = [{"record": f"asked:{number}", "expr": text} for number, text in enumerate(shown)]
    groups = {"groups": [{"name": "asked", "rules": asked}]}
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(groups))
    for words in (
        ("check", "config", "--syntax-only", "prometheus.yaml"),
        ("check", "rules", "alerts.yaml", "asked.yaml"),
        ("test", "rules", "alerts_test.yaml"),
    ):
        done = ended(["promtool", *words], cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
