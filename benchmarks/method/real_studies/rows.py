"""The rows of the table: what each changes in a fold's config, and what no setting of ours does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from benchmarks.method.real_studies import variants
from benchmarks.method.real_studies.balance import balanced_findings
from benchmarks.method.real_studies.variants import Change

Part = Literal["decisive", "control", "exploratory", "curve", "idea", "ceiling"]


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: short name, by which runs are kept.
        title: as the table calls it.
        part: decisive rows and their controls get ten runs, the others five; points of the
            learning curves and ideas three.
        settings: dotted setting -> value, in place of the fold's.
        change: what is changed besides.
        tune: dotted setting -> values, among which each fold's validation patients choose.
        stopped: name of the row whose weights are those of the best validation step of this run.
        averaged: asked with the running mean of the weights, and not with the last ones.
        members: asked with the mean score of so many models of `IDEA_OF`, of other seeds each.
    """

    name: str
    title: str
    part: Part = "exploratory"
    settings: Mapping[str, Any] = field(default_factory=dict)
    change: Change | None = None
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    stopped: str = ""
    averaged: bool = False
    members: int = 1

    @property
    def points(self) -> dict[str, dict[str, Any]]:
        """Name of each value to choose among -> settings; one without a name: no choice."""
        return {
            str(value): {**self.settings, key: value}
            for key, values in self.tune.items()
            for value in values
        } or {"": dict(self.settings)}


def _objective(kind: str = "infonce", **settings: Any) -> dict[str, Any]:
    return {"objective.kind": kind} | {f"objective.{key}": each for key, each in settings.items()}


_TEXTS = {"directions": "t2i"}
_CROSS = {"relation": "claims", "directions": "both", "image_anchor": "own"}
_PLACE = {"place_weight": 0.3}


def _constant(value: float) -> dict[str, Any]:
    # With `fallback`, the better floor on generated studies: a rival is given its best.
    return _objective("debiased", floor="fallback") | {
        "eta.source": "constant",
        "eta.constant": value,
    }


CONSTANTS = (0.02, 0.05, 0.1, 0.2)
BASELINE, EARLY, CONSTANT = "infonce_both", "infonce_both_early", "best_constant"

DECISIVE = (
    Row(
        BASELINE,
        "InfoNCE, both anchors",
        "decisive",
        _objective() | {"train.validate_every_steps": 75},
        stopped=EARLY,
    ),
    Row("paper", "the paper: text anchors, eta_LM", "decisive", _objective("debiased", **_TEXTS)),
    Row("paper_both", "the paper's loss, both anchors", "decisive", _objective("debiased")),
    Row("cross", "cross", "decisive", _objective("multipositive", **_CROSS)),
    Row(
        "cross_place",
        "cross + place",
        "decisive",
        _objective("multipositive", **_CROSS, **_PLACE),
    ),
    Row(
        "cross_place_words",
        "cross + place, words alone",
        "decisive",
        _objective("multipositive", **_CROSS, **_PLACE, places="words"),
    ),
    Row(
        "cross_shuffled",
        "control: cross, relations shuffled",
        "control",
        _objective("multipositive", **_CROSS),
        variants.shuffled_relations,
    ),
    Row(
        "cross_place_shuffled",
        "control: cross + place, relations shuffled",
        "control",
        _objective("multipositive", **_CROSS, **_PLACE),
        variants.shuffled_relations,
    ),
    Row(
        "cross_places_shuffled",
        "control: cross + place, others' places",
        "control",
        _objective("multipositive", **_CROSS, **_PLACE, places="shuffled"),
    ),
)
"""Ten runs each. InfoNCE's early row and the best constant are made from runs of others."""

_CONSTANT_ROWS = tuple(
    Row(f"constant_{value}", f"DCL, eta = {value}, both anchors", "exploratory", _constant(value))
    for value in CONSTANTS
)


def _similar(kind: str, space: str, **tune: Sequence[Any]) -> Row:
    settings = _objective(negatives=f"{kind}_similar")
    if space == "tfidf":
        settings |= {"objective.similar_by": "table", "objective.similar_table": "${TFIDF}"}
    title = {"mean": "own encoder", "tfidf": "TF-IDF"}[space]
    return Row(
        f"{kind}_{space}",
        f"{kind} by text similarity ({title}), tuned",
        "exploratory",
        settings,
        tune={f"objective.{key}": values for key, values in tune.items()},
    )


HALVES = (
    Row(
        "infonce_images",
        "InfoNCE, image anchors alone",
        settings=_objective(directions="i2t"),
    ),
)
"""Added when two folds of `cross` and of its shuffled control were known: the half of cross that
the control leaves alone. Exploratory, and done with what decides."""

