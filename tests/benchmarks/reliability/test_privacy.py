"""The search for canaries finds each in every encoding and container, and knows what is allowed."""

import base64
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from pydicom import dcmread
from pydicom.datadict import DicomDictionary
from safetensors.numpy import save

from benchmarks.reliability.privacy import ALLOWED
from hospital.tests.support.orthanc import radiograph
from medclip_dcl.data.images import open_image
from tests.support import canaries


def _shifted(shift: int) -> Callable[[str], bytes]:
    return lambda word: base64.b64encode(b"\xff" * shift + word.encode() + b"\xfe\xfd")


ENCODERS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "case": lambda word: word.swapcase().encode(),
    "utf-16-le": lambda word: word.encode("utf-16-le"),
    "utf-16-be": lambda word: word.capitalize().encode("utf-16-be"),
    "hex": lambda word: word.encode().hex().encode(),
    "hex, capitals": lambda word: word.encode().hex().upper().encode(),
    **{f"base64, {shift}": _shifted(shift) for shift in range(3)},
    "base64, url": lambda word: base64.urlsafe_b64encode(b">>>" + word.encode() + b"?"),
    "url": lambda word: "".join(f"%{byte:02X}" for byte in word.encode()).encode(),
    "url, small": lambda word: "".join(f"%{byte:02x}" for byte in word.encode()).encode(),
    "misread": lambda word: word.encode().decode("latin-1").encode(),
    "json": lambda word: json.dumps(word).encode(),
    "html": lambda word: word.encode("ascii", "xmlcharrefreplace"),
}


def _written(write: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def _zipped(data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("a", data)
    return stream.getvalue()


def _table(data: bytes) -> pa.Table:
    return pa.table({"a": [None, [{"b": data}]]})


CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "bytes": lambda data: b"\0\xff" + data + b"\xff\0",
    "gz": gzip.compress,
    "zip": _zipped,
    "zip of gz": lambda data: _zipped(gzip.compress(data)),
    "npz": lambda data: _written(partial(np.savez_compressed, a=np.frombuffer(data, np.uint8))),
    "safetensors": lambda data: save({"a": np.frombuffer(data, np.uint8)}),
    "parquet": lambda data: _written(partial(pq.write_table, _table(data), compression="zstd")),
    "arrow": lambda data: _written(partial(feather.write_feather, _table(data))),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("encoding", ENCODERS)
def test_every_canary_is_found_in_every_encoding_and_container(encoding, container) -> None:
    for kind, words in canaries.CANARIES.items():
        for word in words:
            data = CONTAINERS[container](ENCODERS[encoding](word))
            parts = [part for _, part in canaries.contents("x", data)]
            assert any(kind in canaries.found_in(part) for part in parts), word


def test_ordinary_text_is_no_canary() -> None:
    assert canaries.found_in(b"phi sentinel, sentinels, PHI; 50484953 %50%48%49%53 UEhJU0VO") == {}


def test_names_of_files_and_members_are_searched(tmp_path: Path) -> None:
    (tmp_path / canaries.HEADER.lower()).write_bytes(b"\0")
    (tmp_path / canaries.NATIVE).write_bytes(b"\0")
    assert len(canaries.search(tmp_path, ALLOWED)["header_leaks"]) == 2


def test_texts_may_stand_where_they_are_kept_alone(tmp_path: Path) -> None:
    for name in ("sentences/sentences.parquet", "claims/claims.parquet"):
        (tmp_path / "work" / name).parent.mkdir(parents=True)
        pq.write_table(pa.table({"text": [canaries.WORD] * 500}), tmp_path / "work" / name)
    (tmp_path / "job.log").write_text(canaries.WORD)
    found = canaries.search(tmp_path, ALLOWED)
    assert found["text_kept"] == ["work/sentences/sentences.parquet:text [plain]"]
    leaks = ["job.log [plain]", "work/claims/claims.parquet:text [plain]"]
    assert found["text_leaks"] == leaks


def test_names_of_files_may_stand_in_the_column_of_paths_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder/manifest/images.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"path": [canaries.HEADER], "note": ["a"]}), path)
    assert canaries.search(tmp_path, ALLOWED)["header_leaks"] == []
    pq.write_table(pa.table({"path": ["a"], "note": [canaries.HEADER]}), path)
    leaks = ["folder/manifest/images.parquet:note [plain]"]
    assert canaries.search(tmp_path, ALLOWED)["header_leaks"] == leaks


def test_a_spoilt_image_opens_and_every_text_vr_holds_a_canary(tmp_path: Path) -> None:
    planted = set()
    for number in range(canaries.SLICES):
        path = tmp_path / f"{number}.dcm"
        path.write_bytes(radiograph(number))
        canaries.spoil_header(path, number)
        planted |= set(dcmread(path).keys())
    open_image(path)
    assert set(canaries.UNREAD_TAGS) <= planted
    assert {DicomDictionary[tag][0] for tag in canaries.UNREAD_TAGS} >= canaries.TEXT_VRS - {"UN"}
    name = dcmread(path).PatientName
    assert all(
        canaries.found_in(str(group).encode()) for group in (name.alphabetic, name.ideographic)
    )
    assert canaries.found_in(str(name.phonetic).encode())
