import numpy as np
import pytest
import torch

from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import BootstrapOptions, EncodedImages
from medclip_dcl.evaluation.metrics import roc_auc
from medclip_dcl.evaluation.subgroups import evaluate_paraphrases, prompt_pairs
from medclip_dcl.inference.zero_shot import Finding
from medclip_dcl.models.settings import SimilarityConfig

WORDS = {"yes": [1.0, 0.0], "indeed": [0.6, 0.8], "no": [-1.0, 0.0], "never": [0.0, -1.0]}
FINDING = Finding("edema", ("yes", "indeed"), ("no", "never"))


class Plane:
    """A model whose images and sentences are points of a plane."""

    def embed_images(self, images: np.ndarray) -> torch.Tensor:
        raise AssertionError("the images are encoded already")

    def embed_sentences(self, texts: list[str]) -> torch.Tensor:
        return torch.tensor([WORDS[text] for text in texts])


def asked(images: int = 12) -> tuple[EncodedImages, np.ndarray, EvaluatedModel]:
    rng = np.random.default_rng(3)
    angles = rng.uniform(0, 2 * np.pi, images)
    indices = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    names = tuple(f"p{number}" for number in range(images))
    regions = torch.tensor(indices, dtype=torch.float32)[:, None, None]
    truth = (indices[:, :1].T + rng.normal(size=(1, images)) > 0).astype(np.int8)
    model = EvaluatedModel("0" * 64, Plane(), SimilarityConfig(kind="global"), 1.0)
    return EncodedImages(names, names, ((1, 1),) * images, regions), truth, model


def test_every_positive_prompt_meets_every_negative_one() -> None:
    assert prompt_pairs(FINDING) == [
        *(("yes", "no"), ("yes", "never"), ("indeed", "no"), ("indeed", "never"))
    ]


def test_the_spread_is_that_of_the_pairs_asked_one_by_one() -> None:
    images, truth, model = asked()
    outcome, rows = evaluate_paraphrases(model, images, [FINDING], truth, BootstrapOptions(20, 0))
    points = images.regions[:, 0, 0].double().numpy()
    areas = [
        roc_auc(points @ (np.array(WORDS[plus]) - np.array(WORDS[minus])), truth[0] == 1)
        for plus in FINDING.positive
        for minus in FINDING.negative
    ]
    assert [row["auc"] for row in rows] == pytest.approx(areas)
    figures = outcome.groups["edema"]
    assert figures["auc_lowest"].value == pytest.approx(min(areas))
    assert figures["auc_highest"].value == pytest.approx(max(areas))
    assert figures["auc_spread"].value == pytest.approx(max(areas) - min(areas))
    assert max(areas) > min(areas)
    assert outcome.pool == {"edema": 4}


def test_the_ensemble_averages_the_scores_of_a_side() -> None:
    images, truth, model = asked()
    outcome, _ = evaluate_paraphrases(model, images, [FINDING], truth, BootstrapOptions(0, 0))
    mean = sum(np.array(WORDS[text]) for text in FINDING.positive) / 2
    mean = mean - sum(np.array(WORDS[text]) for text in FINDING.negative) / 2
    expected = roc_auc(images.regions[:, 0, 0].double().numpy() @ mean, truth[0] == 1)
    assert outcome.groups["edema"]["auc_ensemble"].value == pytest.approx(expected)


def test_one_pair_has_no_spread() -> None:
    images, truth, model = asked()
    alone = Finding("edema", ("yes",), ("no",))
    figures = evaluate_paraphrases(model, images, [alone], truth, BootstrapOptions(5, 0))[0].groups[
        "edema"
    ]
    assert figures["auc_spread"].value == 0
    assert figures["auc_lowest"].value == figures["auc_ensemble"].value
