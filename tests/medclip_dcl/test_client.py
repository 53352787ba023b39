"""The client and its command line, against the real service."""

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from medclip_dcl.client import Client, main
from medclip_dcl.core.errors import ConfigError, ImageError, ServiceError
from tests.support.dicom import dicom_bytes, ramp
from tests.support.service import FINDINGS, Service, running, store
from tests.support.stub_service import MODEL, stub_service

KEY = "k" * 40
README = (Path(__file__).parents[2] / "api/README.md").read_text(encoding="utf-8")
LINES = re.findall(r"^python -m medclip_dcl\.client (.+)$", README, re.MULTILINE)
(PYTHON,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = store(tmp_path_factory.mktemp("client"))
    (folder / "image.dcm").write_bytes(dicom_bytes(ramp(96, 64)))
    (folder / "key").write_text(f"{KEY}\n")
    (folder / "key").chmod(0o400)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with running(folder, key_file=str(folder / "key")) as service:
        yield service


def test_a_service_that_is_loading_is_waited_for(monkeypatch):
    waits = []
    with stub_service() as service, Client(service.url) as client:
        service.status, service.headers = 503, {"Retry_After": "5"}

        def loaded_after(seconds: float) -> None:
            waits.append(seconds)
            service.status = 503 if len(waits) < 3 else 200

        monkeypatch.setattr(time, "sleep", loaded_after)
        with Client(service.url, patience_s=4) as hasty:
            with pytest.raises(ServiceError) as refusal:
                hasty.classify(b"image")
            assert refusal.value.code == "loading"
        assert not waits
        assert client.classify(b"image").model == MODEL
        assert waits == [5.0, 5.0, 5.0]  # what the service names
        assert all(b"\r\n\r\nimage\r\n" in body for body in service.bodies)
        assert len(service.bodies) == 5  # the whole image each time


def test_every_question_is_answered_and_one_sentence_or_image_stands_for_a_list(service, folder):
    path = folder / "image.dcm"
    asked = {"name": "one", "positive": "Effusion", "negative": "No effusion"}
    with Client(service.url, KEY) as client:
        answer = client.classify(path.read_bytes(), [asked], explain=True)
        assert [item.name for item in client.classify(path, asked).findings] == ["one"]
        grounded = client.ground(path, ["Effusion", "Pneumonia"])
        assert len(client.ground(path, "Effusion").phrases) == 1
        images = client.retrieve("image", text="No effusion.", k=3, finding=FINDINGS[:1])
        texts = client.retrieve("text", image=path, box=(10, 20, 30, 40), split=["train", "test"])
        assert client.embed(texts=["Effusion"]) == client.embed(texts="Effusion")
        for image in (path, str(path), path.read_bytes()):
            assert client.embed(image).shape[0] == 1
            assert len(client.classify_all(image)) == 1
    (finding,) = answer.findings
    assert finding.name == "one"
    assert (answer.image.height_px, answer.image.width_px) == (96, 64)
    assert np.shape(finding.heatmap) == (4, 4)
    assert 0 < finding.score < 1
    phrase = grounded.phrases[0]
    assert np.max(phrase.grid) == pytest.approx(phrase.peak.score, abs=1e-4)
    assert len(grounded.phrases) == 2
    assert len(images.hits) == 3
    assert all(hit.study_id for hit in images.hits)
    assert [hit.score for hit in texts.hits] == sorted((h.score for h in texts.hits), reverse=True)


def test_refusals_bear_the_code_of_the_service(service: Service, folder: Path) -> None:
    with Client(service.url, "w" * 40) as stranger, pytest.raises(ServiceError) as refusal:
        stranger.ground(folder / "image.dcm", ["Effusion"])
    assert (refusal.value.code, refusal.value.status) == ("unauthorized", 401)
    with Client(service.url, KEY) as client:
        with pytest.raises(ServiceError, match="unknown_format"):
            client.classify(b"no image")
        with pytest.raises(ServiceError, match="invalid_request"):
            client.retrieve("image", text="x", finding="Gout")
        with pytest.raises(ImageError) as missing:
            client.classify(folder / "nowhere.dcm")
        assert "nowhere" not in str(missing.value)


def test_the_key_of_a_file_is_the_one_that_stands_there_now(service, tmp_path):
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text("w" * 40)
    with Client(service.url, file) as client:
        with pytest.raises(ServiceError, match="unauthorized"):
            client.model()
        file.write_text(KEY)
        digest = client.model().digest
        file.write_text("")  # half written
        assert client.model().digest == digest
        file.unlink()
        with pytest.raises(ConfigError, match="cannot be read"):
            Client(service.url, file)


@pytest.mark.parametrize("line", LINES)
def test_line_of_the_readme_runs(line, service, folder, capsys):
    words = shlex.split(line)
    assert words[-2:] == ["--url", "http://127.0.0.1:8000"]
    words = [str(folder / word) if word == "image.dcm" else word for word in words[:-1]]
    code = main([*words, service.url, "--key-file", str(folder / "key")])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert json.loads(captured.out)["model"]


def test_python_of_the_readme_runs(service, folder, capsys):
    asked = f'Client("{service.url}", "{KEY}")'
    text = PYTHON.replace('Client("http://127.0.0.1:8000")', asked)
    assert asked in text
    text = text.replace('"image.dcm"', repr(str(folder / "image.dcm")))
    exec(compile(text, "README", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["effusion", "pneumonia"]


def test_failures_of_the_command_line_end_with_a_line_and_a_code(service, folder, capsys):
    loose = folder / "loose"
    loose.write_text(KEY)
    loose.chmod(0o644)
    words = ["classify", str(folder / "image.dcm"), "--url", service.url]
    assert main(words) == 1
    assert "unauthorized" in capsys.readouterr().err
    assert main([*words, "--key-file", str(loose)]) == 2
    assert "chmod 440" in capsys.readouterr().err


def test_the_command_line_warns_of_an_image_out_of_range(tmp_path, capsys):
    image = tmp_path / "image.dcm"
    image.write_bytes(dicom_bytes(ramp(96, 64)))
    with stub_service(96, 64) as service:
        service.flags = ["out_of_range"]
        assert main(["classify", str(image), "--url", service.url]) == 0
        assert "warning: out_of_range" in capsys.readouterr().err
        with Client(service.url) as client:
            assert client.classify(image).image.is_out_of_range
