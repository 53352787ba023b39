import numpy as np
import pytest

from medclip_dcl.evaluation.inputs import BootstrapOptions
from medclip_dcl.evaluation.metrics import roc_auc
from medclip_dcl.evaluation.subgroups import evaluate_subgroups

SAMPLING = BootstrapOptions(samples=40, seed=0)
MARGINS = np.array([[0.9, 0.1, 0.8, 0.2, 0.1, 0.9, 0.3, 0.7]])
TRUTH = np.array([[1, 0, 1, 0, 1, 0, 1, 0]], dtype=np.int8)
VIEWS = ["PA"] * 4 + ["AP"] * 4
OWNERS = [f"p{number}" for number in range(8)]


def test_each_group_has_the_figures_of_its_own_images_and_the_gap_is_between_them() -> None:
    found = evaluate_subgroups(MARGINS, TRUTH, OWNERS, {"view": VIEWS}, 2, SAMPLING)
    assert found.pool == {"view: AP": 4, "view: PA": 4}
    assert found.groups["view: PA"]["mean_auc"].value == 1
    assert found.groups["view: AP"]["mean_auc"].value == 0
    assert found.groups["view: AP"]["mean_auc"].n == 4
    assert found.figures["gap.view"].value == 1


def test_a_group_of_few_patients_is_withheld_and_makes_no_gap() -> None:
    views = ["PA"] * 6 + ["AP"] * 2
    owners = [*OWNERS[:6], "p6", "p6"]
    found = evaluate_subgroups(MARGINS, TRUTH, owners, {"view": views}, 2, SAMPLING)
    withheld = found.groups["view: AP"]["mean_auc"]
    assert withheld.value is None
    assert withheld.reason == "fewer than 2 patients"
    assert found.figures == {}


def test_images_whose_trait_is_not_known_are_in_no_group() -> None:
    found = evaluate_subgroups(
        MARGINS, TRUTH, OWNERS, {"sex": ["female"] * 4 + [""] * 4}, 2, SAMPLING
    )
    assert found.pool == {"sex: female": 4}
    nobody = evaluate_subgroups(MARGINS, TRUTH, OWNERS, {"view": [""] * 8}, 2, SAMPLING)
    assert "known" in nobody.absent


def test_the_gap_rests_on_findings_that_every_group_has_with_and_without() -> None:
    rng = np.random.default_rng(0)
    margins = rng.normal(size=(2, 60))
    truth = (rng.uniform(size=(2, 60)) < 0.5).astype(np.int8)
    views = np.array(["PA", "AP"] * 30)
    truth[1, views == "AP"] = 0  # nobody filmed AP has the second finding
    owners = [f"p{number}" for number in range(60)]
    found = evaluate_subgroups(margins, truth, owners, {"view": views.tolist()}, 2, SAMPLING)
    areas = [
        roc_auc(margins[0, views == view], truth[0, views == view] == 1) for view in ("AP", "PA")
    ]
    gap = found.figures["gap.view"]
    assert gap.value == pytest.approx(abs(areas[0] - areas[1]), abs=1e-12)
    assert 0 <= gap.low <= gap.high <= 1
