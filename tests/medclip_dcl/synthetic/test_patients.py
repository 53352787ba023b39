import io
from dataclasses import replace

import imagecodecs
import numpy as np
import pydicom
import pytest
from pydicom.encaps import generate_frames

from medclip_dcl.data.images import open_image
from medclip_dcl.synthetic.patients import NATURAL, Item, Storage, draw_patient, quantize

ITEM = next(draw_patient(NATURAL, 0, 0).items())
DECODERS = {
    "jpeg2000": imagecodecs.jpeg2k_decode,
    "jpegls": imagecodecs.jpegls_decode,
    "jpeg_lossless": imagecodecs.ljpeg_decode,
}


def encode_image(storage: Storage) -> bytes:
    item: Item = replace(ITEM, image=replace(ITEM.image, storage=storage))
    return item.encode(ramp())


def ramp() -> np.ndarray:
    noise = np.random.default_rng(0).random((33, 47), dtype=np.float32)
    return (np.linspace(0, 0.9, 47, dtype=np.float32) + 0.1 * noise).astype(np.float32)


@pytest.mark.parametrize("syntax", ["native", "rle", "jpeg2000", "jpegls", "jpeg_lossless"])
@pytest.mark.parametrize("bits", [12, 16])
def test_stored_values_survive_every_syntax(syntax: str, bits: int) -> None:
    storage = Storage(16 if syntax == "jpegls" else bits, False, syntax, 0.05, 0.95)
    dataset = pydicom.dcmread(io.BytesIO(encode_image(storage)))
    if syntax in DECODERS:
        frame = next(generate_frames(dataset.PixelData, number_of_frames=1))
        pixels = DECODERS[syntax](frame)
    else:
        pixels = dataset.pixel_array
    assert np.array_equal(pixels, quantize(ramp(), storage))
    assert pixels.max() < 2**storage.bits


def test_patients_of_another_seed_have_other_ids() -> None:
    ids = [
        {draw_patient(NATURAL, number, seed).subject_id for number in range(300)}
        for seed in (0, 1, 2)
    ]
    assert [len(found) for found in ids] == [300] * 3
    assert len(set.union(*ids)) == 900


def test_monochrome1_is_stored_inverted() -> None:
    plain, turned = Storage(12, False, "native", 0, 1), Storage(12, True, "native", 0, 1)
    assert np.array_equal(quantize(ramp(), turned), 4095 - quantize(ramp(), plain))
    dataset = pydicom.dcmread(io.BytesIO(encode_image(turned)))
    assert dataset.PhotometricInterpretation == "MONOCHROME1"


@pytest.mark.parametrize("syntax", ["native", "rle", "jpeg2000", "jpegls", "jpeg_lossless"])
def test_the_gate_opens_what_the_generator_writes(syntax: str) -> None:
    images = [
        open_image(encode_image(Storage(16, inverted, syntax, 0, 1))) for inverted in (False, True)
    ]
    assert images[0].source == "dicom"
    assert images[1].inverted
    difference = images[0].pixels.astype(int) - images[1].pixels.astype(int)
    assert np.abs(difference).max() <= 2
    assert images[0].pixels[:, -1].mean() > images[0].pixels[:, 0].mean()
