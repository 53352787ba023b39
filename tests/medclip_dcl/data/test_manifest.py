"""Splits: one per patient, stable, strict."""

import hashlib

from medclip_dcl.data.manifest import assign_splits

PEOPLE = [f"p{number}" for number in range(4000)]


def test_shares_are_met_and_stay_when_others_leave() -> None:
    splits = assign_splits(PEOPLE, {}, set(), 0.1, 0.2)
    counts = {name: list(splits.values()).count(name) for name in ("train", "validate", "test")}
    assert abs(counts["test"] - 800) < 100
    assert abs(counts["validate"] - 400) < 80
    fewer = assign_splits(PEOPLE[::2], {}, set(), 0.1, 0.2)
    assert all(splits[name] == split for name, split in fewer.items())


def test_given_splits_count_and_boxes_overrule_them() -> None:
    given = {"a": {"train"}, "b": {"train", "test"}, "c": {"validate", "train"}, "d": {"train"}}
    splits = assign_splits("abcd", given, {"d"}, 0.0, 0.0)
    assert splits == {"a": "train", "b": "test", "c": "validate", "d": "test"}
    assert assign_splits(["e"], {}, set(), 0.0, 0.0) == {"e": "train"}


def test_split_says_nothing_of_another_hash_of_the_same_id() -> None:
    splits = assign_splits(PEOPLE, {}, set(), 0.05, 0.1)
    train = [name for name, split in splits.items() if split == "train"]
    low = [name for name in train if hashlib.sha256(name.encode()).digest()[0] < 256 * 0.05]
    assert abs(len(low) / len(train) - 0.05) < 0.02
