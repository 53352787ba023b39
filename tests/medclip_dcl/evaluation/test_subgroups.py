import numpy as np
import pytest
import torch

from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import EncodedImages
from medclip_dcl.evaluation.metrics import roc_auc
from medclip_dcl.evaluation.subgroups import (
    evaluate_paraphrases,
    evaluate_subgroups,
    prompt_pairs,
)
from medclip_dcl.inference import Finding
from medclip_dcl.models.settings import SimilarityConfig

SAMPLING = BootstrapOptions(samples=40, seed=0)
MARGINS = np.array([[0.9, 0.1, 0.8, 0.2, 0.1, 0.9, 0.3, 0.7]])
TRUTH = np.array([[1, 0, 1, 0, 1, 0, 1, 0]], dtype=np.int8)
VIEWS = ["PA"] * 4 + ["AP"] * 4
OWNERS = [f"p{number}" for number in range(8)]


def test_each_group_has_the_figures_of_its_own_images_and_the_gap_is_between_them() -> None:
    found = evaluate_subgroups(MARGINS, TRUTH, OWNERS, {"view": VIEWS}, SAMPLING, 2)
    assert found.pool == {"view: AP": 4, "view: PA": 4}
    assert found.groups["view: PA"]["mean_auc"].value == 1
    assert found.groups["view: AP"]["mean_auc"].value == 0
    assert found.groups["view: AP"]["mean_auc"].n == 4
    assert found.figures["gap.view"].value == 1


def test_a_group_of_few_patients_is_withheld_and_makes_no_gap() -> None:
    views = ["PA"] * 6 + ["AP"] * 2
    owners = [*OWNERS[:6], "p6", "p6"]
    found = evaluate_subgroups(MARGINS, TRUTH, owners, {"view": views}, SAMPLING, 2)
    withheld = found.groups["view: AP"]["mean_auc"]
    assert withheld.value is None
    assert withheld.reason == "fewer than 2 patients"
    assert found.figures == {}


def test_images_whose_trait_is_not_known_are_in_no_group() -> None:
    found = evaluate_subgroups(
        MARGINS, TRUTH, OWNERS, {"sex": ["female"] * 4 + [""] * 4}, SAMPLING, 2
    )
    assert found.pool == {"sex: female": 4}
    nobody = evaluate_subgroups(MARGINS, TRUTH, OWNERS, {"view": [""] * 8}, SAMPLING, 2)
    assert "known" in nobody.absent


def test_the_gap_rests_on_findings_that_every_group_has_with_and_without() -> None:
    rng = np.random.default_rng(0)
    margins = rng.normal(size=(2, 60))
    truth = (rng.uniform(size=(2, 60)) < 0.5).astype(np.int8)
    views = np.array(["PA", "AP"] * 30)
    truth[1, views == "AP"] = 0  # nobody filmed AP has the second finding
    owners = [f"p{number}" for number in range(60)]
    found = evaluate_subgroups(margins, truth, owners, {"view": views.tolist()}, SAMPLING, 2)
    areas = [
        roc_auc(margins[0, views == view], truth[0, views == view] == 1)[0] for view in ("AP", "PA")
    ]
    gap = found.figures["gap.view"]
    assert gap.value == pytest.approx(abs(areas[0] - areas[1]), abs=1e-12)
    assert 0 <= gap.low <= gap.high <= 1


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
        roc_auc(points @ (np.array(WORDS[plus]) - np.array(WORDS[minus])), truth[0] == 1)[0]
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
    expected = roc_auc(images.regions[:, 0, 0].double().numpy() @ mean, truth[0] == 1)[0]
    assert outcome.groups["edema"]["auc_ensemble"].value == pytest.approx(expected)


def test_one_pair_has_no_spread() -> None:
    images, truth, model = asked()
    alone = Finding("edema", ("yes",), ("no",))
    figures = evaluate_paraphrases(model, images, [alone], truth, BootstrapOptions(5, 0))[0].groups[
        "edema"
    ]
    assert figures["auc_spread"].value == 0
    assert figures["auc_lowest"].value == figures["auc_ensemble"].value
