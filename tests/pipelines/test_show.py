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
