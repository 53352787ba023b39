"""Counts and verdicts of the check, by hand."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from medclip_dcl.data import selection
from medclip_dcl.data.records import BoxTable, ImageRecord, RawStudies, Reject, Source, Study, Text
from medclip_dcl.data.selection import Selection
from pipelines import check_data
from pipelines.check_data import Found, Inspection
from pipelines.report import preflight

TEXT = Text("Clear.", "", "")


def image(name: str, study: str, subject: str, view: str = "PA") -> ImageRecord:
    return ImageRecord(name, study, subject, view, f"{name}.dcm")


def raw(images: list[ImageRecord], studies: list[Study], **more: object) -> RawStudies:
    return RawStudies(Path(), images, studies, has_images=bool(images), **more)


def chosen(images: list[ImageRecord], texts: dict[str, str], rejects: list[Reject]) -> Selection:
    return Selection(images, dict.fromkeys(texts, TEXT), texts, rejects, 5, len(rejects), Counter())


def test_every_step_counts_what_is_left() -> None:
    images = [image(name, f"s{name}", f"p{name}") for name in "abcde"]
    images += [image("side", "sa", "pa", "LATERAL"), images[0]]
    rejects = [
        Reject("side", "lateral"),
        Reject("a", "duplicate_id"),
        Reject("b", "missing_image"),
        Reject("sc", "empty_report"),
        Reject("c", "no_report"),
    ]
    left = chosen([images[0], images[3], images[4]], {"sa": "pa", "sd": "pd", "se": "pe"}, rejects)
    steps = check_data.count_steps(raw(images, []), left, {"sa", "se"}, {"e"})
    assert [(step["name"], step["images"], step["patients"]) for step in steps] == [
        ("in the source", 6, 5),
        ("frontal", 5, 5),
        ("with a file", 4, 4),
        ("with text", 3, 3),
        ("with usable sentences", 2, 2),
        ("that opens", 1, 1),
    ]


def test_an_image_that_goes_with_its_report_is_not_blamed_itself() -> None:
    images = [image("a", "s1", "p"), image("row-1", "row-1", "p"), image("row-2", "row-2", "p")]
    rejects = [
        Reject("s1", "not_utf8"),
        Reject("a", "no_report"),
        Reject("row-1", "empty_report"),
        Reject("row-1", "no_report"),
        Reject("row-2", "no_report"),
    ]
    named = check_data.name_rejects(raw(images, []), chosen([], {}, rejects))
    assert [(item.code, item.id) for item in named] == [
        ("not_utf8", "s1"),
        ("image_without_report", "a"),
        ("empty_report", "row-1"),
        ("image_without_report", "row-1"),
        ("no_report", "row-2"),
    ]


def repeats_of(key_of: Mapping[str, str]) -> tuple[set[Found], dict[str, dict[str, int]]]:
    """Faults of images a and b of p1, c of p2, all trained on, and d of p3, tested."""
    owners = {"a": "p1", "b": "p1", "c": "p2", "d": "p3"}
    listed = [image(name, f"s{name}", owner) for name, owner in owners.items()]
    rows = [
        {"image_id": name, "pixels_key": key, "code": "", "inverted": False}
        for name, key in key_of.items()
    ]
    split_of = {"p1": "train", "p2": "train", "p3": "test"}
    source = Source(raw(listed, []), BoxTable([], set(), 0))
    look = Inspection(source, chosen(listed, {}, []), split_of, rows, {})
    found, repeats = check_data.find_faults(look)
    return set(found), repeats


def test_repeats_are_grouped_and_all_but_the_first_are_named() -> None:
    found, repeats = repeats_of({"d": "k", "b": "k", "a": "k", "c": "other"})
    assert found == {
        Found("same_pixels", "b", "a"),
        Found("same_pixels", "d", "a"),
        Found("pixels_across_splits", "b", "d"),
        Found("pixels_across_splits", "d", "a"),
    }
    assert repeats["pixels"] == {"groups": 1, "extra": 2, "across_patients": 1, "across_splits": 1}


def test_every_code_has_a_kind_and_a_meaning() -> None:
    codes = [*selection.REJECT_REASONS, *preflight.CODES]
    lines = check_data.make_lines([Found(code, "x") for code in codes], {}, 1)
    assert len(lines) == len(set(codes)) > 40
    assert all(line["meaning"] for line in lines)


@pytest.mark.parametrize(
    ("found", "most", "clean"),
    [
        ([], 0.37, True),  # 1 of 5 rows, and 1 of 5 images of the rest: 0.36
        ([], 0.35, False),
        ([Found("same_pixels", "b", "c")], 0.37, True),
        ([Found("same_pixels", "b", "c"), Found("same_pixels", "d", "e")], 0.37, False),
        ([Found("two_splits", "p")], 1, False),
    ],
)
def test_each_threshold_decides(found: list[Found], most: float, clean: bool) -> None:
    found = [Found("truncated", "a"), *found]
    left = chosen([], {"s": "p"}, [Reject("x", "empty_report")])
    verdict = check_data.judge(left, {"opened": 5, "refused": 1}, found, most)
    assert verdict["unusable_share"] == pytest.approx(0.36)
    assert verdict["clean"] is clean
