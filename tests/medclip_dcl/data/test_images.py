"""The gate: what goes in comes out the same way up, and what cannot is refused by name."""

import csv
import io
import os
import resource
import socket
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import psutil
import pytest
from PIL import Image
from pydicom.dataset import Dataset

from medclip_dcl.data.dicom.header import separate
from medclip_dcl.data.dicom.reader import read_dicom
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import (
    REASONS,
    Closed,
    Decoder,
    ImagesConfig,
    _read_array,
    _SharedBuffer,
    is_dicom,
    nameless_file,
    open_image,
    receive,
    send,
)
from medclip_dcl.errors import ImageError
from testing.dicom import dicom_bytes, ramp, raster_bytes

SV1, JPEG_LS, J2K, RLE = (f"1.2.840.10008.1.2.{tail}" for tail in ("4.70", "4.80", "4.90", "5"))
BASELINE = "1.2.840.10008.1.2.4.50"
DEFLATED = "1.2.840.10008.1.2.1.99"
MPEG2 = "1.2.840.10008.1.2.4.100"


def refusal(source: bytes | str | Path, **settings: object) -> str:
    with pytest.raises(ImageError) as refused:
        open_image(source, ImagesConfig(**settings))
    assert refused.value.code in REASONS
    return refused.value.code


def scaled(pixels: np.ndarray) -> np.ndarray:
    low, high = float(pixels.min()), float(pixels.max())
    return np.rint((pixels.astype(np.float64) - low) / (high - low) * 65535).astype(np.uint16)


def test_image_spans_the_whole_scale() -> None:
    stored = ramp()
    image = open_image(dicom_bytes(stored + 100, bits_stored=13))
    assert image.pixels.dtype == np.uint16
    assert np.array_equal(image.pixels, scaled(stored))
    assert (image.bits_stored, image.source, image.inverted) == (13, "dicom", False)
    assert image.tags["ViewPosition"] == "PA"


def test_monochrome1_shows_the_same_picture() -> None:
    image = ramp()
    plain = open_image(dicom_bytes(image))
    turned = open_image(dicom_bytes(4095 - image, photometric="MONOCHROME1"))
    assert turned.inverted
    assert np.array_equal(plain.pixels, turned.pixels)


def test_constant_image_is_zeros_and_says_so() -> None:
    image = open_image(dicom_bytes(np.full((8, 8), 77, dtype=np.uint16)))
    assert image.constant
    assert not image.pixels.any()


def test_padding_is_black_and_stretches_nothing() -> None:
    stored = ramp()
    padded = stored.astype(np.int16)
    padded[:5] = -2000
    for words, tag in [
        (padded, ("SS", -2000)),
        (padded, ("US", 63536)),  # writers mix up the sign
        (padded.view(np.uint16), ("US", 63536)),
    ]:
        image = open_image(dicom_bytes(words, bits_stored=16, PixelPaddingValue=tag))
        assert not image.pixels[:5].any()
        assert np.array_equal(image.pixels[5:], scaled(stored[5:]))


def test_signed_values_and_rescale_give_the_same_picture() -> None:
    image = ramp()
    signed = (image.astype(np.int32) - 1024).astype(np.int16)
    tags = {"RescaleSlope": "1", "RescaleIntercept": "1024"}
    assert np.array_equal(
        open_image(dicom_bytes(signed, bits_stored=16, **tags)).pixels, scaled(image)
    )


def test_blank_rescale_is_none() -> None:
    file = dicom_bytes(ramp(), RescaleSlope="", RescaleIntercept="")
    assert np.array_equal(open_image(file).pixels, scaled(ramp()))


def test_pixels_of_unknown_representation_are_words() -> None:
    file = dicom_bytes(ramp())
    at = file.index(b"\xe0\x7f\x10\x00OW") + 4
    assert np.array_equal(open_image(file[:at] + b"UN" + file[at + 2 :]).pixels, scaled(ramp()))


def test_icon_within_an_image_is_not_the_image() -> None:
    icon = Dataset()
    icon.Rows = icon.Columns = 8
    icon.BitsAllocated, icon.SamplesPerPixel = 8, 1
    icon.PhotometricInterpretation = "MONOCHROME1"
    icon.add_new("PixelData", "OB", bytes(64))
    image = open_image(dicom_bytes(ramp(), IconImageSequence=[icon]))
    assert not image.inverted
    assert np.array_equal(image.pixels, scaled(ramp()))


