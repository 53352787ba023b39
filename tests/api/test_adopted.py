"""A public checkpoint behind the service: what its family can answer, and what it refuses."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from api.model_manager import fetch_model
from api.settings import ServeSettings
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.images import open_image
from medclip_dcl.inference.adoption import adopt
from medclip_dcl.inference.predictor import load
from tests.support.public_checkpoints import PROCESSORS, SENTENCES, write_biovil, write_pair
from tests.support.service import Service, running

GREY = np.random.default_rng(0).integers(20, 200, (50, 41)).astype(np.uint8)


def picture() -> bytes:
    stream = BytesIO()
    Image.fromarray(GREY).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module", params=["siglip", "biovil"])
def served(request, tmp_path_factory) -> Iterator[tuple[str, Path, Service]]:
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "biovil":
        write_biovil(root / "checkpoint", temporal=False)
    else:
        write_pair(root / "checkpoint", request.param, PROCESSORS[request.param])
    adopt(root / "checkpoint", root / "model")
    with running(root, index="") as service:
        yield request.param, root / "model", service


def test_it_is_asked_like_any_model_and_refuses_what_its_family_has_not(served) -> None:
    name, folder, service = served
    predictor = load(folder, "cpu")
    image, sent = open_image(picture()), {"image": ("a.png", picture())}
    with service.client() as client:
        facts = client.get("/model").json()
        assert (facts["digest"], facts["device"]) == (predictor.digest, "cpu")
        assert facts["card"]["source"]["family"] in {"transformers", "biovil"}
        answer = client.post("/classify", files=sent, data={"explain": "true"}).json()
        found = predictor.classify(image, explain=True)
        for item, own in zip(answer["findings"], found.findings, strict=True):
            assert item["score"] == pytest.approx(own.score, abs=1e-5)
            assert item["probability"] is None
            assert (item["where"] is None) is (own.where is None) is (name == "siglip")
        vector = client.post("/embed", data={"text": SENTENCES[0]}).json()["vectors"][0]
        assert vector == pytest.approx(predictor.encode_text(SENTENCES[0]).tolist(), abs=1e-5)
        asked = client.post("/ground", files=sent, data={"phrase": SENTENCES})
        parts = client.post("/embed", files=sent, data={"what": "regions"})
        if name == "siglip":
            for refusal in (asked, parts):
                assert (refusal.status_code, refusal.json()["code"]) == (422, "no_regions")
            return
        located = predictor.ground(image, SENTENCES).phrases
        for phrase, own in zip(asked.json()["phrases"], located, strict=True):
            assert np.array(phrase["grid"]) == pytest.approx(np.array(own.grid), abs=1e-3)
            assert phrase["affine"] == pytest.approx(own.affine)
        assert np.linalg.norm(parts.json()["vectors"], axis=-1) == pytest.approx(1, abs=1e-5)


def test_a_device_that_is_not_here_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"device is 'nowhere', which this machine"):
        fetch_model(ServeSettings(model="unused", device="nowhere"))
    with pytest.raises(ConfigError, match=r"device is 'cuda:99', which this machine"):
        fetch_model(ServeSettings(model="unused", device="cuda:99"))
    assert fetch_model(ServeSettings(model="unused", device="cpu")).device == "cpu"
