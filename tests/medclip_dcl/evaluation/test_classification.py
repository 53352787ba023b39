import numpy as np
import pytest
import torch

from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.classification import (
    UNKNOWN,
    balance,
    evaluate_classes,
    evaluate_findings,
    exact_truth,
    finding_figures,
    labelled_truth,
    mean_finding_figures,
    measure_classes,
)
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.metrics import roc_auc
from medclip_dcl.evaluation.results import CLASSES, SCORES
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import SimilarityConfig
from tests.support.oracle import oracle, shown

FINDINGS = (Finding("fluid", ("Fluid.",), ("Normal.",)), Finding("cyst", ("Cyst.",), ("Normal.",)))
IMAGES = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {}, {(3, 3): "fluid"})
SAMPLING = BootstrapOptions(20, 0)


def test_a_model_that_knows_the_answer_has_an_area_of_one():
    truth = np.array([[1, 0, 0, 1], [0, 1, 0, UNKNOWN]], dtype=np.int8)
    outcome, rows = evaluate_findings(oracle(), IMAGES, FINDINGS, truth, SAMPLING)
    assert outcome.figures["mean_auc"].value == 1.0
    assert outcome.groups["cyst"]["auc"].n == 3
    assert outcome.absent == ""
    assert set(outcome.chance.values()) == {0.5}
    assert outcome.pool == {"images": 4, "findings": 2}
    assert [row["truth"] for row in rows] == [1, 0, 0, 1, 0, 1, 0, None]
    assert set(rows[0]) == set(SCORES.schema.names)
    assert all(0 <= row["score"] <= 1 for row in rows)


def test_images_without_labels_are_scored_and_the_question_is_named_absent():
    truth = np.full((2, 4), UNKNOWN, dtype=np.int8)
    outcome, rows = evaluate_findings(oracle(), IMAGES, FINDINGS, truth, SAMPLING)
    assert outcome.absent == "no image has a label"
    assert outcome.figures["mean_auc"].value is None
    assert len(rows) == 8


def test_one_of_several_findings_is_named():
    images = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {(1, 1): "fluid"}, {})
    truth = np.array([[1, 0, 0, 0], [0, 1, UNKNOWN, 1]], dtype=np.int8)
    truth[0, 2] = 1
    outcome, rows = evaluate_classes(oracle(), images, FINDINGS, truth, SAMPLING, 10)
    # The last image shows nothing, so both classes score alike: it is wrong.
    assert outcome.figures["accuracy"].value == 0.75
    assert outcome.figures["mean_recall"].value == 0.75  # fluid 2 of 2, cyst 1 of 2
    assert outcome.groups["cyst"]["recall"].value == 0.5
    assert outcome.chance == {"accuracy": 0.5, "mean_recall": 0.5}
    assert [row["answer"] for row in rows] == ["fluid", "cyst", "fluid", None]
    assert set(rows[0]) == set(CLASSES.schema.names)


def test_images_of_several_findings_have_no_class_and_classes_are_drawn_alike():
    images = shown(*[{(0, 0): "fluid"}] * 9, {(0, 0): "cyst"}, {(0, 0): "cyst"})
    truth = np.array([[1] * 9 + [0] * 2, [1] + [0] * 8 + [1] * 2], dtype=np.int8)
    outcome, rows = evaluate_classes(oracle(), images, FINDINGS, truth, SAMPLING, 7)
    assert [row["finding"] for row in rows].count("fluid") == 7
    drawn = {row["image_id"] for row in rows}
    assert "image-0" not in drawn
    assert len(drawn) == 9  # nobody twice
    assert outcome.pool == {"images": 9, "classes": 2}


def test_chosen_images_keep_everything_that_is_theirs():
    chosen = IMAGES.select([3, 1])
    assert chosen.image_ids == ("image-3", "image-1")
    assert chosen.subject_ids == ("p-image-3", "p-image-1")
    assert (chosen.regions[0] == IMAGES.regions[3]).all()


MARGINS = np.array([[0.4, -0.1, 0.2, -0.3], [0.1, 0.2, 0.3, 0.4]])
TRUTH = np.array([[1, 1, 0, 0], [1, UNKNOWN, 0, 1]], dtype=np.int8)
SUBJECTS = ["a", "b", "c", "d"]


def test_images_of_unknown_truth_are_left_out_of_a_finding():
    figures = finding_figures(MARGINS[1], TRUTH[1], SUBJECTS, BootstrapOptions(0, 0))
    assert figures["auc"].value == 0.5  # .1 < .3 < .4
    assert (figures["auc"].n, figures["auc"].subjects) == (3, 3)
    assert figures["accuracy"].value == pytest.approx(2 / 3)
    assert figures["balanced_accuracy"].value == 0.5