def test_bits_beyond_the_stored_ones_are_not_intensities() -> None:
    image = ramp()
    overlay = image | np.uint16(0x8000)
    assert np.array_equal(open_image(dicom_bytes(overlay)).pixels, scaled(image))
    left = dicom_bytes(image << np.uint16(4), HighBit=15)
    assert np.array_equal(open_image(left).pixels, scaled(image))


def test_window_is_a_note_unless_it_is_asked_for() -> None:
    image = ramp()
    file = dicom_bytes(image, WindowCenter="1000", WindowWidth="500")
    noted = open_image(file)
    assert noted.window == pytest.approx((1000 / 4095 * 65535, 500 / 4095 * 65535))
    applied = open_image(file, ImagesConfig(voi="dicom"))
    assert applied.window is None
    assert not applied.pixels[image < 740].any()
    assert (applied.pixels[image > 1260] == 65535).all()


def test_window_that_is_text_is_left_aside() -> None:
    file = dicom_bytes(ramp(), WindowCenter="1234", WindowWidth="5")
    assert open_image(file).window is not None
    assert open_image(file.replace(b"1234", b"n/a ")).window is None


def test_spacing_is_millimetres_down_and_across() -> None:
    assert open_image(dicom_bytes(ramp(), PixelSpacing=["0.2", "0.1"])).spacing_mm == (0.2, 0.1)


@pytest.mark.parametrize(
    ("syntax", "encode"),
    [
        (SV1, lambda image: imagecodecs.ljpeg_encode(image, bitspersample=12)),
        (JPEG_LS, imagecodecs.jpegls_encode),
        (J2K, lambda image: imagecodecs.jpeg2k_encode(image, codecformat="j2k", level=0)),
        (J2K, lambda image: imagecodecs.jpeg2k_encode(image, codecformat="jp2", level=0)),
    ],
    ids=["lossless", "jpeg_ls", "j2k", "j2k_in_jp2"],
)
def test_lossless_streams_give_the_native_picture(syntax: str, encode: object) -> None:
    image = ramp()
    file = dicom_bytes(image, syntax=syntax, frame=bytes(encode(image)))  # type: ignore[operator]
    assert np.array_equal(open_image(file).pixels, scaled(image))


def test_deflated_data_set_gives_the_native_picture() -> None:
    assert np.array_equal(open_image(dicom_bytes(ramp(), syntax=DEFLATED)).pixels, scaled(ramp()))


@pytest.mark.parametrize("form", ["L", "I;16"])
def test_png_keeps_its_bits(form: str) -> None:
    stored = ramp(top=255).astype(np.uint8) if form == "L" else ramp(top=60000)
    image = open_image(raster_bytes(stored, "png"))
    assert np.array_equal(image.pixels, scaled(stored))
    assert image.bits_stored == (8 if form == "L" else 16)


def test_colours_of_a_png_become_luma() -> None:
    colours = np.zeros((1, 3, 3), dtype=np.uint8)
    colours[0, 0], colours[0, 1], colours[0, 2] = (0, 0, 0), (0, 255, 0), (255, 255, 255)
    image = open_image(raster_bytes(colours, "png"))
    assert image.pixels[0, 1] == round(150 / 255 * 65535)  # 0.587 x 255, BT.601


def test_jpeg_is_turned_as_its_tag_says() -> None:
    stored = np.zeros((16, 32), dtype=np.uint8)
    stored[:, 16:] = 255
    turned = Image.Exif()
    turned[274] = 3  # upside down
    image = open_image(raster_bytes(stored, "jpeg", quality=95, exif=turned))
    assert image.pixels[:, :12].min() > 60000 > 5000 > image.pixels[:, 20:].max()


def test_refused_by_first_bytes_and_size(tmp_path: Path) -> None:
    assert refusal(b"") == "empty"
    assert refusal(b"file,view\nimages/a.jpg,PA\n" * 20) == "unknown_format"
    file = dicom_bytes(ramp())
    assert refusal(file, max_bytes=len(file) - 1) == "too_many_bytes"
    assert open_image(file, ImagesConfig(max_bytes=len(file))).pixels.any()
    assert refusal(Path("/nowhere/image.dcm")) == "missing"
    assert refusal("/nowhere/image.dcm") == "missing"
    (tmp_path / "image.dcm").write_bytes(file)
    assert open_image(str(tmp_path / "image.dcm")).pixels.any()
    assert refusal(Path("/dev/null")) == "missing"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "missing"  # at once: nobody may ever write to it


