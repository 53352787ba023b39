from pipelines.__main__ import main
from tests.support.headers import make


def test_every_artifact_of_a_run_is_hashed_and_damaged_ones_are_named(tmp_path, capfd):
    make(tmp_path / "whole")
    make(tmp_path / "checkpoints" / "step-1")
    assert main(["show", "--verify", str(tmp_path)]) == 0
    assert capfd.readouterr().out.count("whole, 1 files, 7 bytes") == 2
    (tmp_path / "whole" / "data.txt").write_bytes(b"CONTENT")
    assert main(["show", "--verify", str(tmp_path)]) == 4
    output = capfd.readouterr()
    assert "data.txt of" in output.out
    assert "step-1               whole" in output.out
    assert "whole of" in output.err
    assert main(["show", "--verify", str(tmp_path / "checkpoints" / "step-1")]) == 0
    (tmp_path / "empty").mkdir()
    assert main(["show", "--verify", str(tmp_path / "empty")]) == 4
    assert "holds no artifact" in capfd.readouterr().err


def test_what_is_no_run_is_named_and_what_opens_it(tmp_path, capfd):
    make(tmp_path / "model")
    assert main(["show", str(tmp_path / "model")]) == 4
    assert "of a run; name the run's folder" in capfd.readouterr().err
    report = tmp_path / "report.html"
    report.write_text("<html></html>", encoding="utf-8")
    assert main(["show", str(report)]) == 4
    assert "a browser opens its report.html" in capfd.readouterr().err
