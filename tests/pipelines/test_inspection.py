"""Inspection: images are opened by the gate, reports are read once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.records import ImageRecord, Text
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.mimic_sections import Part
from medclip_dcl.text.sections import cut_report
from medclip_dcl.text.sentences import SentencesConfig
from pipelines.check_data import (
    UNNAMED,
    count_labels,
    describe_images,
    describe_report,
    inspect_image,
    mark_report,
    read_reports,
)
from tests.support.dicom import dicom_bytes, ramp


def test_images_are_described_by_the_gate() -> None:
    row = {"source": "dicom", "bits_stored": 12, "inverted": True, "height_px": 5, "width_px": 9}
    row |= {"code": "", "ignored": "EXIF"}
    other = row | {
        "bits_stored": 16,
        "inverted": False,
        "height_px": 7,
        "ignored": "EXIF PixelSpacing",
    }
    refused = row | {"source": "", "inverted": False, "code": "truncated"}
    assert describe_images([row, other, refused, row]) == {
        "opened": 4,
        "refused": 1,
        "inverted": 2,
        "formats": {"dicom": 3},
        "ignored": {"EXIF": 3, "PixelSpacing": 1},
        "bits": {"12": 2, "16": 1},
        "heights": [5, 5, 7],
        "widths": [9, 9, 9],
    }


def test_the_same_picture_has_one_key_however_it_is_stored(tmp_path: Path) -> None:
    pixels = ramp(40, 50)
    files = {
        "plain": dicom_bytes(pixels, PixelSpacing=["0", "0"]),
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
    assert (rows["plain"]["ignored"], rows["other"]["ignored"]) == ("PixelSpacing", "")
    assert (rows["plain"]["height_px"], rows["plain"]["width_px"]) == (40, 50)
    assert (rows["flat"]["code"], rows["flat"]["pixels_key"]) == ("constant", "")
    assert (rows["cut"]["code"], rows["cut"]["source"], rows["cut"]["bits_stored"]) == (
        "truncated",
        "",
        None,
    )


def parts_in(texts: dict[str, Text]) -> Callable[[str], list[Part]]:
    return lambda study: [
        Part(name, "", body, name) for name, body in texts[study]._asdict().items() if body
    ]


def test_reports_are_read_once_and_their_answers_counted(tmp_path: Path) -> None:
    texts = {
        "both": Text("There is a left pleural effusion. Compared to ___.", "No pneumothorax.", ""),
        "hidden": Text("XXXX.", "", ""),
        "normal": Text("No acute process. The lungs are clear.", "", ""),
    }
    read = read_reports(tmp_path, texts, parts_in(texts), SentencesConfig())
    assert {study: row["kept"] for study, row in read.items()} == {
        "both": 3,
        "hidden": 0,
        "normal": 2,
    }
    labels = count_labels(None, texts, read.values())
    assert (labels["source"], labels["studies"]) == ("reports", 3)
    assert tuple(labels["findings"]) == LABELS
    assert labels["findings"]["Pleural Effusion"]["present"] == 1
    assert labels["findings"]["Pneumothorax"] == {"present": 0, "absent": 1, "uncertain": 0}
    assert labels["findings"]["No Finding"]["present"] == 1


def test_what_one_section_asserts_no_other_takes_back() -> None:
    report = "FINDINGS: There is pneumonia.\nIMPRESSION: No pneumonia. Possible edema. No edema."
    said = describe_report(cut_report(report), ["findings", "impression"])["said"]
    assert said == {"Pneumonia": "present", "Edema": "uncertain"}


def test_every_character_of_a_report_is_marked_with_what_is_done_with_it() -> None:
    report = "XR\nHISTORY: Old left effusion.\nFINDINGS: Clear lungs. 2. Unchanged.\nABC:\nx"
    pieces = mark_report(cut_report(report), ["findings", "impression"])
    assert "".join(piece.text for piece in pieces) == report
    assert [(piece.text, piece.reason) for piece in pieces if piece.reason and piece.text] == [
        ("XR\n", UNNAMED),
        (" Old left effusion.\n", "history"),
        ("2. Unchanged.", "short"),
    ]
    row = describe_report(cut_report(report), ["findings"])
    assert row["dropped"] == {UNNAMED: 2, "history": 16, "short": 12}
    assert (row["characters"], row["language"]) == (len("".join(report.split())), "en")
