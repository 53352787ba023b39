import json
from pathlib import Path

from medclip_dcl.training.logging import FILE, MetricsLog, read_metrics


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0) as log:
        for step in range(1, 6):
            log.write({"step": step, "loss": 1 / step})
    with MetricsLog(tmp_path, 3) as log:
        assert log.last == {"step": 3, "loss": 1 / 3}
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert read_metrics(tmp_path)[2]["loss"] == 1 / 3


def test_a_line_cut_short_by_a_kill_ends_the_log(tmp_path: Path) -> None:
    whole = json.dumps({"step": 1, "loss": 2.0})
    (tmp_path / FILE).write_text(f'{whole}\n{{"step": 2, "lo')
    with MetricsLog(tmp_path, 2) as log:
        log.write({"step": 2, "loss": 1.5})
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]
