"""A trial that was noted is not run again; one whose note was cut is."""

from pathlib import Path

from benchmarks.run_log import RunLog


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
