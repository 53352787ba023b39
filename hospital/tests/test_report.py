"""Objects next to an image whose identity never left, by command and gateway; a real service."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import Comprehensive3DSRStorage

from hospital.tests.support import orthanc
from hospital.tests.support.answers import radiograph
from medclip_hospital.__main__ import main
from medclip_hospital.gateway.launcher import started
from tests.support.dicom import raster_bytes
from tests.support.service import Service, running
from tests.support.stub_service import stub_service

KEY = "k" * 40


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("report") / "key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o400)
    return str(file)


@pytest.fixture(scope="module")
def service(key_file: str, published: Path) -> Iterator[Service]:
    with running(published, key_file=key_file) as service:
        yield service


def test_objects_are_written_next_to_the_image_that_never_left(service, key_file, tmp_path, capsys):
    (tmp_path / "image.dcm").write_bytes(radiograph(PatientName="Canary^Max"))
    words = ["report", str(tmp_path / "image.dcm"), "--out", str(tmp_path / "out")]
    words += ["--url", service.url, "--key-file", key_file]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == len(answer["objects"]) > 0
    assert set(map(str, files)) == {item["file"] for item in answer["objects"]}
    assert pydicom.dcmread(tmp_path / "out" / "image.sr.dcm").PatientName == "Canary^Max"
    png = tmp_path / "image.png"
    png.write_bytes(raster_bytes(np.zeros((40, 40), np.uint8), "PNG"))
    assert main(["report", str(png), *words[2:]]) == 1
    assert "unknown_format" in capsys.readouterr().err


def test_an_image_out_of_range_is_refused_or_warned_of(tmp_path, capsys):
    image = tmp_path / "image.dcm"
    image.write_bytes(radiograph())
    with stub_service(96, 64) as service:
        words = ["report", str(image), "--out", str(tmp_path), "--url", service.url]
        assert main(words) == 0
        first = capsys.readouterr()
        assert (json.loads(first.out)["flags"], first.err) == ([], "")
        service.answer["image"]["flags"] = ["out_of_range"]
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


class Pacs:
    def __init__(self) -> None:
        self.stored: list[bytes] = []

    def send(self, objects):
        self.stored += [path.read_bytes() for path in objects.values()]
        return list(objects)


def texts_of(item) -> list[str]:
    """Every text of a report, in order."""
    own = [item.TextValue] if "TextValue" in item else []
    return own + [text for child in item.get("ContentSequence", ()) for text in texts_of(child)]


def test_a_report_says_what_the_service_says_of_the_whole_image(service, key_file, tmp_path):
    image = orthanc.radiograph(rows=96, columns=64, PhotometricInterpretation="MONOCHROME1")
    pacs = Pacs()
    settings = orthanc.gateway_settings(tmp_path, service.url, service_key_file=key_file)
    with started(settings, pacs) as gateway:
        assert orthanc.send(gateway.port, [image]) == [0]
        orthanc.wait_until(lambda: gateway.journal.counts()["done"] == 1)
    (report,) = [
        item for data in pacs.stored
        if (item := orthanc.dataset(data)).SOPClassUID == Comprehensive3DSRStorage
    ]  # fmt: skip
    with service.client(**{"X-API-Key": KEY}) as client:
        found = client.post("/classify", files={"image": image}).json()["findings"]
    for finding, text in zip(found, (t for t in texts_of(report) if "score" in t), strict=True):
        assert f"score {finding['score']:.3f}" in text
    assert report.PatientName == "Doe^Jane0"
