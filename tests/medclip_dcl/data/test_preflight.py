"""Counts and verdicts of the check, by hand."""

from pathlib import Path

import pytest

from medclip_dcl.data import data_check, images, manifest
from medclip_dcl.data.data_check import Belonging, CheckConfig, Found
from medclip_dcl.data.manifest import Selection
from medclip_dcl.data.sources.records import ImageRecord, RawStudies, Reject, Study, Text

TEXT = Text("Clear.", "", "")
OF = Belonging(
    {"a": "p1", "b": "p1", "c": "p2", "d": "p3"},
    {"a": "train", "b": "train", "c": "train", "d": "test"},
)


def image(name: str, study: str, subject: str, view: str = "PA") -> ImageRecord:
    return ImageRecord(name, study, subject, view, f"{name}.dcm")


def raw(images: list[ImageRecord], studies: list[Study], **more: object) -> RawStudies:
    given = {"splits": {}, "labels": None, "has_images": bool(images)} | more
    return RawStudies(images, studies, root=Path(), reports_root=Path(), **given)


def chosen(images: list[ImageRecord], texts: dict[str, str], rejects: list[Reject]) -> Selection:
    return Selection(images, dict.fromkeys(texts, TEXT), texts, rejects, 5, len(rejects))


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
    steps = data_check.count_steps(raw(images, []), left, {"sa", "se"}, {"e"})
    assert [(step["name"], step["images"], step["patients"]) for step in steps] == [
        ("in the source", 6, 5),
        ("frontal", 5, 5),
        ("with a file", 4, 4),
        ("with text", 3, 3),
        ("with usable sentences", 2, 2),
        ("that opens", 1, 1),
    ]


def test_a_source_of_reports_alone_counts_studies() -> None:
    studies = [Study(name, "p", TEXT) for name in ("s1", "s2", "s3")]
    left = chosen([], {"s1": "p", "s2": "p"}, [Reject("s3", "empty_report")])
    steps = data_check.count_steps(raw([], studies), left, {"s1"}, set())
    assert [(step["images"], step["studies"]) for step in steps] == [
        (None, 3),
        (None, 2),
        (None, 1),
    ]


def test_images_alone_have_no_step_of_texts() -> None:
    left = chosen([image("a", "s", "p")], {"s": "p"}, [])
    steps = data_check.count_steps(raw(left.images, [], has_reports=False), left, set(), set())
    assert [step["name"] for step in steps][-2:] == ["with a file", "that opens"]
    assert steps[-1]["images"] == 1


def test_an_image_that_goes_with_its_report_is_not_blamed_itself() -> None:
    images = [image("a", "s1", "p"), image("row-1", "row-1", "p"), image("row-2", "row-2", "p")]
    rejects = [
        Reject("s1", "not_utf8"),
        Reject("a", "no_report"),
        Reject("row-1", "empty_report"),
        Reject("row-1", "no_report"),
        Reject("row-2", "no_report"),
    ]
    named = data_check.name_rejects(raw(images, []), chosen([], {}, rejects))
    assert [(item.code, item.id) for item in named] == [
        ("not_utf8", "s1"),
        ("image_without_report", "a"),
        ("empty_report", "row-1"),
        ("image_without_report", "row-1"),
        ("no_report", "row-2"),
    ]


def test_repeats_are_grouped_and_all_but_the_first_are_named() -> None:
    groups = data_check.find_repeats({"d": "k", "b": "k", "a": "k", "c": "other", "e": "", "f": ""})
    assert groups == [["a", "b", "d"]]
    assert data_check.name_repeats("same_pixels", groups) == [
        Found("same_pixels", "b", "a"),
        Found("same_pixels", "d", "a"),
    ]
    assert data_check.count_repeats(groups, OF) == {
        "groups": 1,
        "extra": 2,
        "across_patients": 1,
        "across_splits": 1,
    }


def test_a_picture_in_two_splits_is_named_with_the_other_side() -> None:
    assert data_check.across_splits([["a", "b"]], OF) == []
    assert data_check.across_splits([["c", "d"]], OF) == [Found("pixels_across_splits", "d", "c")]


def test_leaks_of_the_source_are_named_by_patient() -> None:
    splits = {"p1": {"train"}, "p2": {"train", "test"}, "p3": {"test"}}
    assert data_check.find_leaks(splits, {"p1", "p3", "p9"}) == [
        Found("two_splits", "p2"),
        Found("boxed_training", "p1"),
    ]


def test_lines_come_gravest_first_and_count_ids_once() -> None:
    found = [Found("lateral", "a"), Found("truncated", "b"), Found("truncated", "b")]
    found += [Found("two_splits", "p"), Found("same_pixels", "c", "b")]
    lines = data_check.make_lines(found, {"two_splits": 4}, 9)
    assert [(line["kind"], line["code"], line["count"], line["of"]) for line in lines] == [
        ("leak", "two_splits", 1, 4),
        ("unusable", "truncated", 1, 9),
        ("duplicate", "same_pixels", 1, 9),
        ("note", "lateral", 1, 9),
    ]
    assert all(line["meaning"] for line in lines)


def test_every_code_has_a_kind_and_a_meaning() -> None:
    codes = [*manifest.REASONS, *images.REASONS, *data_check.CODES]
    lines = data_check.make_lines([Found(code, "x") for code in codes], {}, 1)
    assert len(lines) == len(set(codes)) > 40
    assert all(line["meaning"] for line in lines)


@pytest.mark.parametrize(
    ("limit", "value", "clean"),
    [
        ("max_unusable_share", 0.37, True),  # 1 of 5 rows, and 1 of 5 images of the rest: 0.36
        ("max_unusable_share", 0.35, False),
        ("max_duplicate_share", 0.2, True),
        ("max_duplicate_share", 0.19, False),
        ("max_leaks", 1, True),
        ("max_leaks", 0, False),
    ],
)
def test_each_threshold_decides(limit: str, value: float, clean: bool) -> None:
    allowed = {"max_unusable_share": 1, "max_duplicate_share": 1, "max_leaks": 9} | {limit: value}
    found = [Found("truncated", "a"), Found("same_pixels", "b", "c"), Found("two_splits", "p")]
    left = chosen([], {"s": "p"}, [Reject("x", "empty_report")])
    verdict = data_check.judge(left, {"opened": 5, "refused": 1}, found, CheckConfig(**allowed))
    assert verdict["unusable_share"] == pytest.approx(0.36)
    assert verdict["clean"] is clean


def test_an_empty_source_is_not_clean() -> None:
    verdict = data_check.judge(
        Selection([], {}, {}, [], 0, 0), {"opened": 0, "refused": 0}, [], CheckConfig()
    )
    assert not verdict["clean"]


def test_images_are_described_by_gate_and_header() -> None:
    row = {"source": "dicom", "bits_stored": 12, "inverted": True, "height_px": 5, "width_px": 9}
    row |= {"opened": True, "code": ""}
    other = row | {"bits_stored": 16, "inverted": False, "height_px": 7}
    refused = row | {"source": "", "inverted": False, "code": "truncated"}
    header = row | {"opened": False}
    assert data_check.describe_images([row, other, refused, header]) == {
        "looked": 4,
        "opened": 3,
        "refused": 1,
        "known": 3,
        "inverted": 2,
        "formats": {"dicom": 3},
        "bits": {"12": 2, "16": 1},
        "heights": [5, 5, 7],
        "widths": [9, 9, 9],
    }
