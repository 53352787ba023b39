"""Counts and verdicts of the check, by hand."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fixtures.dicom import dicom_bytes, ramp
from medclip_dcl.data import data_check, selection
from medclip_dcl.data.boxes import BoxTable
from medclip_dcl.data.data_check import (
    CheckConfig,
    Found,
    Inspection,
    count_labels,
    describe_report,
    inspect_image,
    pixels_key,
    read_reports,
)
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.selection import Selection
from medclip_dcl.data.sources.readers import Source
from medclip_dcl.data.sources.records import ImageRecord, RawStudies, Reject, Study, Text
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import SentencesConfig

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
    look = Inspection(source, chosen(listed, {}, []), split_of, rows, {}, ())
    found, repeats = data_check.find_faults(look)
    return set(found), repeats


def test_repeats_are_grouped_and_all_but_the_first_are_named() -> None:
    found, repeats = repeats_of({"d": "k", "b": "k", "a": "k", "c": "other"})
    assert found == {
        Found("same_pixels", "b", "a"),
        Found("same_pixels", "d", "a"),
        Found("pixels_across_splits", "b", "d"),
        Found("pixels_across_splits", "d", "a"),
    }
    assert repeats["pixels"] == {
        "groups": 1,
        "extra": 2,
        "across_patients": 1,
        "across_splits": 1,
    }


def test_a_picture_in_two_splits_is_named_with_the_other_side() -> None:
    assert repeats_of({"a": "k", "b": "k"})[0] == {Found("same_pixels", "b", "a")}
    assert Found("pixels_across_splits", "d", "c") in repeats_of({"c": "k", "d": "k"})[0]


def test_images_that_do_not_open_repeat_nothing() -> None:
    assert repeats_of({"a": "", "b": ""})[0] == set()


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
    codes = [*selection.REJECT_REASONS, *data_check.CODES]
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
        Selection([], {}, {}, [], 0, 0, Counter()), {"opened": 0, "refused": 0}, [], CheckConfig()
    )
    assert not verdict["clean"]


def test_images_are_described_by_the_gate() -> None:
    row = {"source": "dicom", "bits_stored": 12, "inverted": True, "height_px": 5, "width_px": 9}
    row |= {"code": ""}
    other = row | {"bits_stored": 16, "inverted": False, "height_px": 7}
    refused = row | {"source": "", "inverted": False, "code": "truncated"}
    assert data_check.describe_images([row, other, refused, row], 6) == {
        "listed": 6,
        "opened": 4,
        "refused": 1,
        "inverted": 2,
        "formats": {"dicom": 3},
        "bits": {"12": 2, "16": 1},
        "heights": [5, 5, 7],
        "widths": [9, 9, 9],
    }


def test_the_same_picture_has_one_key_however_it_is_stored(tmp_path: Path) -> None:
    pixels = ramp(40, 50)
    files = {
        "plain": dicom_bytes(pixels),
        "inverse": dicom_bytes(pixels.max() - pixels, PhotometricInterpretation="MONOCHROME1"),
        "other": dicom_bytes(np.ascontiguousarray(pixels[:, ::-1])),
        "flat": dicom_bytes(np.full_like(pixels, 7)),
        "cut": dicom_bytes(pixels)[:-100],
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with Decoder(ImagesConfig(), 1) as decoder:
        rows = {
            name: inspect_image(ImageRecord(name, "s", "p", "PA", name), tmp_path, decoder)
            for name in files
        }
    assert rows["plain"]["pixels_key"] == rows["inverse"]["pixels_key"] != ""
    assert rows["other"]["pixels_key"] not in {"", rows["plain"]["pixels_key"]}
    assert [rows[name]["inverted"] for name in files] == [False, True, False, False, False]
    assert (rows["plain"]["height_px"], rows["plain"]["width_px"]) == (40, 50)
    assert (rows["flat"]["code"], rows["flat"]["pixels_key"]) == ("constant", "")
    assert (rows["cut"]["code"], rows["cut"]["source"], rows["cut"]["bits_stored"]) == (
        "truncated",
        "",
        None,
    )


def test_the_key_depends_on_the_shape() -> None:
    pixels = np.arange(12, dtype=np.uint16)
    assert pixels_key(pixels.reshape(3, 4)) != pixels_key(pixels.reshape(4, 3))


def test_reports_are_read_once_and_their_answers_counted(tmp_path: Path) -> None:
    texts = {
        "both": Text("There is a left pleural effusion. Compared to ___.", "No pneumothorax.", ""),
        "hidden": Text("XXXX.", "", ""),
        "normal": Text("No acute process. The lungs are clear.", "", ""),
    }
    found = read_reports(tmp_path, texts, SentencesConfig(), 0, 1)
    assert {study: row["kept"] for study, row in found.items()} == {
        "both": 3,
        "hidden": 0,
        "normal": 2,
    }
    labels = count_labels(None, texts, found.values())
    assert (labels["source"], labels["studies"]) == ("reports", 3)
    assert tuple(labels["findings"]) == LABELS
    assert labels["findings"]["Pleural Effusion"]["present"] == 1
    assert labels["findings"]["Pneumothorax"] == {"present": 0, "absent": 1, "uncertain": 0}
    assert labels["findings"]["No Finding"]["present"] == 1
    sample = tmp_path / "sample"
    sample.mkdir()
    assert set(read_reports(sample, texts, SentencesConfig(), 2, 1)) < set(texts)


def test_what_one_section_asserts_no_other_takes_back() -> None:
    sections = ["There is pneumonia", "No pneumonia. Possible edema.", "No edema."]
    said = describe_report(sections, SentencesConfig())["said"]
    assert said == {"Pneumonia": "present", "Edema": "uncertain"}
