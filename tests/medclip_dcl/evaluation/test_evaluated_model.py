import numpy as np
import pytest
import torch

from benchmarks.fixtures.clip import build
from benchmarks.fixtures.published import publish
from medclip_dcl.errors import CheckpointError, QueryError
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel, evaluated_model
from medclip_dcl.inference import Finding, load
from medclip_dcl.model_package import read_model_package
from medclip_dcl.models.settings import SimilarityConfig

FINDINGS = (Finding("edema", ("There is an effusion.",), ("No edema.",)),)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 64, 64), dtype=np.uint8)


def test_a_published_model_scores_as_it_answers(tmp_path):
    predictor = load(publish(tmp_path / "model").path, "cpu")
    model = evaluated_model(predictor)
    regions = model.embed_images(IMAGES)
    assert regions.norm(dim=-1) == pytest.approx(torch.ones(3, 4, 4), abs=1e-5)
    expected = predictor.margins(predictor.embed_images(IMAGES), FINDINGS)
    assert model.margins(regions, FINDINGS) == pytest.approx(expected, abs=1e-6)
    assert model.digest == predictor.digest
    assert read_model_package(tmp_path / "model").digest == model.digest


def test_a_clip_is_examined_behind_two_functions():
    clip = build()
    model = EvaluatedModel("clip", clip, SimilarityConfig(kind="global"), 100.0)
    regions, texts = model.embed_images(IMAGES), model.embed_sentences(["No edema.", "Clear."])
    assert regions.shape == (3, 4, 4, 12)
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
        (np.ones((3, 1, 1, 12)), "gave ndarray"),
        (torch.full((3, 1, 1, 12), torch.nan), "not finite"),
    ],
    ids=["no grid", "too few", "no tensor", "not a number"],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_region_vector_is_refused_by_name(vectors, message):
    class Wrong:
        def embed_images(self, _images):
            return vectors

    model = EvaluatedModel("wrong", Wrong(), SimilarityConfig(kind="global"), 1.0)
    with pytest.raises(CheckpointError, match=message):
        model.embed_images(IMAGES)


def test_an_empty_sentence_is_refused():
    model = EvaluatedModel("clip", build(), SimilarityConfig(kind="global"), 1.0)
    with pytest.raises(QueryError, match="a sentence is empty"):
        model.embed_sentences(["No edema.", " "])
