from types import SimpleNamespace

import numpy as np
import pytest
import torch

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel, _room_for, evaluated_model
from medclip_dcl.inference.model_package import read_model_package
from medclip_dcl.inference.predictor import load
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.models.settings import SimilarityConfig
from tests.support.clip import Clip
from tests.support.published import publish

FINDINGS = (Finding("edema", ("There is an effusion.",), ("No edema.",)),)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 64, 64), dtype=np.uint8)


def test_a_published_model_scores_as_it_answers_and_by_blocks_as_by_all(tmp_path, monkeypatch):
    predictor = load(publish(tmp_path / "model").path, "cpu")
    model = evaluated_model(predictor)
    regions = model.embed_images(IMAGES)
    assert regions.norm(dim=-1) == pytest.approx(torch.ones(3, 4, 4), abs=1e-5)
    expected = predictor.margins(predictor.embed_images(IMAGES), FINDINGS)
    assert model.margins(regions, FINDINGS) == pytest.approx(expected, abs=1e-6)
    assert model.digest == predictor.digest
    assert read_model_package(tmp_path / "model").digest == model.digest
    texts = model.embed_sentences(["No edema.", "Clear."])
    whole = model.score(regions, texts)
    monkeypatch.setattr("medclip_dcl.evaluation.evaluated_model._SCORED", 2)
    assert model.score(regions, texts) == pytest.approx(whole, abs=1e-6)
    assert model.score(regions.half(), texts) == pytest.approx(whole, abs=1e-3)
    assert model.score(regions[:0], texts).shape == (2, 0)
    # Features are those before the shared space.
    features = model.embed_features(IMAGES)
    assert features.shape == (3, 1, 1, predictor.model.image.width)
    with torch.no_grad():
        maps = predictor.model.image(to_input(IMAGES, predictor.config.model.image.input_px))
    assert features[:, 0, 0] == pytest.approx(maps.flatten(2).mean(dim=2), abs=1e-6)


def test_regions_are_held_once_and_in_half_precision_where_they_are_many():
    part = torch.ones(2, 3, 3, 8)
    assert _room_for(10, part).shape == (10, 3, 3, 8)
    assert _room_for(10, part).dtype == torch.float32
    assert _room_for(10, part, exact_bytes=10 * 72 * 4 - 1).dtype == torch.float16


def test_a_clip_is_examined_behind_two_functions():
    model = EvaluatedModel("clip", Clip(), SimilarityConfig(kind="global"), 100.0)
    regions, texts = model.embed_images(IMAGES), model.embed_sentences(["No edema.", "Clear."])
    assert regions.shape == (3, 4, 4, 24)
    assert regions.norm(dim=-1) == pytest.approx(torch.ones(3, 4, 4), abs=1e-5)
    # `global`: the cosine of the sentence and the mean of the unit patch vectors.
    mean = regions.flatten(1, 2).mean(dim=1)
    cosines = torch.nn.functional.cosine_similarity(mean[None], texts[:, None], dim=-1)
    assert model.score(regions, texts) == pytest.approx(cosines, abs=1e-6)
    assert model.margins(regions, FINDINGS).shape == (1, 3)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (torch.ones(3, 12), r"embed_images gave \(3, 12\) for 3"),
        (torch.ones(2, 1, 1, 12), "for 3"),
        (np.ones((3, 1, 1, 12)), "gave another value"),
        (torch.full((3, 1, 1, 12), torch.nan), "not finite"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_region_vector_is_refused_by_name(vectors, message):
    wrong = SimpleNamespace(embed_images=lambda _: vectors)
    model = EvaluatedModel("wrong", wrong, SimilarityConfig(kind="global"), 1.0)
    with pytest.raises(CheckpointError, match=message):
        model.embed_images(IMAGES)
