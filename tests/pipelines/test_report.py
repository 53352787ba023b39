"""`medclip report`: objects next to an image whose identity never left; a real service."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest

from pipelines.report import main
from testing.dicom import raster_bytes
from testing.hospital import radiograph
from testing.orthanc import stub_service
from testing.service import Service, running, store

KEY = "k" * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = store(tmp_path_factory.mktemp("report"))
    (folder / "key").write_text(f"{KEY}\n")
    (folder / "key").chmod(0o400)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with running(folder, key_file=str(folder / "key")) as service:
        yield service


def test_objects_are_written_next_to_the_image_that_never_left(
    service: Service, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "image.dcm").write_bytes(radiograph(PatientName="Canary^Max"))
    words = [str(tmp_path / "image.dcm"), "--out", str(tmp_path / "out")]
    words += ["--url", service.url, "--key-file", str(folder / "key")]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == len(answer["objects"]) > 0
    assert set(map(str, files)) == {item["file"] for item in answer["objects"]}
    assert pydicom.dcmread(tmp_path / "out" / "image.sr.dcm").PatientName == "Canary^Max"
    assert {item["stored"] for item in answer["objects"]} == {False}
    assert main([*words, "--stow", "http://127.0.0.1:9"]) == 1
    assert "unreachable" in capsys.readouterr().err
    png = tmp_path / "image.png"
    png.write_bytes(raster_bytes(np.zeros((40, 40), np.uint8), "PNG"))
    assert main([str(png), *words[1:]]) == 1
    assert "unknown_format" in capsys.readouterr().err


def test_an_image_out_of_range_is_refused_or_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "image.dcm"
    image.write_bytes(radiograph())
    with stub_service(96, 64) as service:
        words = [str(image), "--out", str(tmp_path), "--url", service.url]
        assert main(words) == 0
        first = capsys.readouterr()
        assert (json.loads(first.out)["flags"], first.err) == ([], "")
        service.flags = ["out_of_range"]
        assert main(words) == 0
        refused = capsys.readouterr()
        assert "warning: out_of_range: the image is unlike" in refused.err
        answer = json.loads(refused.out)
        assert (answer["flags"], answer["present"]) == (["out_of_range"], [])
        assert len(answer["objects"]) == 2  # no boxes
        assert main([*words, "--out-of-range", "answer"]) == 0
        answered = capsys.readouterr()
        assert "warning: out_of_range" in answered.err
        assert json.loads(answered.out)["present"] == ["Effusion"]
