"""DICOM files: what tags and pixels say of a picture, what is refused, and whose it is."""

import io
import struct
import time
from pathlib import Path

import imagecodecs
import numpy as np
import pydicom
import pytest
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.pixels.processing import apply_rescale, apply_windowing
from pydicom.tag import Tag

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.dicom import metadata, reader
from medclip_dcl.data.dicom.reader import read_dicom
from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import ImagesConfig
from tests.support import dicom
from tests.support.dicom import dicom_bytes, ramp, refusal, scaled

IMPLICIT, EXPLICIT, MPEG2 = (f"1.2.840.10008.1.2{tail}" for tail in ("", ".1", ".4.100"))


def test_an_image_spans_the_whole_scale_and_has_its_facts():
    file = dicom_bytes(ramp() + 100, bits_stored=13, PixelSpacing=["0.2", "0.1"])
    image = open_image(file)
    assert image.pixels.dtype == np.uint16
    assert np.array_equal(image.pixels, scaled(ramp()))
    assert (image.bits_stored, image.source, image.inverted) == (13, "dicom", False)
    assert (image.tags["ViewPosition"], image.spacing_mm) == ("PA", (0.2, 0.1))
    image = open_image(dicom_bytes(np.full((8, 8), 77, dtype=np.uint16)))
    assert image.constant
    assert not image.pixels.any()


