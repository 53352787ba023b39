"""Inspection: images are opened by the gate, reports are read once."""

from pathlib import Path

import numpy as np

from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.records import ImageRecord
from medclip_dcl.text.sections import cut_report
from pipelines.check_data import (
    UNNAMED,
    describe_report,
    inspect_image,
    mark_report,
)
from tests.support.dicom import dicom_bytes, ramp


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
