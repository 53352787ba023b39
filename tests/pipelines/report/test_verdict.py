from typing import Any

from pipelines.report.page import describe_verdict


def figure(value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high}


def results(**auc: dict[str, Any]) -> dict[str, Any]:
    questions = {
        "zero_shot": {"groups": {name: {"auc": item} for name, item in auc.items()}, "absent": ""},
        "grounding": {
            "figures": {"cnr_signed": figure(0.9, 0.6, 1.2)},
            "chance": {"cnr_signed": 0.1},
        },
    }
    names = ("boxes.own_recall", "grounding.cnr_signed", "zero_shot.mean_auc", "other")
    headlines = [{"name": name, "figure": figure(0.7, 0.6, 0.8), "chance": 0.5} for name in names]
    return {"questions": questions, "headlines": headlines}


def test_the_sentence_counts_findings_and_names_the_weakest() -> None:
    view = describe_verdict(
        results(edema=figure(0.91), effusion=figure(0.80), pneumonia=figure(0.61)), None, None
    )
    assert view["sentence"] == (
        "Finds 2 of 3 findings (AUC of at least 0.80); the weakest is pneumonia with 0.61. Its "
        "heatmaps point to the marked places."
    )
    assert [tile["name"] for tile in view["tiles"]] == [
        "zero_shot.mean_auc",
        "grounding.cnr_signed",
        "boxes.own_recall",
    ]
    assert {tile["standing"] for tile in view["tiles"]} == {"good"}
    assert view["warnings"] == []


def test_what_makes_a_run_worthless_is_said() -> None:
    backwards = results(edema=figure(0.037, 0.011, 0.077), effusion=figure(0.45, 0.3, 0.6))
    view = describe_verdict(backwards, {"expected": 0.02}, {"languages": {"en": 300, "de": 60}})
    found = " ".join(view["warnings"])
    assert "edema is read backwards: AUC 0.037" in found
    assert "effusion" not in found  # its interval holds chance
    assert "negatives 0.02 are expected to be false" in found
    assert "60 of 360 reports" in found
    assert len(view["warnings"]) == 3


def test_a_run_without_results_has_no_sentence() -> None:
    view = describe_verdict(None, {"expected": 3.0}, {"languages": {"en": 9}})
    assert view == {"sentence": None, "tiles": [], "warnings": []}
