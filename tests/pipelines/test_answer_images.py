"""Answers on every image: as the model gives them, the same after a kill, from and to a PACS."""

import io
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pydicom
import pytest
from dicomweb_client.api import DICOMwebClient

from medclip_dcl.artifact import Artifact, open_artifact
from medclip_dcl.client import Client
from medclip_dcl.data import manifest
from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import ServiceError, StudyError
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.schemas import RefusedImage
from medclip_dcl.tables import read_table
from medclip_hospital.answers import (
    ANSWERS,
    ARTIFACT,
    Answer,
    Source,
    answer_images,
    asking_model,
    asking_service,
    list_asked_images,
)
from medclip_hospital.dicomweb import DicomWeb
from medclip_hospital.settings import AnswerConfig
from pipelines.answer_images import main
from pipelines.build_manifest import main as build_manifest
from testing.dicom import ramp, raster_bytes
from testing.dicomweb import stub_archive
from testing.hospital import radiograph
from testing.orthanc import Orthanc, missing, running
from testing.published import publish, random_range
from testing.tiny_models import random_images
from testing.tls import HAS_OPENSSL, make_certificates

COUNT = 5
LIMITS = ImagesConfig()


def image(number: int) -> bytes:
    uids = {
        f"{name}InstanceUID": f"1.2.{number}.{at}"
        for at, name in enumerate(("Study", "Series", "SOP"))
    }
    pixels = np.roll(ramp(96, 64), 700 * number)
    return radiograph(pixels, PatientID=f"P{number}", **uids)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    publish(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def predictor(model: Path) -> Predictor:
    return load(model, "cpu")


def config_of(folder: Path, model: Path, source: dict[str, object], **answer: object) -> Path:
    shutil.copytree(model, folder / "work" / "model")
    tree = {
        "work": str(folder / "work"),
        "source": source | {"max_reject_share": 0.5},
        "images": LIMITS.model_dump(mode="json"),
        "answer": answer,
    }
    (folder / "config.yaml").write_text(json.dumps(tree))
    return folder / "config.yaml"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Five images in a folder, one of them cut off; the manifest of it."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "images").mkdir()
    for number in range(COUNT):
        data = image(number)
        (folder / "images" / f"{number}.dcm").write_bytes(data[:-100] if number == 3 else data)
    source = {"kind": "dicom", "root": str(folder / "images")}
    config = config_of(folder, model, source, objects=["sc"])
    assert build_manifest(["--config", str(config)]) == 0
    return folder


@pytest.fixture(scope="module")
def answers(work: Path) -> Artifact:
    assert main(["--config", str(work / "config.yaml")]) == 0
    return open_artifact(ARTIFACT.at(work / "work"), ARTIFACT)


def test_the_rows_are_the_model_s_answers(
    answers: Artifact, work: Path, predictor: Predictor
) -> None:
    rows = read_table(answers.path, ANSWERS).to_pylist()
    whole = [number for number in range(COUNT) if number != 3]
    assert [row["image_id"] for row in rows] == [f"1.2.{n}.2" for n in whole for _ in range(2)]
    for number, row in zip(whole, rows[::2], strict=True):
        one = open_image(work / "images" / f"{number}.dcm")
        score = predictor.classify(one)[0]
        assert (row["finding"], row["decision"]) == (score.name, score.is_present)
        assert row["score"] == pytest.approx(score.score, abs=1e-5)
        (found,) = predictor.ground(one, predictor.findings[0].positive)
        assert row["width"] == pytest.approx(found.box.width)
    rejects = read_table(answers.path, manifest.REJECTS).to_pylist()
    assert rejects == [{"id": "1.2.3.2", "stage": "answer_images", "reason": "truncated"}]
    assert answers.summary["rejected"] == 1
    assert {row["model"] for row in rows} == {predictor.digest}


def test_what_is_out_of_range_says_so_in_rows_and_objects(tmp_path: Path) -> None:
    publish(tmp_path / "model", known=random_range())
    (tmp_path / "images").mkdir()
    like = random_images(1, seed=9)[0]
    for number, pixels in enumerate((like, ramp(96, 64))):
        uids = {f"{name}InstanceUID": f"1.2.{number}.3" for name in ("Study", "Series", "SOP")}
        (tmp_path / f"images/{number}.dcm").write_bytes(radiograph(pixels, **uids))
    source = {"kind": "dicom", "root": str(tmp_path / "images")}
    config = config_of(tmp_path, tmp_path / "model", source, objects=["pr", "sc"])
    assert build_manifest(["--config", str(config)]) == 0
    assert main(["--config", str(config)]) == 0
    made = open_artifact(ARTIFACT.at(tmp_path / "work"), ARTIFACT)
    rows = read_table(made.path, ANSWERS).to_pylist()
    assert {(row["image_id"], row["out_of_range"]) for row in rows} == {
        ("1.2.0.3", False),
        ("1.2.1.3", True),
    }
    assert made.summary["out_of_range"] == 1
    reader = pa.ipc.open_file(made.path / "objects-00000.arrow")
    files = reader.get_batch(1).to_pydict()["file"]
    said = [pydicom.dcmread(io.BytesIO(file)).SeriesDescription for file in files]
    assert said == ["NOT ANALYSED: medclip-dcl overlay (research)"]


def test_a_killed_run_goes_on_with_the_same_rows(
    work: Path, answers: Artifact, predictor: Predictor, tmp_path: Path
) -> None:
    studies = open_artifact(manifest.ARTIFACT.at(work / "work"), manifest.ARTIFACT)
    asked: list[int] = []

    def run(folder: Path, *, dies: bool) -> bytes:
        def answer(sources: Sequence[Source | None]) -> list[Answer]:
            if dies and asked:
                raise KeyboardInterrupt
            asked.append(len(sources))
            return ask(sources)

        folder.mkdir(exist_ok=True)
        with asking_model(predictor, LIMITS, 1) as ask:
            images = list_asked_images(studies)
            answer_images(folder, images, work / "images", answer, AnswerConfig(), LIMITS, unit=2)
        return (folder / ANSWERS.file).read_bytes()

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", dies=True)
    assert asked == [2]
    killed = run(tmp_path / "killed", dies=False)
    assert asked == [2, 2, 1]
    assert killed == run(tmp_path / "calm", dies=False)
    assert len(list((tmp_path / "killed").iterdir())) == 2  # no note is left


def test_a_busy_service_is_not_a_fault_of_the_image(work: Path) -> None:
    class Busy(Client):
        def _send(self, *_: object, **_given: object) -> Any:
            raise ServiceError("deadline", "the model was busy", self.status)

    with Busy("http://127.0.0.1:1") as service, asking_service(service, LIMITS, "") as ask:
        service.status = 422
        assert ask([work / "images" / "0.dcm"]) == ["deadline"]
        service.status = 503
        with pytest.raises(ServiceError):
            ask([work / "images" / "0.dcm"])


def test_a_service_is_asked_about_some_images_in_a_request(work: Path) -> None:
    asked: list[list[bytes]] = []

    class Refusing(Client):
        def classify_all(self, images: Any, *_: object, **_given: object) -> Any:
            asked.append(images)
            return [RefusedImage(code=f"of {len(image)}", message="") for image in images]

    small, large = raster_bytes(np.eye(8, dtype=np.uint8), "png"), bytes(9 << 20)
    sources = [memoryview(small), None, memoryview(small), memoryview(small)]
    sources += [memoryview(small + large), memoryview(small + large), memoryview(b"x")]
    with Refusing("http://127.0.0.1:1") as service, asking_service(service, LIMITS, "") as ask:
        said = ask(sources)
    sizes = [f"of {len(item)}" if item is not None else "missing" for item in sources]
    assert said == sizes
    assert sorted(len(images) for images in asked) == [1, 1, 1, 3]


def test_too_many_refused_images_end_the_job(work: Path, tmp_path: Path) -> None:
    studies = open_artifact(manifest.ARTIFACT.at(work / "work"), manifest.ARTIFACT)
    with pytest.raises(StudyError, match=r"5 of 5 images were refused \({'corrupt': 5}\)"):
        answer_images(
            *(tmp_path, list_asked_images(studies), work / "images"),
            *(lambda sources: ["corrupt"] * len(sources), AnswerConfig(), LIMITS, 0.1),
        )


@pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")
def test_archive_and_service_may_have_certificates_of_the_hospital_s_authority(
    work: Path,
    answers: Artifact,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificates = make_certificates(tmp_path / "tls")
    tree = json.loads((work / "config.yaml").read_text())

    def run(**given: object) -> str:
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps(tree | {"answer": tree["answer"] | given}))
        code = main(["--config", str(config)])
        said = capsys.readouterr()
        return said.err if code else said.out

    with stub_archive(certificates.server_context()) as archive:
        assert "CERTIFICATE_VERIFY_FAILED" in run(archive=archive.url)
        address = archive.url.removesuffix("/dicom-web")
        assert "CERTIFICATE_VERIFY_FAILED" in run(service=address)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
        assert '"stored": 4' in run(archive=archive.url)
        archive.odd = lambda request: request.answer(404, b"") or True
        assert "is the url that of medclip-dcl?" in run(service=address)


# A real archive


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    if missing():
        pytest.skip(f"not installed: apt-get install {missing()}")
    with running(tmp_path_factory.mktemp("pacs") / "orthanc") as pacs:
        yield pacs


def test_a_pacs_worth_of_images_is_answered_and_stored_back(
    orthanc: Orthanc, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = orthanc.web
    files = {f"1.2.{number}.2": image(number) for number in range(2)}
    with DicomWeb(url) as web:
        web.store(files)
        listed = web.images(["CR", "DX"])
        assert {item.instance: web.fetch(item) for item in listed} == files
        with pytest.raises(ServiceError) as refused:
            web.store({"1.9": b"no DICOM"})
        assert refused.value.code in {"archive", "not_stored"}
    oracle = DICOMwebClient(url).search_for_instances(search_filters={"Modality": "CR"})
    assert {item["00080018"]["Value"][0] for item in oracle} == set(files)

    source = {"kind": "dicomweb", "archive": url, "root": str(tmp_path / "fetched")}
    config = config_of(tmp_path, model, source, objects=["sr", "pr", "sc"], archive=url)
    assert build_manifest(["--config", str(config)]) == 0
    fetched = {path.stem: path for path in (tmp_path / "fetched").rglob("*.dcm")}
    assert {name: path.read_bytes() for name, path in fetched.items()} == files
    times = {path: path.stat().st_mtime_ns for path in fetched.values()}
    assert main(["--config", str(config)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    made = lines[-1]["stored"]
    assert 4 <= made <= 6
    assert len(orthanc.uids()) == 2 + made
    (report,) = DICOMwebClient(url).search_for_instances(
        search_filters={"Modality": "SR", "PatientID": "P1"}
    )
    assert report["0020000D"]["Value"] == ["1.2.1.0"]  # the study of its image

    # once more, also from the beginning: nothing is fetched, doubled, or taken for a radiograph
    shutil.rmtree(tmp_path / "work" / "answers")
    assert build_manifest(["--config", str(config)]) == 0
    assert main(["--config", str(config)]) == 0
    assert len(orthanc.uids()) == 2 + made
    assert {path: path.stat().st_mtime_ns for path in fetched.values()} == times
