import io
from dataclasses import replace

import numpy as np
import pydicom
import pytest

from medclip_dcl.data.images import open_image
from medclip_dcl.synthetic.patients import NATURAL, Item, Storage, draw_patient, quantize

ITEM = next(draw_patient(NATURAL, 0, 0).items())


def encode_image(storage: Storage) -> bytes:
    item: Item = replace(ITEM, image=replace(ITEM.image, storage=storage))
    return item.encode(ramp())


def ramp() -> np.ndarray:
    noise = np.random.default_rng(0).random((33, 47), dtype=np.float32)
    return (np.linspace(0, 0.9, 47, dtype=np.float32) + 0.1 * noise).astype(np.float32)


@pytest.mark.parametrize("bits", [12, 16])
def test_stored_values_survive(bits: int) -> None:
    storage = Storage(bits, False, 0.05, 0.95)
    pixels = pydicom.dcmread(io.BytesIO(encode_image(storage))).pixel_array
    assert np.array_equal(pixels, quantize(ramp(), storage))
    assert pixels.max() < 2**bits


def test_patients_of_another_seed_have_other_ids() -> None:
    ids = [
        {draw_patient(NATURAL, number, seed).subject_id for number in range(300)}
        for seed in (0, 1, 2)
    ]
    assert [len(found) for found in ids] == [300] * 3
    assert len(set.union(*ids)) == 900


def test_monochrome1_is_stored_inverted_and_the_gate_opens_it():
    plain, turned = Storage(12, False, 0, 1), Storage(12, True, 0, 1)
    assert np.array_equal(quantize(ramp(), turned), 4095 - quantize(ramp(), plain))
    dataset = pydicom.dcmread(io.BytesIO(encode_image(turned)))
    assert dataset.PhotometricInterpretation == "MONOCHROME1"
    images = [open_image(encode_image(Storage(16, inverted, 0, 1))) for inverted in (False, True)]
    assert images[0].source == "dicom"
    assert images[1].inverted
    difference = images[0].pixels.astype(int) - images[1].pixels.astype(int)
    assert np.abs(difference).max() <= 2
    assert images[0].pixels[:, -1].mean() > images[0].pixels[:, 0].mean()
