"""An image taken apart: whose it is, cleaned, and the rest, which answers as the whole does."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.filereader import read_dataset

from medclip_dcl.data.dicom.reader import PIXEL_TAGS, PUBLIC_TAGS
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import ImageError
from testing.dicom import dicom_bytes, ramp
from testing.hospital import CLEAN, radiograph

SETTINGS = ImagesConfig()


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with Decoder(SETTINGS, 1) as decoder:
        yield decoder


def header_of(decoder: Decoder, data: bytes) -> pydicom.Dataset:
    return read_dataset(io.BytesIO(decoder.separate(data).header.data_set), False, True)


def test_a_clean_header_is_copied_as_it_is(decoder: Decoder) -> None:
    found = header_of(decoder, radiograph())
    assert {name: str(found[name].value) for name in CLEAN} == {
        name: str(value) for name, value in CLEAN.items()
    }
    assert (found.Rows, found.Columns) == (96, 64)


@pytest.mark.parametrize(
    ("charset", "name", "kept"),
    [
        ("ISO_IR 100", "Müller^Jürgen", "ISO_IR 100"),
        ("ISO_IR 144", "Жданов", "ISO_IR 144"),
        ("ISO_IR 192", "Wang^XiaoDong=王^小東", "ISO_IR 192"),
        # highdicom raises on an empty first value, which is ordinary in Japan
        (
            ["", "ISO 2022 IR 87"],
            "Yamada^Tarou=山田^太郎=やまだ^たろう",
            ["ISO 2022 IR 6", "ISO 2022 IR 87"],
        ),
    ],
)
def test_the_bytes_of_a_name_stay(
    charset: str | list[str], name: str, kept: str | list[str], decoder: Decoder
) -> None:
    data = radiograph(SpecificCharacterSet=charset, PatientName=name)
    found = header_of(decoder, data)
    assert found.SpecificCharacterSet == kept
    raw = found.get_item("PatientName").value
    assert raw in data
    assert str(found.PatientName) == name


def test_a_name_in_an_unknown_character_set_is_refused(decoder: Decoder) -> None:
    data = radiograph(PatientName="Muster^Max").replace(b"Muster^Max", b"M\xfcster^Max")
    with pytest.raises(ImageError) as refused:
        decoder.separate(data.replace(b"ISO_IR 100", b"ISO_IR 999"))
    assert refused.value.code == "character_set"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"photometric": "MONOCHROME1", "PixelSpacing": ["0", "0"]},
        {"WindowCenter": ["2000", "100"], "WindowWidth": ["800", "50"]},
        {
            "RescaleSlope": "2.5",
            "RescaleIntercept": "-1024",
            "RescaleType": "US",
            "PixelPaddingValue": ("US", 0),
            "PixelPaddingRangeLimit": ("US", 40),
        },
        {"syntax": pydicom.uid.ImplicitVRLittleEndian},
        {"syntax": pydicom.uid.DeflatedExplicitVRLittleEndian},
    ],
    ids=str,
)
def test_a_stripped_image_is_the_same_picture(changes: dict[str, Any], decoder: Decoder) -> None:
    data = radiograph(**changes)
    whole, stripped = decoder.open(data), decoder.open(decoder.separate(data).stripped)
    assert np.array_equal(whole.pixels, stripped.pixels)
    facts = (whole.spacing_mm, whole.window, whole.inverted, whole.tags)
    assert facts == (stripped.spacing_mm, stripped.window, stripped.inverted, stripped.tags)


def test_real_images_stripped_are_the_same_pictures(test_data: Path, decoder: Decoder) -> None:
    compared = 0
    files = (test_data / "dicom" / "files").glob("*.dcm")
    for path in sorted(files, key=lambda path: path.stat().st_size)[:45]:  # the others take long
        try:
            whole, parts = decoder.open(path), decoder.separate(path)
        except ImageError:
            continue
        stripped = decoder.open(parts.stripped)
        assert np.array_equal(whole.pixels, stripped.pixels), path.name
        assert (whole.window, whole.tags) == (stripped.window, stripped.tags), path.name
        assert not any(word in parts.stripped for word in (b"PHISENT", b"PHIHID"))
        compared += 1
    assert compared > 20


def test_a_stripped_image_holds_no_identity(decoder: Decoder) -> None:
    lut = pydicom.Dataset()
    lut.LUTDescriptor, lut.LUTExplanation = [4096, 0, 16], "for Canary"
    lut.add_new("LUTData", "OW", np.arange(4096, dtype="<u2").tobytes())
    lut.ModalityLUTType = "US"
    lut.add_new(0x00091001, "LO", "Canary")
    data = radiograph(
        **dict.fromkeys(("PatientID", "PatientName", "InstitutionName"), "Canary"),
        BodyPartExamined="Canary, M",
        VOILUTSequence=[lut],
        ModalityLUTSequence=[lut],
    )
    stripped = decoder.separate(data + b"\xfa\xff\xfa\xffSQ Canary").stripped
    assert b"Canary" not in stripped
    found = pydicom.dcmread(io.BytesIO(stripped))
    assert {element.keyword for element in found} <= {*PUBLIC_TAGS, *PIXEL_TAGS, "PixelData"}
    assert {item.keyword for item in found.ModalityLUTSequence[0]} == {"LUTDescriptor", "LUTData"}


def test_a_spacing_of_zero_is_left_out(decoder: Decoder) -> None:
    """Viewers show an image with such a spacing black, and so whatever copies it."""
    found = header_of(
        decoder, radiograph(PixelSpacing=["0", "0"], ImagerPixelSpacing=["0.1", "0.2"])
    )
    assert "PixelSpacing" not in found
    assert found.ImagerPixelSpacing == [0.1, 0.2]


def test_pixels_alone_make_the_digest(decoder: Decoder) -> None:
    digests = [
        decoder.separate(data).header.pixel_digest
        for data in (
            radiograph(),
            radiograph(PatientID="another"),
            radiograph(ramp(96, 64)[::-1].copy()),
        )
    ]
    assert digests[0] == digests[1] != digests[2]


def test_an_image_without_ids_is_refused(decoder: Decoder) -> None:
    with pytest.raises(ImageError) as refused:
        decoder.separate(dicom_bytes(ramp()))
    assert refused.value.code == "no_identity"