def test_an_offset_moves_the_decision_and_nothing_else():
    # margins .4 and -.1 with the finding, .2 and -.3 without
    plain = finding_figures(MARGINS[0], TRUTH[0], SUBJECTS, BootstrapOptions(0, 0))
    assert plain["balanced_accuracy"].value == 0.5
    assert "balanced_accuracy_offset" not in plain
    moved = finding_figures(MARGINS[0], TRUTH[0], SUBJECTS, BootstrapOptions(0, 0), -0.2)
    assert moved["balanced_accuracy_offset"].value == 0.75  # .4, -.1 above; -.3 below
    assert {name: moved[name] for name in plain} == plain


def test_the_mean_by_offsets_needs_the_offset_of_each_finding():
    options = BootstrapOptions(0, 0)
    some = mean_finding_figures(MARGINS, TRUTH, SUBJECTS, options, [-0.2, None])
    assert "mean_balanced_accuracy_offset" not in some
    both = mean_finding_figures(MARGINS, TRUTH, SUBJECTS, options, [-0.2, 0.05])
    assert both["mean_balanced_accuracy_offset"].value == (0.75 + 0.5) / 2


def test_a_finding_of_one_class_says_why_it_has_no_figure():
    truth = np.array([0, 0, UNKNOWN, 0], dtype=np.int8)
    figures = finding_figures(MARGINS[0], truth, SUBJECTS, BootstrapOptions(10, 0))
    assert figures["auc"].value is None
    assert "two classes" in figures["auc"].reason
    assert figures["accuracy"].value == pytest.approx(2 / 3)


def test_the_mean_is_over_findings_that_have_both_classes():
    truth = np.vstack([TRUTH, np.zeros((1, 4), dtype=np.int8)])
    margins = np.vstack([MARGINS, np.ones((1, 4))])
    figure = mean_finding_figures(margins, truth, SUBJECTS, BootstrapOptions(100, 0))["mean_auc"]
    assert figure.value == pytest.approx((0.75 + 0.5) / 2)
    assert 0 <= figure.low <= figure.high <= 1


def test_classes_by_hand():
    answers, shown = np.array([0, 1, -1, 2, 2]), np.array([0, 1, 1, 2, 0])
    weights = np.array(
        [[1, 1, 1, 1, 1], [0, 0, 2, 1, 1]]
    )  # the second: one of four right, the third class
    found = measure_classes(answers == shown, shown, [0, 1, 2], weights)
    assert found["accuracy"].tolist() == [0.6, 0.25]
    assert found["mean_recall"] == pytest.approx([(0.5 + 0.5 + 1) / 3, (0 + 0 + 1) / 3])
    assert found["2.recall"].tolist() == [1.0, 1.0]


LABELLED = (
    Finding("effusion", ("a",), ("b",), "Pleural Effusion"),
    Finding("gout", ("a",), ("b",)),
)


def test_exact_truth_knows_every_type_and_nothing_else():
    truth = exact_truth(LABELLED, ["i", "j", "k"], {"i": {"effusion"}, "j": set()}, {"effusion"})
    assert truth.tolist() == [[1, 0, UNKNOWN], [UNKNOWN] * 3]


def test_uncertain_and_blank_labels_are_dropped():
    labels = [
        {"study_id": str(number), "Pleural Effusion": value}
        for number, value in enumerate([1, 0, -1, None])
    ]
    truth = labelled_truth(LABELLED, ["0", "1", "2", "3", "unlabelled"], labels)
    assert truth.tolist() == [[1, 0, UNKNOWN, UNKNOWN, UNKNOWN], [UNKNOWN] * 5]


def test_a_balanced_share_has_as_many_images_with_a_finding_as_without() -> None:
    truth = np.array([[1, 1, 1, 0, 0, 0, 0, UNKNOWN], [1, 0, 0, 0, 0, 0, 0, 0]], dtype=np.int8)
    assert balance(truth, 0, np.random.default_rng(0)) is truth
    for most, counts in ((4, (2, 1)), (5, (2, 1)), (1000, (3, 1))):
        drawn = balance(truth, most, np.random.default_rng(0))
        for state, chosen, count in zip(truth, drawn, counts, strict=True):
            assert [(chosen == value).sum() for value in (0, 1)] == [count, count]
            assert (chosen[chosen != UNKNOWN] == state[chosen != UNKNOWN]).all()
    others = [balance(truth, 2, np.random.default_rng(seed))[0].tolist() for seed in range(20)]
    assert len(set(map(tuple, others))) > 1


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


def test_a_finding_without_a_negative_prompt_is_ranked_by_its_positive() -> None:
    images, truth, model = asked()
    alone = Finding("edema", FINDING.positive)
    points = images.regions[:, 0, 0].double().numpy()
    shown = truth[0] == 1
    outcome, rows = evaluate_findings(model, images, [alone], truth, BootstrapOptions(0, 0))
    mean = sum(np.array(WORDS[text]) for text in alone.positive) / 2
    expected = roc_auc(points @ mean, shown)[0]
    assert outcome.groups["edema"]["auc"].value == pytest.approx(expected)
    assert {row["negative"] for row in rows} == {0.0}  # of a model that is not ours no level
    assert outcome.groups["edema"]["prompt_correlation"].value is None
