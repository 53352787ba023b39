"""A trial that was noted is not run again; one whose note was cut is."""

import json
import shutil
from pathlib import Path

from benchmarks.run_log import Run, RunLog


def test_a_trial_is_run_once_over_sessions_and_again_where_its_line_was_cut(tmp_path: Path) -> None:
    runs: list[str] = []

    def trial(name: str) -> dict[str, int]:
        runs.append(name)
        return {"runs": len(runs)}

    log = RunLog(tmp_path, "fuzz")
    assert [log.once(name, lambda name=name: trial(name))["runs"] for name in "aba"] == [1, 2, 1]
    path = tmp_path / "fuzz.jsonl"
    path.write_bytes(path.read_bytes()[:-5])  # killed as it noted b
    later = RunLog(tmp_path, "fuzz")
    assert [*later.found] == ["a"]
    assert [later.once(name, lambda name=name: trial(name))["runs"] for name in "ab"] == [1, 3]
    assert runs == ["a", "b", "b"]
    assert len(path.read_text().splitlines()) == 2


def test_kept_runs_of_a_table_are_read_as_trials(tmp_path: Path) -> None:
    kept = Path(__file__).parents[2] / "benchmarks/results/method_runs.jsonl"
    shutil.copy(kept, tmp_path / "runs.jsonl")
    found = RunLog(tmp_path, "runs").found
    assert len(found) == json.loads(kept.with_name("method.json").read_text())["figures"]["runs"]
    first = Run("phantom", "", "infonce", 300)
    assert found[first.trial]["auc"] == 0.82365
    assert Run.of(first.trial) == first
    assert (tmp_path / "runs.jsonl").read_bytes() == kept.read_bytes()