def test_refused_by_header_before_anything_is_allocated() -> None:
    image = ramp()
    assert refusal(dicom_bytes(image, Rows=60000, Columns=60000)) == "too_many_pixels"
    assert refusal(dicom_bytes(image, NumberOfFrames="100000")) == "not_single_frame"
    assert refusal(dicom_bytes(image, Rows=0)) == "bad_tags"
    assert refusal(dicom_bytes(image, photometric="MONOCHROME3")) == "bad_tags"
    assert refusal(dicom_bytes(image, photometric="PALETTE COLOR")) == "not_greyscale"
    assert refusal(dicom_bytes(image, SamplesPerPixel=3)) == "not_greyscale"
    assert refusal(dicom_bytes(image, HighBit=3)) == "bad_tags"
    assert refusal(dicom_bytes(image, syntax=MPEG2, frame=b"\0" * 64)) == "transfer_syntax"
    assert refusal(dicom_bytes(image, RescaleSlope="0", RescaleIntercept="0")) == "bad_intensities"


def test_burned_in_text_is_refused_unless_allowed() -> None:
    file = dicom_bytes(ramp(), BurnedInAnnotation="YES")
    assert refusal(file) == "burned_in"
    assert isinstance(open_image(file, ImagesConfig(reject_burned_in=False)), GreyImage)


@pytest.mark.parametrize(
    "value", [b"YES", b"YES\\NO ", b"NO\\YES ", b"Y ", b"TRUE", b"yes ", b"\xff\xff"]
)
@pytest.mark.parametrize("place", ["among the tags", "behind the pixels", "behind compressed ones"])
def test_whatever_an_annotation_says_but_no_is_burned_in(value: bytes, place: str) -> None:
    def annotated(value: bytes) -> bytes:
        element = b"\x28\x00\x01\x03CS" + len(value).to_bytes(2, "little") + value
        compressed = {"syntax": JPEG_LS, "frame": imagecodecs.jpegls_encode(ramp())}
        ids = {"StudyInstanceUID": "1.2", "SeriesInstanceUID": "1.3"}
        file = dicom_bytes(ramp(), **ids, **(compressed if "compressed" in place else {}))
        if "behind" in place:
            padding = b"\xfc\xff\xfc\xffOB\0\0\4\0\0\0\0\0\0\0"
            return file + padding + element
        at = file.index(b"\xe0\x7f\x10\x00")
        return file[:at] + element + file[at:]

    strict, lenient = ImagesConfig(), ImagesConfig(reject_burned_in=False)
    for ask in (read_dicom, separate):
        with pytest.raises(ImageError) as refused:
            ask(annotated(value), strict)
        assert refused.value.code == "burned_in"
        for fine in (b"NO", b"no", b"", b"NO\0\0"):
            ask(annotated(fine), strict)
    # where it is allowed here, whoever gets the image without identity is told
    stripped = separate(annotated(value), lenient).stripped
    read_dicom(stripped, lenient)
    with pytest.raises(ImageError, match="burned_in"):
        read_dicom(stripped, strict)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (b"IS", b"3 "),
        (b"IS", b"x "),
        (b"IS", b"inf "),
        (b"IS", b"9" * 5000),
        (b"US", b"\1\2\3"),
        (b"FL", b"\0\0"),
        (b"ZZ", b"1 "),
    ],
)
def test_a_number_of_frames_that_is_not_one_or_unreadable_is_refused(kind, value) -> None:
    file, written = dicom_bytes(ramp(), NumberOfFrames="1"), b"IS\x02\x001 "
    assert file.count(written) == 1
    changed = file.replace(written, kind + len(value).to_bytes(2, "little") + value)
    assert refusal(changed) in {"bad_tags", "not_single_frame"}
    assert isinstance(open_image(file.replace(written, b"IS\0\0")), GreyImage)


