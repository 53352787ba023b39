"""A public checkpoint behind the service: what its family can answer, and what it refuses."""

import json

import numpy as np
import pytest

from medclip_dcl.client import Client
from medclip_dcl.core.errors import ServiceError
from medclip_dcl.inference.adoption import adopt
from medclip_dcl.inference.predictor import load
from tests.api.test_questions import near
from tests.support.public_checkpoints import PROCESSORS, SENTENCES, write_biovil, write_pair
from tests.support.service import png, running

IMAGE = png((50, 41))


@pytest.mark.parametrize("name", ["siglip", "biovil"])
def test_it_is_asked_like_any_model_and_refuses_what_its_family_has_not(name, tmp_path) -> None:
    if name == "biovil":
        write_biovil(tmp_path / "checkpoint", temporal=False)
    else:
        write_pair(tmp_path / "checkpoint", name, PROCESSORS[name])
    adopt(tmp_path / "checkpoint", tmp_path / "model")
    predictor = load(tmp_path / "model", "cpu")
    with running(tmp_path, index="") as service, Client(service.url) as client:
        facts = client.model()
        assert (facts.digest, facts.device) == (predictor.digest, "cpu")
        assert facts.card["source"]["family"] == {"siglip": "transformers"}.get(name, name)
        answer, own = (one.classify(IMAGE, explain=True) for one in (client, predictor))
        assert json.loads(answer.model_dump_json()) == near(own.model_dump_json())
        facts_of = {(item.where is None, item.probability) for item in answer.findings}
        assert facts_of == {(name == "siglip", None)}
        (vector,) = client.embed(texts=SENTENCES[0]).to_numpy()
        assert vector == pytest.approx(predictor.encode_text(SENTENCES[0]), abs=1e-5)
        if name == "siglip":
            with pytest.raises(ServiceError, match="no_regions"):
                client.ground(IMAGE, SENTENCES)
            with pytest.raises(ServiceError, match="no_regions"):
                client.embed(IMAGE, what="regions")
            return
        answer, own = (one.ground(IMAGE, SENTENCES) for one in (client, predictor))
        assert json.loads(answer.model_dump_json()) == near(own.model_dump_json())
        parts = client.embed(IMAGE, what="regions").to_numpy()
        assert np.linalg.norm(parts, axis=-1) == pytest.approx(1, abs=1e-5)
