import pytest

from pipelines import bound


def test_an_empty_bound_is_called_empty_and_the_exact_table_follows(capsys):
    words = ["--n", "63", "--eta", "0.1", "--gamma", "3.74", "--wrong-eta", "0.05"]
    assert bound.main(words) == 0
    out = capsys.readouterr().out
    assert "This is empty: at gamma 3.74" in out
    # At chance nothing is corrected; there the gradient weighs 1 / (1 - eta).
    first, *_, last = [line.split() for line in out.splitlines()[-5:]]
    assert first == ["4.16", "4.16", "x", "1.11", "4.16", "x", "1.05"]
    assert last == ["0.832", "floor", "none", "floor", "none"]


@pytest.mark.parametrize("words", [["--eta", "1"], ["--n", "0"], ["--gamma", "-1"]])
def test_what_is_out_of_range_ends_with_a_line(capsys, words):
    assert bound.main(words) == 2
    assert "at least 1" in capsys.readouterr().err
