"""The gateway on the real service: the same findings as the image asked for whole."""

from pathlib import Path

import httpx
from pydicom.uid import Comprehensive3DSRStorage

from gateway.launcher import started
from testing.orthanc import dataset, gateway_settings, radiograph, send, wait_until
from testing.service import Service


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


def test_a_report_says_what_the_service_says_of_the_whole_image(
    service: Service, client: httpx.Client, tmp_path: Path
) -> None:
    image, pacs = radiograph(rows=96, columns=64, PhotometricInterpretation="MONOCHROME1"), Pacs()
    with started(gateway_settings(tmp_path, service.url), pacs) as gateway:
        assert send(gateway.port, [image]) == [0]
        wait_until(lambda: gateway.journal.counts()["done"] == 1)
    (report,) = [
        item for data in pacs.stored
        if (item := dataset(data)).SOPClassUID == Comprehensive3DSRStorage
    ]  # fmt: skip
    found = client.post("/classify", files={"image": image}).json()["findings"]
    said = [text for text in texts_of(report) if "score" in text]
    for finding, text in zip(found, said, strict=True):
        assert f"score {finding['score']:.3f}" in text
    assert report.PatientName == "Doe^Jane0"