def test_monochrome1_shows_the_same_picture_and_padding_is_black():
    stored = ramp()
    turned = open_image(dicom_bytes(4095 - stored, photometric="MONOCHROME1"))
    assert turned.inverted
    assert np.array_equal(turned.pixels, scaled(stored))
    padded = stored.astype(np.int16)
    padded[:5] = -2000
    half = np.where(padded < 0, -2048, stored // 2).astype(np.int16)
    for words, bits, tag, expected in (
        (padded, 16, ("SS", -2000), stored),
        (padded, 16, ("US", 63536), stored),  # writers mix up the sign
        (padded.view(np.uint16), 16, ("US", 63536), stored),
        (half, 12, ("US", 2048), stored // 2),
    ):
        image = open_image(dicom_bytes(words, bits_stored=bits, PixelPaddingValue=tag))
        assert not image.pixels[:5].any()
        assert np.array_equal(image.pixels[5:], scaled(expected[5:]))


ICON = Dataset()
ICON.Rows = ICON.Columns = 8
ICON.BitsAllocated, ICON.SamplesPerPixel = 8, 1
ICON.PhotometricInterpretation = "MONOCHROME1"
ICON.add_new("PixelData", "OB", bytes(64))


@pytest.mark.parametrize(
    "file",
    [
        dicom_bytes(ramp(), syntax=dicom.DEFLATED),
        dicom_bytes(ramp() | np.uint16(0x8000)),  # an overlay
        dicom_bytes(ramp() << np.uint16(4), HighBit=15),
        dicom_bytes(ramp().astype(np.int16) - 1024, bits_stored=16, RescaleIntercept="1024"),
        dicom_bytes(ramp()).replace(b"\xe0\x7f\x10\x00OW", b"\xe0\x7f\x10\x00UN"),
        dicom_bytes(ramp(), NumberOfFrames="1").replace(b"IS\x02\x001 ", b"IS\0\0"),
        dicom_bytes(ramp(), IconImageSequence=[ICON]),
    ],
    ids=["deflated", "overlay", "bits above others", "signed", "UN", "no number of frames", "icon"],
)
def test_the_picture_is_that_of_the_stored_intensities(file: bytes) -> None:
    image = open_image(file)
    assert np.array_equal(image.pixels, scaled(ramp()))
    assert not image.inverted


WINDOW = {"WindowCenter": "1000", "WindowWidth": "500"}
RESCALE = {"RescaleSlope": "2", "RescaleIntercept": "-1024"}
WINDOWS, RESCALES = " ".join(WINDOW), " ".join(RESCALE)
NO_CENTRES = ("nan", "n/a", "99999")  # the last is outside the range
NO_WIDTHS = ("0", "-100", ".5", "nan", "inf", "n/a", "0\\-1")
APPLIED = ImagesConfig(voi="dicom")


def as_written(**tags: object) -> bytes:
    """A file with values of any text, which pydicom would not write into a number."""
    texts = {name: ("LO", x) if isinstance(x, str) else x for name, x in tags.items()}
    file = dicom_bytes(ramp(), **texts)
    for name in tags:
        tag = struct.pack("<HH", Tag(name).group, Tag(name).element)
        file = file.replace(tag + b"LO", tag + dictionary_VR(name).encode()[:2])
    return file


def test_a_window_is_a_note_unless_it_is_asked_for_and_the_first_of_several_counts():
    several = as_written(WindowCenter="0\\x\\1000\\9", WindowWidth="0\\5\\500")
    for data in (dicom_bytes(ramp(), **WINDOW), several):
        noted, applied = (read_dicom(data, settings) for settings in (ImagesConfig(), APPLIED))
        assert noted.facts["window"] == pytest.approx((1000 / 4095 * 65535, 500 / 4095 * 65535))
        assert np.array_equal(noted.shades.pixels, scaled(ramp()))
        assert applied.facts["window"] is None
        assert not applied.shades.pixels[ramp() < 740].any()
        assert (applied.shades.pixels[ramp() > 1260] == 65535).all()


BROKEN_TABLE = Dataset()
BROKEN_TABLE.LUTDescriptor, BROKEN_TABLE.ModalityLUTType = [4096, 0, 16], "US"
BROKEN_TABLE.add_new("LUTData", "OW", bytes(8))


@pytest.mark.parametrize(
    ("tags", "ignored"),
    [
        *(({**WINDOW, "WindowWidth": width}, WINDOWS) for width in NO_WIDTHS),
        *(({**WINDOW, "WindowCenter": centre}, WINDOWS) for centre in NO_CENTRES),
        ({"WindowWidth": "", "WindowCenter": "40"}, "WindowCenter"),
        ({"WindowCenter": "40"}, "WindowCenter"),
        ({"WindowCenter": "", "WindowWidth": "", "VOILUTFunction": ""}, ""),
        ({"VOILUTFunction": "LINEAR_EX"}, "VOILUTFunction"),
        ({"VOILUTSequence": [Dataset()]}, "VOILUTSequence"),
        ({"VOILUTSequence": [BROKEN_TABLE]}, "VOILUTSequence"),
        ({"ModalityLUTSequence": []}, ""),
        ({"RescaleSlope": "", "RescaleIntercept": ""}, ""),
        ({"RescaleSlope": "1"}, ""),
        ({**RESCALE, "RescaleSlope": "2,5"}, ""),
        ({**WINDOW, **RESCALE, "RescaleSlope": "0"}, f"{RESCALES} {WINDOWS}"),
        *(({**RESCALE, "RescaleSlope": slope}, RESCALES) for slope in ("nan", "1e308", "1\\2")),
        ({**RESCALE, "RescaleIntercept": "n/a"}, RESCALES),
        ({"PixelPaddingValue": "none"}, "PixelPaddingValue"),
        ({"PixelPaddingValue": ("US", [0, 1])}, "PixelPaddingValue"),
        ({"PixelSpacing": ["0", "0"]}, "PixelSpacing"),
        ({"ImagerPixelSpacing": "nan\\1", "PixelSpacing": ["0.2", "0.1"]}, "ImagerPixelSpacing"),
        ({"PatientBirthDate": "31.12.1960", "PatientAge": "old", "StudyTime": "noon"}, ""),
    ],
    ids=str,
)
def test_an_optional_attribute_that_cannot_be_used_is_left_aside_and_named(tags, ignored):
    read = read_dicom(as_written(**tags), APPLIED)
    assert np.array_equal(read.shades.pixels, scaled(ramp()))
    assert read.facts["ignored"] == tuple(ignored.split())


@pytest.mark.parametrize("bits", [8, 10, 12, 16])
@pytest.mark.parametrize("name", ["ModalityLUTSequence", "VOILUTSequence"])
def test_entries_of_a_table_have_any_bits_and_those_of_8_may_be_packed(name, bits):
    table, words = Dataset(), (np.arange(4096)[::-1] >> max(0, 12 - bits)).astype("<u2")
    table.LUTDescriptor, table.ModalityLUTType = [4096, 0, bits], "US"
    for entries in (words, words.astype(np.uint8)) if bits == 8 else (words,):
        table.add_new("LUTData", "OW", entries.tobytes())
        file = dicom_bytes(ramp(), **{name: [table]})
        pixels = read_dicom(file, APPLIED).shades.pixels
        assert np.array_equal(pixels, scaled(words[ramp()]))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID", "", None])
@pytest.mark.parametrize(("centre", "width"), [(1500, 700), (-200, 1), (2047.5, 4096)])
def test_a_window_is_applied_as_pydicom_does(function, centre, width):
    tags = {"WindowCenter": str(centre), "WindowWidth": str(width), **RESCALE}
    tags |= {} if function is None else {"VOILUTFunction": function}
    data = dicom_bytes(ramp(), **tags)
    reference = pydicom.dcmread(io.BytesIO(data))
    reference.VOILUTFunction = function or "LINEAR"
    with np.errstate(over="ignore"):
        expected = apply_windowing(apply_rescale(reference.pixel_array, reference), reference)
    pixels = read_dicom(data, APPLIED).shades.pixels
    assert np.abs(pixels.astype(int) - scaled(expected)).max() <= 1


def rle_header(*starts: int) -> bytes:
    """The header of a frame of two segments that start there (PS3.5, G.5)."""
    return struct.pack("<16I", 2, *starts, *[0] * 13)


STREAM = imagecodecs.jpegls_encode(ramp())
NOT_IN_THE_FRAME = [(64, 2**31), (64, 76), (64, 64), (70, 64), (63, 70)]


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"Rows": 0}, "bad_tags"),
        ({"photometric": "MONOCHROME3"}, "bad_tags"),
        ({"photometric": "PALETTE COLOR"}, "not_greyscale"),
        ({"SamplesPerPixel": 3}, "not_greyscale"),
        ({"HighBit": 3}, "bad_tags"),
        ({"syntax": MPEG2, "frame": b"\0" * 64}, "transfer_syntax"),
        ({"ModalityLUTSequence": [BROKEN_TABLE]}, "bad_intensities"),
        ({"ModalityLUTSequence": [Dataset()]}, "bad_intensities"),
        ({"Rows": 20}, "size_mismatch"),
        ({"padding": ramp().tobytes()}, "size_mismatch"),
        ({"padding": 2 * ramp()[::-1].tobytes()}, "size_mismatch"),
        ({"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}, "size_mismatch"),
        ({"syntax": dicom.JPEG_LS, "frame": STREAM, "Rows": 41}, "size_mismatch"),
        ({"syntax": dicom.JPEG_LS, "frame": STREAM[:-400]}, "truncated"),
        ({"syntax": dicom.BASELINE, "frame": STREAM}, "corrupt"),
        *(
            ({"syntax": dicom.RLE, "frame": (rle_header(*starts) + bytes(12))[:size]}, "corrupt")
            for starts in NOT_IN_THE_FRAME
            for size in (12, 76)
        ),
    ],
)
def test_headers_that_leave_greys_unknown_or_that_pixels_disagree_with_are_refused(tags, reason):
    assert refusal(dicom_bytes(ramp(), **tags)) == reason


