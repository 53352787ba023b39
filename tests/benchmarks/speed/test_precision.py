"""What a precision changes is counted as one would by hand."""

import torch

from benchmarks.speed.precision import Answers, differences


def test_changes_are_counted_against_the_first_answers() -> None:
    plain = Answers({"auc": 0.9}, [True, False, True, True], torch.tensor([[0, 1], [2, 3]]))
    found = Answers({"auc": 0.8}, [True, True, True, False], torch.tensor([[1, 0], [4, 3]]))
    assert differences(found, plain) == [
        ("auc", 0.8),
        ("decisions changed", 2),
        ("decisions", 4),
        ("recall of the ten best", 0.75),
    ]
