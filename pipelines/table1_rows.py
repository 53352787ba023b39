"""The rows of Table 1: what each changes in a config, and what the paper reports for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation.settings import Table1Config

from .config import Config

COLUMNS: Mapping[str, str] = {
    "AUC": "zero_shot.mean_auc",
    "ACC": "zero_shot.mean_balanced_accuracy",
    "CNR": "grounding.cnr",
    "mIoU": "grounding.miou",
    "Recall": "boxes.own_recall",
    "MedR": "boxes.own_median_rank",
}
"""Columns of the table -> figures. ACC is balanced; the paper says accuracy, on about 1,000 images
a task, and not how many of them show the finding."""

COMPARED = tuple(
    "grounding.cnr_signed" if figure == "grounding.cnr" else figure for figure in COLUMNS.values()
)
"""Figures in which rows are compared: CNR with its sign, without which chance is far above 0."""

MORE: Mapping[str, str] = {
    "signed CNR": "grounding.cnr_signed",
    "ACC offset": "zero_shot.mean_balanced_accuracy_offset",
    "Recall ties": "boxes.expected_recall",
    "MedR ties": "boxes.expected_median_rank",
    "Recall words": "boxes.recall",
    "MedR words": "boxes.median_rank",
}
"""Not the paper's: CNR with its sign; decisions by the offset of each prompt; and the last two
columns again, with ties in random order, and where the same words on another box count as right."""

BASELINE = "lse_nl"
"""Row that all others are compared with."""

# Wang et al. 2023, Table 1, in the order of COLUMNS. Its BioViL is Microsoft's weights.
_PAPER = {
    "biovil": (0.78, 0.62, 1.14, 0.17, 0.25, 148),
    "lse_nl": (0.79, 0.65, 1.40, 0.19, 0.29, 115),
    "remove_labels": (0.86, 0.71, 1.37, 0.19, 0.29, 113),
    "resample_text": (0.82, 0.71, 1.37, 0.19, 0.30, 111),
    "remove_text": (0.84, 0.72, 1.39, 0.19, 0.30, 112),
    "reweight_text": (0.84, 0.69, 1.40, 0.19, 0.29, 113),
    "dcl_05": (0.80, 0.72, 1.46, 0.19, 0.30, 104),
    "dcl_10": (0.85, 0.72, 1.45, 0.19, 0.29, 111),
    "dcl_lm": (0.86, 0.72, 1.49, 0.20, 0.30, 104),
}


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: short name, that of its folder.
        title: as the table calls it.
        changes: dotted setting -> value, in place of the config's.
        tune: dotted setting -> the values among which validation chooses.
        adapter: a given model, as `evaluate.adapter`; None: the row is trained here.
    """

    name: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    adapter: Mapping[str, Any] | None = None

    @property
    def is_trained(self) -> bool:
        """Whether it is trained here, and so differs from seed to seed."""
        return self.adapter is None


def _objective(kind: str = "infonce", **settings: Any) -> dict[str, Any]:
    every = {"kind": kind, "negatives": "all", "relation": "none"} | settings
    return {f"objective.{name}": value for name, value in every.items()}


def _debiased(eta: float, **settings: Any) -> dict[str, Any]:
    return _objective("debiased", **settings) | {"eta.source": "constant", "eta.constant": eta}


_OTHERS = "others"  # rows whose seeds are not named
_GLOBAL = {"model.similarity.kind": "global"}

PAPER_ROWS = (
    Row("biovil", "global score, in BioViL's stead", _objective() | _GLOBAL),
    Row(BASELINE, "LSE+NL (no correction)", _objective()),
    Row("remove_labels", "Remove by CheX5 labels", _objective(negatives="remove_labels")),
    Row(
        "resample_text",
        "Resample by Text Sim.",
        _objective(negatives="resample_similar"),
        {"objective.remove_share": (0.1, 0.3, 0.5)},
    ),
    Row(
        "remove_text",
        "Remove by Text Sim.",
        _objective(negatives="remove_similar"),
        {"objective.remove_share": (0.02, 0.1, 0.3)},
    ),
    Row(
        "reweight_text",
        "Reweight by Text Sim.",
        _objective(negatives="reweight_similar"),
        {"objective.beta": (1.0, 5.0, 20.0)},
    ),
    Row("dcl_05", "DCL eta=.05", _debiased(0.05)),
    Row("dcl_10", "DCL eta=.1", _debiased(0.1)),
    Row(
        "dcl_lm",
        "DCL-eta_LM",
        _objective("debiased") | {"eta.source": "pll", "eta.fit": "none"},
        {"eta.a": (0.1, 0.2, 0.5), "eta.k": (0.1, 0.35)},  # the scale of the language model
    ),
)
"""The paper's, its two constants next to each other. BioViL's weights are Microsoft's; where nobody
names them, its row is trained with its kind of score: the cosine of the sentence and the mean
region."""