@pytest.mark.parametrize("syntax", [IMPLICIT, dicom.BIG_ENDIAN, EXPLICIT])
@pytest.mark.parametrize(("kind", "top"), [(np.uint8, 255), (np.uint16, 4095)])
@pytest.mark.parametrize(
    "padding", [b"\0\0", b"\xff" * 4, bytes(range(256)) * 3, bytes(100_000)], ids=len
)
def test_padding_behind_native_pixels_is_cut_off(syntax, kind, top, padding) -> None:
    """DICOM PS3.5, 8.1.1; four tests of pydicom's `test_decoders_base.py` ask the same."""
    image = ramp(31, 47, top).astype(kind)
    file = dicom_bytes(image, syntax=syntax, padding=b"\0" * (image.nbytes % 2) + padding)
    if kind == np.uint8 and syntax == dicom.BIG_ENDIAN:
        file = file.replace(b"OW", b"OB")
    assert np.array_equal(open_image(file).pixels, scaled(image))


SIGNED = np.linspace(-2048, 2047, 40 * 50).round().astype(np.int16).reshape(40, 50)
SAME_BITS = (SIGNED & 4095).astype(np.uint16)
WIDE = ramp(top=60_000)


def jpeg2000(samples: np.ndarray, precision: int = 16, form: str = "j2k") -> bytes:
    """A lossless stream whose samples have so many bits."""
    options = {"codecformat": form, "level": 0, "bitspersample": precision}
    return bytes(imagecodecs.jpeg2k_encode(samples, **options))


