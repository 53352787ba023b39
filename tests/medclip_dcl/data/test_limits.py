"""Limits: what is refused by its first bytes and its size, before anything is decoded."""

import os
from pathlib import Path

from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import is_dicom, require_image
from tests.support.dicom import dicom_bytes, ramp, refusal


def test_refused_by_first_bytes_and_size(tmp_path: Path) -> None:
    assert refusal(b"") == "empty"
    assert refusal(b"file,view\nimages/a.jpg,PA\n" * 20) == "unknown_format"
    file = dicom_bytes(ramp())
    assert refusal(file, max_bytes=len(file) - 1) == "too_many_bytes"
    require_image(file, len(file), max_bytes=len(file))
    assert refusal(Path("/nowhere/image.dcm")) == "missing"
    assert refusal("/nowhere/image.dcm") == "missing"
    (tmp_path / "image.dcm").write_bytes(file)
    assert open_image(str(tmp_path / "image.dcm")).pixels.any()
    assert refusal(Path("/dev/null")) == "missing"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "missing"  # at once: nobody may ever write to it


def test_dicom_is_known_by_four_letters_behind_its_preamble() -> None:
    assert is_dicom(bytes(128) + b"DICM")
    for data in (bytes(127) + b"DICM", bytes(129) + b"DICM", b"DICM" + bytes(128), bytes(132), b""):
        assert not is_dicom(data)
