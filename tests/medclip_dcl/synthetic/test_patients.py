import io
from dataclasses import replace

import numpy as np
import pydicom
import pytest

from medclip_dcl.data.images import open_image
from medclip_dcl.synthetic.patients import draw_patient, quantize

RAMP = np.tile(np.linspace(0, 1, 47, dtype=np.float32), (33, 1))


def encoded(bits: int, *, is_inverted: bool) -> bytes:
    return replace(draw_patient(0, 0)[0], bits=bits, is_inverted=is_inverted).encode(RAMP)


@pytest.mark.parametrize("bits", [12, 16])
def test_stored_values_survive(bits: int) -> None:
    pixels = pydicom.dcmread(io.BytesIO(encoded(bits, is_inverted=False))).pixel_array
    assert np.array_equal(pixels, quantize(RAMP, bits, is_inverted=False))
    assert (pixels.min(), pixels.max()) == (0, 2**bits - 1)


def test_patients_of_another_seed_have_other_ids() -> None:
    ids = [
        {draw_patient(number, seed)[0].study.subject_id for number in range(300)}
        for seed in (0, 1, 2)
    ]
    assert [len(found) for found in ids] == [300] * 3
    assert len(set.union(*ids)) == 900


def test_monochrome1_is_stored_inverted_and_the_gate_opens_it():
    inverted = encoded(12, is_inverted=True)
    dataset = pydicom.dcmread(io.BytesIO(inverted))
    assert dataset.PhotometricInterpretation == "MONOCHROME1"
    assert np.array_equal(dataset.pixel_array, 4095 - quantize(RAMP, 12, is_inverted=False))
    images = [open_image(file) for file in (encoded(12, is_inverted=False), inverted)]
    assert images[0].source == "dicom"
    assert images[1].inverted
    difference = images[0].pixels.astype(int) - images[1].pixels.astype(int)
    assert np.abs(difference).max() <= 2
    assert images[0].pixels[:, -1].mean() > images[0].pixels[:, 0].mean()