def bits_of(image: np.ndarray) -> int:
    return int(image.max()).bit_length()


@pytest.mark.parametrize(
    ("samples", "precision", "sign", "stored", "expected"),
    [
        (SIGNED, 12, 0, 12, SIGNED),
        (SIGNED, 16, 0, 12, SIGNED),
        (SIGNED, 12, 0, 16, SIGNED),
        (SIGNED, 16, 1, 12, SIGNED),
        (SAME_BITS, 12, 1, 12, SIGNED),
        (SAME_BITS, 16, 1, 12, SIGNED),
        (SAME_BITS, 12, 1, 16, SIGNED),
        # more bits than the header names
        (WIDE, 16, 0, 12, WIDE),
        (ramp(), 12, 0, 10, ramp()),
        (2 * SIGNED, 16, 0, 12, SIGNED),
        (2 * SIGNED, 16, 1, 12, SIGNED),
        (ramp().astype(np.int16), 16, 0, 12, ramp()),
    ],
)
def test_sign_and_bits_are_the_stream_s_own(samples, precision, sign, stored, expected) -> None:
    """Where the header says something else."""
    tags = {"PixelRepresentation": sign, "BitsStored": stored, "HighBit": stored - 1}
    file = dicom_bytes(ramp(), syntax=dicom.J2K, frame=jpeg2000(samples, precision), **tags)
    assert np.abs(open_image(file).pixels.astype(int) - scaled(expected)).max() <= 1


@pytest.mark.parametrize(
    ("syntax", "encode"),
    [
        (dicom.SV1, lambda image: imagecodecs.ljpeg_encode(image, bitspersample=bits_of(image))),
        (dicom.JPEG_LS, imagecodecs.jpegls_encode),
        (dicom.J2K, lambda image: jpeg2000(image, bits_of(image))),
        (dicom.J2K, lambda image: jpeg2000(image, bits_of(image), "jp2")),
    ],
)
def test_lossless_streams_give_the_native_picture_whatever_is_allocated(syntax, encode) -> None:
    small = np.zeros(WIDE.shape, np.uint8)
    for image, header in ((ramp(), ramp()), (WIDE, small)):
        file = dicom_bytes(header, syntax=syntax, frame=bytes(encode(image)))
        assert np.array_equal(open_image(file).pixels, scaled(image))


@pytest.mark.parametrize("padding", [b"\0", b"\0" * 9, b"\x80" * 4, b"\x81\7" * 3])
def test_padding_of_rle_segments_is_cut_off(padding: bytes) -> None:
    """pydicom's `test_decoders_pydicom.py` reads segments that unpack to more than a plane."""
    bytes_of = ((ramp() >> shift).astype(np.uint8).ravel() for shift in (8, 0))
    high, low = (bytes(imagecodecs.packbits_encode(plane)) + padding for plane in bytes_of)
    frame = rle_header(64, 64 + len(high)) + high + low
    file = dicom_bytes(ramp(), syntax=dicom.RLE, frame=frame)
    assert np.array_equal(open_image(file).pixels, scaled(ramp()))


@pytest.mark.parametrize(
    "value", [b"YES", b"YES\\NO ", b"NO\\YES ", b"Y ", b"TRUE", b"yes ", b"\xff\xff"]
)
@pytest.mark.parametrize("place", ["among the tags", "behind the pixels", "behind compressed ones"])
def test_whatever_an_annotation_says_but_no_is_burned_in(value: bytes, place: str) -> None:
    compressed = {"syntax": dicom.JPEG_LS, "frame": STREAM}
    file = dicom_bytes(ramp(), **(compressed if "compressed" in place else {}))
    padding = element(b"OB", (0xFFFC, 0xFFFC), bytes(4))

    def annotated(*values: bytes) -> bytes:
        elements = b"".join(element(b"CS", (0x0028, 0x0301), value) for value in values)
        at = file.index(b"\xe0\x7f\x10\x00")
        return file + padding + elements if "behind" in place else file[:at] + elements + file[at:]

    for says_text in ((value,), (value, b"NO"), (b"NO", value), (b"", value, b"no")):
        assert refusal(annotated(*says_text)) == "burned_in"
    for fine in (b"NO", b"no", b"", b"NO\0\0"):
        read_dicom(annotated(fine, b"NO"), ImagesConfig())
    allowed = read_dicom(annotated(value), ImagesConfig(reject_burned_in=False))
    assert allowed.shades.pixels.any()