def test_truncated_file_is_refused_wherever_it_is_cut() -> None:
    file = dicom_bytes(ramp())
    for end in (131, 200, 400, len(file) - 2000, len(file) - 2):
        assert refusal(file[:end]) in {"unknown_format", "truncated", "bad_tags", "no_pixel_data"}
    raster = raster_bytes(ramp(200, 200, 255).astype(np.uint8), "jpeg")
    assert refusal(raster[: len(raster) // 2]) in {"corrupt", "truncated"}


def test_pixels_that_disagree_with_the_header_are_refused() -> None:
    image = ramp()
    assert refusal(dicom_bytes(image, Rows=20)) == "size_mismatch"
    stream = imagecodecs.jpegls_encode(image)
    assert refusal(dicom_bytes(image, syntax=JPEG_LS, frame=stream, Rows=41)) == "size_mismatch"
    assert refusal(dicom_bytes(image, syntax=JPEG_LS, frame=stream[:-400])) == "truncated"
    assert refusal(dicom_bytes(image, syntax=BASELINE, frame=stream)) == "corrupt"


def test_stream_too_short_for_its_claim_is_refused() -> None:
    small = bytearray(raster_bytes(np.zeros((16, 16), dtype=np.uint8), "jpeg"))
    at = small.index(b"\xff\xc0") + 5
    small[at : at + 4] = struct.pack(">HH", 6000, 6000)
    assert refusal(bytes(small)) == "truncated"
    claim = np.zeros((6000, 6000), dtype=np.uint8)
    file = dicom_bytes(claim, bits_stored=8, syntax=BASELINE, frame=bytes(small))
    assert refusal(file) == "truncated"


def test_rle_that_unpacks_to_too_much_is_refused() -> None:
    image = ramp()
    run = b"\x81\x00" * 100_000  # each pair is 128 zeros
    header = struct.pack("<16I", 2, 64, 64 + len(run), *[0] * 13)
    assert refusal(dicom_bytes(image, syntax=RLE, frame=header + run + run)) in {
        "size_mismatch",
        "corrupt",
    }


@pytest.mark.parametrize("starts", [(64, 2**31), (64, 76), (64, 64), (70, 64), (63, 70)])
def test_rle_segments_that_are_not_in_the_frame_are_refused_before_they_are_read(
    starts: tuple[int, int],
) -> None:
    header = struct.pack("<16I", 2, *starts, *[0] * 13)
    for frame in (header + bytes(12), header[:12]):
        assert refusal(dicom_bytes(ramp(), syntax=RLE, frame=frame)) == "corrupt"


def test_deflated_bomb_is_cut_short() -> None:
    bomb = dicom_bytes(np.zeros((3000, 3000), dtype=np.uint16), syntax=DEFLATED)
    assert len(bomb) < 100_000
    assert refusal(bomb, max_bytes=1_000_000) == "too_many_bytes"


def test_nested_sequences_are_refused() -> None:
    file = dicom_bytes(ramp())
    start = b"\x08\x00\x40\x11SQ\0\0\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff"
    at = file.index(b"\x08\x00\x60\x00CS")
    assert refusal(file[:at] + start * 20_000 + file[at:]) == "too_many_elements"


def test_many_small_elements_are_refused() -> None:
    file = dicom_bytes(ramp())
    at = file.index(b"\x08\x00\x60\x00CS")
    assert refusal(file[:at] + b"\x08\x00\x50\x00SH\x00\x00" * 30_000 + file[at:]) == (
        "too_many_elements"
    )


ITEM, ITEM_END = b"\xfe\xff\x00\xe0\0\0\0\0", b"\xfe\xff\xdd\xe0\0\0\0\0"
OPEN_ENDED = b"\0\0\xff\xff\xff\xff"


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
    file = dicom_bytes(ramp())
    before = b"\x08\x00\x60\x00CS" if sequences[0] < 0x10 else b"\xe0\x7f\x10\x00"
    at = file.index(before)
    started = time.monotonic()
    with pytest.raises(ImageError) as refused:
        read_dicom(file[:at] + sequences + file[at:], ImagesConfig())
    assert refused.value.code == "too_many_elements"
    assert time.monotonic() - started < 2


def test_a_png_of_many_chunks_is_refused() -> None:
    png = raster_bytes(ramp().astype(np.uint16), "png")
    chunk = b"\0\0\0\0meDi" + struct.pack(">I", zlib.crc32(b"meDi"))
    assert open_image(png[:33] + 100 * chunk + png[33:]).pixels.shape == ramp().shape
    assert refusal(png[:33] + 70_000 * chunk + png[33:]) == "corrupt"


def test_box_of_length_zero_ends_and_does_not_hang() -> None:
    image = ramp()
    stream = bytes(imagecodecs.jpeg2k_encode(image, codecformat="jp2", level=0))
    at = stream.index(b"jp2c") - 4
    endless = stream[:at] + b"\0\0\0\0" + stream[at + 4 :]
    file = dicom_bytes(image, syntax=J2K, frame=endless)
    assert np.array_equal(open_image(file).pixels, scaled(image))
    astray = stream[:12] + b"\0\0\0\0free" + stream[12:]
    assert refusal(dicom_bytes(image, syntax=J2K, frame=astray)) == "corrupt"


def test_no_identifier_leaves_the_reader() -> None:
    tags = {
        "PatientName": "SENTINEL^NAME",
        "PatientID": "SENTINEL",
        "StudyDescription": "SENTINEL",
        "BodyPartExamined": "Sentinel, room 4!",
    }
    image = open_image(dicom_bytes(ramp(), **tags))
    assert "SENTINEL" not in repr(image).upper()
    for broken in (dicom_bytes(ramp(), Rows=20, **tags), dicom_bytes(ramp(), **tags)[:500]):
        with pytest.raises(ImageError) as refused:
            open_image(broken)
        assert "SENTINEL" not in str(refused.value).upper()


def test_gate_and_worker_load_no_deep_learning() -> None:
    code = (
        "import sys; import medclip_dcl.data.images, medclip_dcl.data.decode_worker;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_random_bytes_give_a_picture_or_a_reason() -> None:
    random = np.random.default_rng(3)
    stored = ramp(12, 12)
    jpeg2000 = bytes(imagecodecs.jpeg2k_encode(stored, codecformat="jp2", level=0))
    sound = [
        dicom_bytes(stored),
        dicom_bytes(stored, syntax=J2K, frame=jpeg2000),
        dicom_bytes(stored, syntax=JPEG_LS, frame=bytes(imagecodecs.jpegls_encode(stored))),
        raster_bytes(stored.astype(np.uint8), "jpeg"),
        raster_bytes(stored, "png"),
    ]
    codes = []
    for round_number in range(200):
        file = bytearray(sound[round_number % len(sound)])
        for _ in range(int(random.integers(1, 6))):
            file[int(random.integers(len(file)))] = int(random.integers(256))
        try:
            image = open_image(bytes(file))
            assert image.pixels.ndim == 2
        except ImageError as error:
            codes.append(error.code)
    assert 0 < len(codes) < 200
    assert set(codes) <= set(REASONS)
    assert np.array_equal(open_image(io.BytesIO(sound[0]).getvalue()).pixels, scaled(stored))


def test_dicom_is_known_by_four_letters_behind_its_preamble() -> None:
    assert is_dicom(bytes(128) + b"DICM")
    for data in (bytes(127) + b"DICM", bytes(129) + b"DICM", b"DICM" + bytes(128), bytes(132), b""):
        assert not is_dicom(data)


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_messages_carry_a_header_and_one_descriptor() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    file = nameless_file()
    os.write(file, b"pixels")
    longest = {"a": "x" * (65_536 - len('{"a": ""}'))}
    with ours, theirs:
        send(ours, longest)
        send(ours, {"b": [1]}, file)
        assert receive(theirs) == (longest, None)
        header, handle = receive(theirs)
        assert header == {"b": [1]}
        assert handle is not None
        assert os.pread(handle, 9, 0) == b"pixels"
        os.close(handle)
        before = open_descriptors()
        for astray in (b"\3\0\0\0abc", struct.pack("<I", 65_537)):
            socket.send_fds(ours, [astray], [file])
            with pytest.raises(Closed):
                receive(theirs)
            assert open_descriptors() == before
        theirs.settimeout(0.01)
        with pytest.raises(TimeoutError):
            receive(theirs)
        ours.sendall(b"\3\0")
        ours.close()
        with pytest.raises(Closed):  # in the middle of a message
            receive(theirs)
        with pytest.raises(Closed):
            send(theirs, {"a": 1})
        with pytest.raises(Closed):
            send(theirs, {"a": 1}, file)
    os.close(file)


def test_a_buffer_is_written_again_from_its_beginning_until_it_is_given_back() -> None:
    before, buffer = open_descriptors(), _SharedBuffer()
    handle = buffer.write(b"a longer image")
    assert buffer.write(memoryview(b"another")) == handle
    assert os.pread(handle, 99, 0) == b"anotherr image"
    buffer.clear()
    buffer.clear()
    assert open_descriptors() == before
    assert os.pread(buffer.write(b"new"), 99, 0) == b"new"
    buffer.clear()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limits of another process")
@pytest.mark.parametrize("side", ["this process", "the worker"])
def test_no_room_to_hand_an_image_over_is_not_the_images_fault(side: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    data = raster_bytes(noise, "PNG")  # more than 4096 bytes; the answer has two for a pixel
    others = set(psutil.Process().children())
    with Decoder(ImagesConfig(), 1) as decoder:
        decoder.open(data)
        [worker] = set(psutil.Process().children()) - others
        suffers = os.getpid() if side == "this process" else worker.pid
        usual = resource.prlimit(suffers, resource.RLIMIT_FSIZE)
        resource.prlimit(suffers, resource.RLIMIT_FSIZE, (4000, usual[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                decoder.open(data)
        finally:
            if suffers == os.getpid():
                resource.prlimit(suffers, resource.RLIMIT_FSIZE, usual)
        assert decoder.open(data).pixels.shape == (64, 64)  # by another worker


def test_an_array_is_copied_out_and_must_be_there_whole() -> None:
    file = nameless_file()
    words = np.arange(6, dtype=np.uint16)
    os.pwrite(file, words.tobytes(), 0)
    copied = _read_array(file, (2, 3), np.uint16)
    os.pwrite(file, bytes(12), 0)
    assert np.array_equal(copied, words.reshape(2, 3))
    with pytest.raises(Closed):
        _read_array(file, (13,), np.uint8)
    os.close(file)


# Real DICOM files: every row of the test data's manifest behaves as it expects


def listed(test_data: Path) -> list[dict[str, str]]:
    with (test_data / "dicom/manifest.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.real_data
def test_every_file_is_read_or_refused_as_expected(test_data: Path) -> None:
    astray, refused = [], []
    found = listed(test_data)
    assert len(found) >= 56
    caller = psutil.Process()
    before = caller.memory_info().rss
    for row in found:
        start = time.monotonic()
        try:
            image = open_image(test_data / "dicom" / row["file"])
            outcome = "decode"
            shape = f"{image.pixels.shape[0]}x{image.pixels.shape[1]}"
            assert image.constant or (image.pixels.min() == 0 and image.pixels.max() == 65535)
            assert row["dec_shape"] in {shape, ""}
            assert "PHISENT" not in repr(image)
        except ImageError as error:
            outcome = "error"
            refused.append(error)
        assert time.monotonic() - start < 10
        assert caller.memory_info().rss - before < 256 * 2**20
        if row["expect"] not in {outcome, "decode_or_error"}:
            astray.append((row["file"], row["expect"], outcome))
    assert astray == []
    assert {error.code for error in refused} <= set(REASONS)
    assert not any("PHI" in str(error) for error in refused)


@pytest.mark.real_data
def test_all_encodings_of_one_image_give_one_picture(test_data: Path) -> None:
    files = sorted((test_data / "dicom/files").glob("eq_*.dcm"))
    assert len(files) >= 9
    first, *others = (open_image(path).pixels for path in files)
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.real_data
def test_padding_of_a_real_image_leaves_the_rest_unchanged(test_data: Path) -> None:
    folder = test_data / "dicom/files"
    inner = open_image(folder / "pixel_padding.dcm").pixels[30:-30, 30:-30]
    assert np.array_equal(inner, open_image(folder / "eq_explicit_le.dcm").pixels)


@pytest.mark.real_data
def test_wrong_photometric_tag_gives_the_negative(test_data: Path) -> None:
    folder = test_data / "dicom/files"
    image = open_image(folder / "cxr_pa_jpeg_baseline.dcm").pixels.astype(int)
    negative = open_image(folder / "cxr_pa_jpeg_baseline_mono1_tag.dcm").pixels.astype(int)
    assert np.abs(image + negative - 65535).max() <= 1
