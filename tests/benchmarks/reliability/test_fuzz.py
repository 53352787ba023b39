"""The fuzzer counts what comes out of the gate, and calls nothing sound that is not."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.reliability import fuzz
from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from tests.support.dicom import dicom_bytes, ramp


class Answering(Decoder):
    """A gate whose answer is given beforehand."""

    def __init__(self, answer: GreyImage | Exception) -> None:
        self.answer = answer

    def open(self, source: Path | bytes) -> GreyImage:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ImageError("truncated", "cut"), "truncated"),
        (ImageError("no such code", "?"), "escape: code no such code"),
        (RuntimeError("a decoder's own"), "escape: RuntimeError"),
        (GreyImage(np.full((2, 2), 7, np.uint16), 16, "png"), "escape: not a picture"),
        (GreyImage(np.array([[0, 65535]], np.uint16), 16, "png"), "image"),
        (GreyImage(np.zeros((2, 2), np.uint16), 16, "png", constant=True), "image"),
    ],
)
def test_only_a_typed_refusal_or_a_picture_is_no_escape(answer, reason):
    assert fuzz.ask(Answering(answer), b"").reason == reason


def test_image_that_behaves_otherwise_is_astray(tmp_path: Path) -> None:
    (tmp_path / "eq_sound.dcm").write_bytes(dicom_bytes(ramp()))
    (tmp_path / "cut.dcm").write_bytes(dicom_bytes(ramp())[:900])
    rows = "file,expect\neq_sound.dcm,error\ncut.dcm,decode_or_error\n"
    (tmp_path / "manifest.csv").write_text(rows)
    with Decoder(ImagesConfig(), 1) as decoder:
        found = fuzz.try_manifest(decoder, tmp_path)
    assert (found["manifest_rows"], found["manifest_astray"]) == (2, 1)
    assert found["manifest_encodings_equal"] == 1
