"""An image taken apart: whose it is, cleaned, and the rest, which answers as the whole does."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.filereader import read_dataset
from pydicom.tag import Tag

from hospital.tests.support.answers import CLEAN, radiograph
from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.dicom.reader import PIXEL_TAGS, PUBLIC_TAGS
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from tests.support.dicom import dicom_bytes, ramp

SETTINGS = ImagesConfig()


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
def test_the_bytes_of_a_name_stay(charset, name, kept, decoder):
    data = radiograph(SpecificCharacterSet=charset, PatientName=name)
    found = header_of(decoder, data)
    assert found.SpecificCharacterSet == kept
    raw = found.get_item("PatientName").value
    assert raw in data
    assert str(found.PatientName) == name


@pytest.mark.parametrize(
    ("written", "term", "codec"),
    [
        ("ISO IR 192", "ISO_IR 192", "utf-8"),
        ("ISO-IR 192", "ISO_IR 192", "utf-8"),
        ("ISO_IR_192", "ISO_IR 192", "utf-8"),
        ("ISO-IR-100", "ISO_IR 100", "latin-1"),
        ("iso_ir 100", "ISO_IR 100", "latin-1"),
        ("ISOIR100", "ISO_IR 100", "latin-1"),
        ("UTF-8", "ISO_IR 192", "utf-8"),
        ("utf8", "ISO_IR 192", "utf-8"),
        ("ISO-8859-1", "ISO_IR 100", "latin-1"),
        ("latin_1", "ISO_IR 100", "latin-1"),
        ("ISO-8859-9", "ISO_IR 148", "iso8859-9"),
        ("ISO-2022-IR-100", "ISO 2022 IR 100", "latin-1"),
        ("ISO_2022_IR_100", "ISO 2022 IR 100", "latin-1"),
        ("gb18030", "GB18030", "gb18030"),
        ("ISO_IR 999", "", "latin-1"),
        ("cp1252", "", "cp1252"),  # DICOM has no name for it
        ("ISO_IR", "", "utf-8"),
    ],
)
def test_a_character_set_has_dicom_s_name_or_the_image_is_refused(written, term, codec, decoder):
    name = "Müller^Jörg".encode(codec)
    data = radiograph(SpecificCharacterSet="ISO_IR 101", PatientName="PERSON")
    for place, value in ((b"ISO_IR 101", written.encode()), (b"PERSON", name)):
        value += b" " * (len(value) % 2)
        data = data.replace(
            len(place).to_bytes(2, "little") + place, len(value).to_bytes(2, "little") + value
        )
    if not term:
        with pytest.raises(ImageError, match="character_set"):
            decoder.separate(data)
        return
    header = header_of(decoder, data)
    assert header.SpecificCharacterSet == term
    assert header.get_item("PatientName").value.rstrip() == name
    assert str(header.PatientName) == "Müller^Jörg"


LITTLE, BIG = "little", "big"
SYNTAXES = {
    "explicit": (pydicom.uid.ExplicitVRLittleEndian, LITTLE),
    "implicit": (pydicom.uid.ImplicitVRLittleEndian, LITTLE),
    "deflated": (pydicom.uid.DeflatedExplicitVRLittleEndian, LITTLE),
    "big endian": (pydicom.uid.ExplicitVRBigEndian, BIG),
}


def table(
    order: str, form: str = "OW", bits: int = 16, first: int = 0, entries: int = 4096
) -> pydicom.Dataset:
    """A lookup table that is neither linear nor alike once its bytes are swapped."""
    values = (np.arange(entries, dtype=np.int64) ** 2 % (1 << bits)).astype(np.uint16)
    item = pydicom.Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [entries, first, bits])
    words = values.astype("<u2" if order == LITTLE else ">u2").tobytes()
    item.add_new("LUTData", form, words if form == "OW" else values.tolist())
    item.ModalityLUTType = "US"
    return item


TABLES: dict[str, dict[str, Any]] = {
    "words": {},
    "numbers": {"form": "US"},
    "8 bits": {"bits": 8},
    "8 bits, numbers": {"bits": 8, "form": "US"},
    "begins at 100": {"first": 100, "entries": 2000},
    "begins below 0": {"first": -500},
}


def outcome(source: Callable[[], bytes], decoder: Decoder) -> Any:
    """The picture with what is read besides, or the code of its refusal."""
    try:
        picture = decoder.open(source())
    except ImageError as error:
        return error.code
    facts = (picture.spacing_mm, picture.window, picture.inverted, picture.tags)
    return picture.pixels.tobytes(), facts


@pytest.fixture(scope="module")
def windowed() -> Iterator[Decoder]:
    with Decoder(ImagesConfig(voi="dicom"), 1) as decoder:
        yield decoder


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("sequence", ["ModalityLUTSequence", "VOILUTSequence"])
def test_what_is_sent_on_has_the_greys_of_the_file_whatever_its_tables(
    syntax: str, kind: str, sequence: str, decoder: Decoder, windowed: Decoder
) -> None:
    uid, order = SYNTAXES[syntax]
    pixels = ramp(96, 64).astype("<u2" if order == LITTLE else ">u2")
    if TABLES[kind].get("first", 0) < 0:
        pixels = (ramp(96, 64).astype(np.int16) - 500).astype("<i2" if order == LITTLE else ">i2")
    items = [table(order, **TABLES[kind]), table(order)]
    data = radiograph(pixels, syntax=uid, **{sequence: items})
    for reader in (decoder, windowed):
        whole = outcome(lambda: data, reader)
        assert whole == outcome(lambda reader=reader: reader.separate(data).stripped, reader)
        assert isinstance(whole, tuple)
    plain = radiograph(pixels, syntax=uid)
    changed = decoder if sequence.startswith("Mod") else windowed
    assert outcome(lambda: data, changed) != outcome(lambda: plain, changed)
    # a presentation state gets the same table, in little endian
    if "begins" not in kind:
        (copied,) = header_of(decoder, data)[sequence].value
        assert np.frombuffer(copied.LUTData, "<u2").tolist() == [
            number**2 % (1 << TABLES[kind].get("bits", 16)) for number in range(4096)
        ]


def written_out(group: int, number: int, kind: bytes, value: bytes) -> bytes:
    """An element in little endian; in implicit VR without a kind."""
    tag = group.to_bytes(2, "little") + number.to_bytes(2, "little")
    if kind in {b"SQ", b"OW", b"OB", b"UN"}:
        kind += b"\0\0"
    size = 2 if len(kind) == 2 else 4
    return tag + kind + len(value).to_bytes(size, "little") + value


DESCRIPTOR = np.array([4096, 0, 16], "<u2").tobytes()
WORDS = (np.arange(4096) ** 2 % 65536).astype("<u2").tobytes()
FORMS: dict[str, tuple[bytes, bytes, bytes, bytes, bytes]] = {
    "sequence of unknown kind": (b"UN", b"", DESCRIPTOR, b"", WORDS),
    "data of unknown kind": (b"SQ", b"US", DESCRIPTOR, b"UN", WORDS),
    "descriptor of unknown kind": (b"SQ", b"UN", DESCRIPTOR, b"OW", WORDS),
    "signed descriptor": (b"SQ", b"SS", DESCRIPTOR, b"OW", WORDS),
    "65,536 entries": (b"SQ", b"US", b"\0\0" + DESCRIPTOR[2:], b"OW", WORDS * 16),
    "too short": (b"SQ", b"US", DESCRIPTOR, b"OW", WORDS[:100]),
    "too long": (b"SQ", b"US", DESCRIPTOR, b"OW", WORDS + b"\0\0"),
    "bytes": (b"SQ", b"US", DESCRIPTOR, b"OB", WORDS),
    "half a descriptor": (b"SQ", b"US", DESCRIPTOR[:4], b"OW", WORDS),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [0x3000, 0x3010], ids=["modality", "VOI"])
def test_a_table_in_an_odd_form_is_sent_on_as_it_is(number, form, decoder, windowed):
    kind, of_descriptor, descriptor, of_data, values = FORMS[form]
    parts = written_out(0x28, 0x3002, of_descriptor, descriptor)
    parts += written_out(0x28, 0x3006, of_data, values)
    item = written_out(0xFFFE, 0xE000, b"", parts)
    data = radiograph()
    at = data.index(b"\xe0\x7f\x10\x00")
    data = data[:at] + written_out(0x28, number, kind, item) + data[at:]
    for reader in (decoder, windowed):
        stripped = outcome(lambda reader=reader: reader.separate(data).stripped, reader)
        assert stripped == outcome(lambda: data, reader)


NUMBERS: list[dict[str, Any]] = [
    {},
    {"photometric": "MONOCHROME1", "PixelSpacing": ["0", "0"]},
    {"WindowCenter": ["2000", "100"], "WindowWidth": ["800", "50"]},
    {"WindowCenter": "2000", "WindowWidth": "800", "VOILUTFunction": "SIGMOID"},
    {"WindowCenter": "x", "WindowWidth": "800"},
    {
        "RescaleSlope": "2.5",
        "RescaleIntercept": "-1024",
        "PixelPaddingValue": ("US", 0),
        "PixelPaddingRangeLimit": ("US", 40),
    },
    *(
        {"RescaleSlope": slope, "RescaleIntercept": intercept}
        for slope in ("1", "-1", "0", "nan", "inf", "x", "", "0.00012207406661688", "1e400")
        for intercept in ("0", "nan", "inf", "x", "")
    ),
    {"RescaleSlope": "nan"},
    {"RescaleIntercept": "nan"},
    {"RescaleIntercept": "x"},
    {"ModalityLUTSequence": []},
    {"ModalityLUTSequence": [pydicom.Dataset()]},
    {"ModalityLUTSequence": [table(LITTLE, bits=12)]},
    {"ModalityLUTSequence": [table(LITTLE, entries=4000)], "RescaleSlope": "x"},
    {"VOILUTSequence": []},
    *({"syntax": uid} for uid, order in SYNTAXES.values() if order == LITTLE),
]


@pytest.mark.parametrize("changes", NUMBERS, ids=str)
def test_what_is_sent_on_is_read_or_refused_as_the_file_is(changes, decoder):
    texts = {name: value for name, value in changes.items() if isinstance(value, str)}
    numbers = {name: ("SH", value) for name, value in texts.items() if name.startswith(("R", "W"))}
    data = radiograph(**(changes | numbers))
    for name in numbers:  # as decimal strings, whatever they say: pydicom would not write them
        tag = Tag(name)
        head = tag.group.to_bytes(2, "little") + tag.element.to_bytes(2, "little")
        data = data.replace(head + b"SH", head + b"DS")
    whole = outcome(lambda: data, decoder)
    stripped = outcome(lambda: decoder.separate(data).stripped, decoder)
    if isinstance(whole, str):
        assert isinstance(stripped, str)  # perhaps by another code
    else:
        assert stripped == whole


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
    spacings = {"PixelSpacing": ["0", "0"], "ImagerPixelSpacing": ["0.1", "0.2"]}
    found = header_of(decoder, radiograph(**spacings))
    assert "PixelSpacing" not in found
    assert found.ImagerPixelSpacing == [0.1, 0.2]


def test_pixels_alone_make_the_digest(decoder: Decoder) -> None:
    images = (radiograph(), radiograph(PatientID="another"), radiograph(ramp(96, 64)[::-1].copy()))
    first, same, other = (decoder.separate(data).header.pixel_digest for data in images)
    assert first == same != other


def test_an_image_with_text_in_its_pixels_is_refused_or_says_so(decoder: Decoder) -> None:
    data = radiograph(BurnedInAnnotation="Y")
    with pytest.raises(ImageError, match="burned_in"):
        decoder.separate(data)
    with Decoder(ImagesConfig(reject_burned_in=False), 1) as lenient:
        stripped = lenient.separate(data).stripped
    with pytest.raises(ImageError, match="burned_in"):
        decoder.open(stripped)


def test_an_image_without_ids_is_refused(decoder: Decoder) -> None:
    with pytest.raises(ImageError, match="no_identity"):
        decoder.separate(dicom_bytes(ramp()))