def _cross(**settings: Any) -> dict[str, Any]:
    own = {"directions": "both", "image_anchor": "own"}
    return _objective("multipositive", relation="claims", **own, **settings)


_MATES = {"relation": "claims", "floor": "fallback"}
_SHUFFLED = {"train.shuffle_reports": True}

VARIANTS = (
    Row(
        "multipositive", "multi-positive by claims", _objective("multipositive", relation="claims")
    ),
    Row("cross", "cross", _cross()),
    Row("cross_place", "cross + place", _cross(place_weight=0.3)),
    Row("dcl_best", "DCL, best constant", _debiased(0.1), {"eta.constant": (0.02, 0.05, 0.1, 0.2)}),
    Row("dcl_mates", "DCL eta=.1, known false negatives", _debiased(0.1, **_MATES)),
    Row("shuffled", "control: LSE+NL, shuffled", _objective() | _SHUFFLED),
    Row(
        "cross_shuffled",
        "control: cross + place, shuffled",
        _cross(place_weight=0.3) | _SHUFFLED,
    ),
    Row(
        "cross_places",
        "control: cross, others' places",
        _cross(place_weight=0.3, places="shuffled"),
    ),
)
"""The project's own; controls that can learn nothing, and one whose places are wrong."""


def paper_values(row: Row, config: Config) -> dict[str, float]:
    """Give what the paper reports of a row, by column; empty where ours is not trained as its.

    The paper's rows have text anchors alone, the LSE+NL score and no other loss. BioViL's is that
    of Microsoft's weights, which `evaluate.adapter` names as `biovil`.
    """
    objective, score = config.objective, config.model.similarity.kind
    as_the_paper = (objective.directions, objective.place_weight, score) == ("t2i", 0, "lse_nl")
    if row.name == "biovil":
        as_the_paper = row.title == "biovil"  # the model itself, not ours in its stead
    if not as_the_paper:
        return {}
    return dict(zip(COLUMNS, _PAPER.get(row.name, ()), strict=False))


def row_seeds(row: Row, settings: Table1Config) -> tuple[int, ...]:
    """Give the seeds of a row: its own, else those of all; of a given model the first."""
    given = settings.seeds if isinstance(settings.seeds, dict) else {_OTHERS: settings.seeds}
    seeds = given.get(row.name) or given[_OTHERS]
    return seeds if row.is_trained else seeds[:1]


def tuned_by(config: Config) -> str:
    """Name the figure of validation by which rows are tuned; empty where the config has none."""
    train = config.train
    validates = train.validate_every_steps and train.validate_images
    return train.best_metric or ("validation_report_auc" if validates else "")


def chosen_rows(config: Config) -> tuple[Row, ...]:
    """Give the rows that a config asks for, in the table's order.

    Raises:
        ConfigError: `table1.rows` or `table1.seeds` names one that there is not.
    """
    settings = config.table1
    table = [*PAPER_ROWS, *VARIANTS]
    if given := config.evaluate.adapter.model:
        adapter = config.evaluate.adapter.model_dump(mode="json")
        table[0] = Row(PAPER_ROWS[0].name, given, adapter=adapter)
    names = [row.name for row in table]
    unknown = sorted(set(settings.rows) - set(names))
    if unknown:
        raise ConfigError(f"table1.rows names {unknown}; choose among {names}")
    if isinstance(settings.seeds, dict):
        if strange := sorted(set(settings.seeds) - {*names, _OTHERS}):
            raise ConfigError(f"table1.seeds names {strange}; choose among {[*names, _OTHERS]}")
        if _OTHERS not in settings.seeds:
            raise ConfigError(f"table1.seeds names rows alone; give those of all {_OTHERS} too")
    optional = {row.name for row in VARIANTS}
    asked = settings.rows or [name for name in names if name not in optional]
    return tuple(row for row in table if row.name in asked)