RIVALS = (
    Row("infonce_texts", "InfoNCE, text anchors", settings=_objective(**_TEXTS)),
    Row("sigmoid", "SigLIP", settings=_objective(**_TEXTS), change=variants.sigmoid_pairs),
    *_CONSTANT_ROWS,
    Row(
        "paper_fitted",
        "the paper, a and k fitted to training labels",
        settings=_objective("debiased", **_TEXTS) | {"eta.fit": "labels"},
    ),
    Row(
        "eta_labels",
        "eta by training labels, uncapped",
        settings=_objective("debiased", **_TEXTS) | {"eta.source": "labels", "eta.eta_max": 0.99},
    ),
    Row(
        "eta_labels_capped",
        "eta by training labels, capped",
        settings=_objective("debiased", **_TEXTS) | {"eta.source": "labels"},
    ),
    Row(
        "eta_frequency",
        "eta by how often a sentence is said",
        settings=_objective("debiased", **_TEXTS) | {"eta.source": "frequency"},
    ),
    Row(
        "eta_per_piece",
        "eta by the likelihood of a word piece, fitted",
        settings=_objective("debiased", **_TEXTS),
        change=variants.eta_per_piece,
    ),
    Row(
        "eta_shuffled",
        "control: the paper, eta shuffled",
        settings=_objective("debiased", **_TEXTS),
        change=variants.shuffled_eta,
    ),
    Row(
        "eta_reversed",
        "control: the paper, eta reversed",
        settings=_objective("debiased", **_TEXTS),
        change=variants.reversed_eta,
    ),
    *(_similar("remove", space, remove_share=(0.1, 0.3)) for space in ("mean", "tfidf")),
    *(_similar("resample", space, remove_share=(0.3, 0.5)) for space in ("mean", "tfidf")),
    *(_similar("reweight", space, beta=(5.0, 20.0)) for space in ("mean", "tfidf")),
    Row(
        "remove_labels", "remove by experts' labels", settings=_objective(negatives="remove_labels")
    ),
    Row(
        "relations_texts",
        "relations, text anchors alone",
        settings=_objective("multipositive", relation="claims", **_TEXTS),
    ),
    Row(
        "relations_both",
        "relations, both anchors",
        settings=_objective("multipositive", relation="claims"),
    ),
    Row(
        "cross_oracle",
        "cross, relations by experts' labels",
        settings=_objective("multipositive", **_CROSS | {"relation": "labels"}),
    ),
    Row(
        "whole_studies",
        "all sentences of a study in a step (RadZero)",
        settings=_objective(),
        change=variants.whole_studies,
    ),
    Row(
        "whole_studies_cross",
        "all sentences of a study, cross",
        settings=_objective("multipositive", **_CROSS),
        change=variants.whole_studies,
    ),
    Row(
        "soft_targets",
        "soft targets (MedCLIP)",
        settings=_objective("multipositive", relation="claims"),
        change=variants.soft_targets,
    ),
    Row(
        "without_negations",
        "no negations in abnormal reports (OFF-CLIP)",
        settings=_objective(),
        change=variants.without_negations,
    ),
    Row(
        "normals_together",
        "normal reports as positives (OFF-CLIP)",
        settings=_objective("multipositive", relation="claims"),
        change=variants.normals_together,
    ),
    Row(
        "one_form",
        "sentences in one form (CARZero)",
        settings=_objective(),
        change=variants.one_form,
    ),
    Row("whole_report", "report as one text", settings=_objective(), change=variants.whole_report),
    Row(
        "impression",
        "impression as one text",
        settings=_objective(),
        change=variants.impression_alone,
    ),
)
"""Five runs each, unless three show a row to be far behind."""

CURVES = tuple(
    Row(
        f"{row.name}_{count}",
        f"{row.title}, {count} studies",
        "curve",
        {**row.settings, "train.validate_every_steps": 750},
        partial(variants.fewer_studies, count=count),
    )
    for row in (*DECISIVE, *RIVALS)
    if row.name in (BASELINE, "relations_both")
    for count in (300, 600, 1200)
)
"""What more studies would give: the baseline and the row that leads, on fewer of the fold's
1,655 or so."""

_BOTH = _objective("multipositive", relation="claims")

IDEAS = (
    Row(
        "relations_both_shuffled",
        "control: relations, both anchors, shuffled",
        "idea",
        _BOTH,
        variants.shuffled_relations,
    ),
    Row(
        "relations_both_place",
        "relations, both anchors, + place",
        "idea",
        _BOTH | {"objective.place_weight": 0.3},
    ),
    Row(
        "relations_both_averaged",
        "relations, both anchors, averaged weights",
        "idea",
        _BOTH,
        averaged=True,
    ),
    Row(
        "relations_both_balanced",
        "relations, both anchors, findings balanced",
        "idea",
        _BOTH,
        balanced_findings,
    ),
    Row(
        "relations_both_long",
        "relations, both anchors, three times the steps",
        "idea",
        _BOTH | {"train.steps": 2250, "train.validate_every_steps": 2250},
    ),
    Row("relations_both_four", "relations, both anchors, mean of four seeds", "idea", members=4),
    Row(
        "relations_both_224",
        "relations, both anchors, 224 pixels",
        "idea",
        _BOTH | {"model.image.input_px": 224, "images.size_px": 252},
    ),
    Row(
        "relations_both_wide",
        "relations, both anchors, a tower twice as wide",
        "idea",
        _BOTH | {"model.image.widths": [32, 64, 128]},
    ),
)
"""What might come nearer to the ceiling. Added when one fold of `relations_both` was known, and not
one of these; the last three when the learning curves were. Each is held against it, fold by fold,
by the bar `ideas_ahead`."""
IDEA_OF = "relations_both"

CEILING = Row("ceiling", "ceiling: the tower trained with experts' labels", "ceiling")
FROZEN = Row("frozen", "ceiling: a linear layer on the first weights", "ceiling")
"""A zero-shot row is read against them."""

ROWS = {row.name: row for row in (*DECISIVE, *HALVES, *RIVALS, *CURVES, *IDEAS, CEILING, FROZEN)}
MADE = tuple(
    name
    for name, row in ROWS.items()
    if row.members == 1 and row.part != "ceiling" and "images.size_px" not in row.settings
)
"""Rows of which one model can be made, from the images that the folds share."""
