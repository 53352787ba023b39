"""The fuzzer counts what comes out of the gate, calls nothing sound that is not, and repeats."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.reliability import fuzz
from benchmarks.reliability.mutants import pick, read_seed
from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import Decoder


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
    assert fuzz.ask(Answering(answer), b"")[0] == reason


def test_a_number_names_a_mutant_for_good() -> None:
    seeds = [read_seed(data) for data in (*fuzz.dicom_seeds(), *fuzz.raster_seeds())]
    first = [pick(seeds, "run", number) for number in range(40)]
    assert first == [pick(seeds, "run", number) for number in range(40)]
    assert first != [pick(seeds, "another run", number) for number in range(40)]
    assert len(set(first)) > 35
