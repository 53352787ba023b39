"""Figures of an attack on membership, against counts by hand."""

from benchmarks.reliability.membership import attack


def test_curve_and_rate_of_a_small_case_are_those_of_counting() -> None:
    scores = {"a": 4.0, "b": 3.0, "c": 1.0, "x": 2.0, "y": 0.5}
    found = attack(scores, {"a", "b", "c"}, samples=0)
    assert found["auc"] == 5 / 6  # c alone is below x
    assert found["tpr_at_fpr_1"] == 2 / 3  # a and b are above every patient who is held out
    assert (found["members"], found["held_out"]) == (3, 2)


def test_one_false_positive_in_a_hundred_is_allowed() -> None:
    held_out = {f"x{number}": float(number) for number in range(100)}
    found = attack(held_out | {"a": 98.5, "b": 97.5}, {"a", "b"}, samples=0)
    assert found["tpr_at_fpr_1"] == 1 / 2
