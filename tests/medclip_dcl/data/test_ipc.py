"""Messages, buffers and arrays between a process and its decode workers."""

import os
import resource
import socket
import struct
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest

from medclip_dcl.data import images
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.ipc import Closed, SharedBuffer, nameless_file, read_array, receive, send
from medclip_dcl.data.limits import ImagesConfig
from tests.support.dicom import dicom_bytes, ramp, raster_bytes, scaled


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
    before, buffer = open_descriptors(), SharedBuffer()
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
    copied = read_array(file, (2, 3), np.uint16)
    os.pwrite(file, bytes(12), 0)
    assert np.array_equal(copied, words.reshape(2, 3))
    with pytest.raises(Closed):
        read_array(file, (13,), np.uint8)
    os.close(file)


def test_without_files_in_memory_images_go_by_temporary_ones(monkeypatch, tmp_path):
    """As on macOS, which has no memfd: the same pictures, nothing left."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(images, "_BOOT", "import os; del os.memfd_create;" + images._BOOT)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    data = dicom_bytes(ramp())
    with Decoder(ImagesConfig(), 1) as decoder:
        assert np.array_equal(decoder.open(data).pixels, scaled(ramp()))
    assert list(tmp_path.iterdir()) == []