def test_an_annotation_behind_more_elements_than_any_image_has_is_not_passed_over() -> None:
    many = b"".join(element(b"LO", (0x7FE1, number), b"x ") for number in range(4001))
    hidden = element(b"CS", (0x0028, 0x0301), b"YES ")
    assert refusal(dicom_bytes(ramp()) + many + hidden) == "too_many_elements"
    assert refusal(dicom_bytes(ramp()) + many[: 10 * 3998] + hidden) == "burned_in"


def element(kind: bytes, tag: tuple[int, int], value: bytes) -> bytes:
    """An element in explicit VR, little endian."""
    length = len(value).to_bytes(2, "little")
    if kind == b"OB":
        length = b"\0\0" + len(value).to_bytes(4, "little")
    return b"".join(part.to_bytes(2, "little") for part in tag) + kind + length + value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((b"IS", value) for value in (b"3 ", b"x ", b"inf ", b"9" * 5000)),
        *((b"US", b"\1\2\3"), (b"FL", b"\0\0"), (b"ZZ", b"1 ")),
    ],
)
def test_a_number_of_frames_that_is_not_one_or_unreadable_is_refused(kind, value) -> None:
    file, written = dicom_bytes(ramp(), NumberOfFrames="1"), b"IS\x02\x001 "
    assert file.count(written) == 1
    changed = file.replace(written, kind + len(value).to_bytes(2, "little") + value)
    assert refusal(changed) in {"bad_tags", "not_single_frame"}


OPEN_ENDED = b"\0\0\xff\xff\xff\xff"
ITEM, ITEM_END = b"\xfe\xff\x00\xe0\0\0\0\0", b"\xfe\xff\xdd\xe0\0\0\0\0"


@pytest.mark.parametrize(
    "sequences",
    [
        b"\x08\x00\x40\x11SQ" + OPEN_ENDED + ITEM * 300_000 + ITEM_END,
        b"\x09\x00\x10\x10UN" + OPEN_ENDED + ITEM * 300_000 + ITEM_END,
        (b"\x08\x00\x40\x11SQ" + OPEN_ENDED + ITEM * 20 + ITEM_END) * 15_000,
        b"\x28\x00\x10\x30SQ\0\0" + struct.pack("<I", 8 * 300_000) + ITEM * 300_000,
        b"\x28\x00\x50\x10UT\0\0" + struct.pack("<I", 400_000) + b"1\\" * 200_000,
    ],
    ids=["items", "private items", "many sequences", "a wanted sequence", "a wanted value"],
)
def test_elements_within_sequences_count_too(sequences: bytes) -> None:
    file, started = dicom_bytes(ramp()), time.monotonic()
    at = file.index(b"\x08\x00\x60\x00CS" if sequences[0] < 0x10 else b"\xe0\x7f\x10\x00")
    with pytest.raises(ImageError, match=r"^too_many_elements"):
        read_dicom(file[:at] + sequences + file[at:], ImagesConfig())
    assert time.monotonic() - started < 10


def test_no_identifier_leaves_the_reader_and_no_tag_that_names_a_person_is_read():
    names = ("PatientName", "PatientID", "StudyDescription", "BodyPartExamined")
    tags = dict.fromkeys(names, "SENTINEL^NAME, room 4!")
    assert "SENTINEL" not in repr(open_image(dicom_bytes(ramp(), **tags))).upper()
    for broken in (dicom_bytes(ramp(), Rows=20, **tags), dicom_bytes(ramp(), **tags)[:500]):
        with pytest.raises(ImageError) as refused:
            open_image(broken)
        assert "SENTINEL" not in str(refused.value).upper()
    read = {*metadata.TAGS.values(), *reader.PUBLIC_TAGS, *reader.PIXEL_TAGS}
    personal = {name for name in read if name.startswith(("Patient", "Other", "Referring"))}
    assert personal == {"PatientID"}
    assert not {"StudyDescription", "AccessionNumber", "InstitutionName"} & read


# --- Headers: six values of any transfer syntax, and nothing else

IDS = {"SOPInstanceUID": "1.2.3", "StudyInstanceUID": "1.2", "PatientID": "MRN 7"}
EXPECTED = metadata.Header("1.2.3", "1.2", b"MRN 7", "PA", "CR", dicom.COMPUTED_RADIOGRAPHY)


def header_of(tmp_path: Path, data: bytes) -> metadata.Header | None:
    (tmp_path / "image").write_bytes(data)
    return metadata.read_header(tmp_path / "image")


@pytest.mark.parametrize("syntax", [IMPLICIT, EXPLICIT, dicom.DEFLATED, dicom.BIG_ENDIAN])
def test_values_are_read_in_every_encoding(tmp_path: Path, syntax: str) -> None:
    assert header_of(tmp_path, dicom_bytes(ramp(), syntax=syntax, **IDS)) == EXPECTED


@pytest.mark.parametrize("undefined", [True, False])
def test_values_inside_sequences_are_stepped_over(tmp_path: Path, undefined: bool) -> None:
    inner, outer = Dataset(), Dataset()
    inner.SOPInstanceUID, inner.PatientID, inner.ViewPosition = "9.9", "OTHER", "LL"
    outer.ReferencedSOPSequence = [inner]
    outer["ReferencedSOPSequence"].is_undefined_length = undefined
    for item in (inner, outer):
        item.is_undefined_length_sequence_item = undefined
    sequences = {"ReferencedStudySequence": [outer, outer]}
    assert header_of(tmp_path, dicom_bytes(ramp(), **IDS, **sequences)) == EXPECTED


def test_a_private_sequence_of_an_unknown_kind_is_in_implicit_vr_and_stepped_over(tmp_path):
    # PS3.5, 6.2.2: a sequence of undefined length whose VR a writer did not know
    private = b"\x09\x00\x10\x10UN\x00\x00\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
    private += b"\x08\x00\x18\x00\x04\x00\x00\x009.9\x00" + b"\xfe\xff\x0d\xe0\0\0\0\0"
    private += b"\xfe\xff\xdd\xe0\0\0\0\0"
    sound = dicom_bytes(ramp(), **IDS)
    at = sound.index(b"\x10\x00\x20\x00LO")
    assert header_of(tmp_path, sound[:at] + private + sound[at:]) == EXPECTED


def test_the_uid_of_the_data_set_is_read_whatever_follows_it(tmp_path: Path) -> None:
    sound = dicom_bytes(ramp(), **(IDS | {"StudyInstanceUID": ""}))
    (tmp_path / "image").write_bytes(sound[: sound.index(b"\x08\x00\x60\x00CS") + 8])
    assert metadata.read_instance_uid(tmp_path / "image") == "1.2.3"
    for noise in (b"noise", bytes(128) + b"DICM" + b"noise", b""):
        (tmp_path / "image").write_bytes(noise)
        assert metadata.read_instance_uid(tmp_path / "image") == ""


def test_malformed_values_are_blank_and_an_image_without_ids_is_none(tmp_path):
    sound = dicom_bytes(ramp(), **(IDS | {"PatientID": ""}))
    header = header_of(tmp_path, sound.replace(b"CS\x02\0PA", b"CS\x02\0x^"))
    assert (header.patient, header.view) == (b"", "")
    sound = dicom_bytes(ramp(), **IDS)
    assert header_of(tmp_path, dicom_bytes(ramp(), SOPInstanceUID="1.2")) is None
    assert header_of(tmp_path, sound.replace(b"UI\x04\x001.2\0", b"UI\x04\0DOE\0")) is None


def test_hostile_bytes_are_none_and_every_cut_ends_in_a_header_or_none(tmp_path):
    sound = dicom_bytes(ramp(), **IDS)
    cases = [
        *(b"", b"DICM", b"\0" * 128 + b"DICM", sound[:300]),
        sound[:132] + b"\x08\x00\x05\x00SQ\0\0\xff\xff\xff\xff" * 10_000,
        sound[:132] + b"\x08\x00\x05\x00LO\x00\x00" * 100_000,
        sound[:132] + b"\xfe\xff\x0d\xe0\0\0\0\0" * 100_000,
        sound[:132] + b"\x08\x00\x05\x00UT\0\0\xfe\xff\xff\xff",
    ]
    assert [header_of(tmp_path, data) for data in cases] == [None] * len(cases)
    sound = dicom_bytes(ramp(4, 4), **IDS)
    for cut in range(0, len(sound), 7):
        header_of(tmp_path, sound[:cut])
        flipped = bytearray(sound)
        flipped[cut] ^= 0xFF
        header_of(tmp_path, bytes(flipped))
