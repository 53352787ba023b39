"""The rows of Table 1: what each changes in a config, and what the paper reports for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from medclip_dcl.config import Config
from medclip_dcl.errors import ConfigError

COLUMNS: Mapping[str, str] = {
    "AUC": "zero_shot.mean_auc",
    "ACC": "zero_shot.mean_balanced_accuracy",
    "CNR": "grounding.cnr",
    "mIoU": "grounding.miou",
    "Recall": "boxes.recall",
    "MedR": "boxes.median_rank",
}
"""Columns of the table -> figures; ACC is balanced, as it is on the paper's balanced images."""

DOUBLES: Mapping[str, str] = {"Recall own": "boxes.own_recall", "MedR own": "boxes.own_median_rank"}
"""The last two again, where the words of another box are wrong even if they read alike."""

BASELINE = "lse_nl"
"""Row that all others are compared with."""

_NO_CORRECTION = {"kind": "infonce", "negatives": "all", "relation": "none"}
_DCL = _NO_CORRECTION | {"kind": "debiased"}


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: short name, that of its folder.
        title: as the table calls it.
        changes: section -> setting -> value, in place of the config's.
        paper: what the paper reports, by column; empty: it has no such row.
        is_trained: whether it is trained here, rather than somebody's model.
    """

    name: str
    title: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    is_trained: bool = True


def _objective(**settings: Any) -> dict[str, dict[str, Any]]:
    return {"objective": _NO_CORRECTION | settings}


def _constant(eta: float) -> dict[str, dict[str, Any]]:
    return {"objective": _DCL, "eta": {"source": "constant", "constant": eta}}


def _paper(*values: float) -> dict[str, float]:
    return dict(zip(COLUMNS, values, strict=True))


PAPER_ROWS = (
    Row(
        "biovil",
        "global score, in BioViL's stead",
        _objective() | {"similarity": {"kind": "global"}},
        _paper(0.78, 0.62, 1.14, 0.17, 0.25, 148),
    ),
    Row(
        BASELINE,
        "LSE+NL (no correction)",
        _objective(),
        _paper(0.79, 0.65, 1.40, 0.19, 0.29, 115),
    ),
    Row(
        "remove_labels",
        "Remove by CheX5 labels",
        _objective(negatives="remove_labels"),
        _paper(0.86, 0.71, 1.37, 0.19, 0.29, 113),
    ),
    Row(
        "resample_text",
        "Resample by Text Sim.",
        _objective(negatives="resample_similar"),
        _paper(0.82, 0.71, 1.37, 0.19, 0.30, 111),
    ),
    Row(
        "remove_text",
        "Remove by Text Sim.",
        _objective(negatives="remove_similar"),
        _paper(0.84, 0.72, 1.39, 0.19, 0.30, 112),
    ),
    Row(
        "reweight_text",
        "Reweight by Text Sim.",
        _objective(negatives="reweight_similar"),
        _paper(0.84, 0.69, 1.40, 0.19, 0.29, 113),
    ),
    Row("dcl_05", "DCL eta=.05", _constant(0.05), _paper(0.80, 0.72, 1.46, 0.19, 0.30, 104)),
    Row("dcl_10", "DCL eta=.1", _constant(0.1), _paper(0.85, 0.72, 1.45, 0.19, 0.29, 111)),
    Row(
        "dcl_lm",
        "DCL-eta_LM",
        {"objective": _DCL, "eta": {"source": "pll"}},
        _paper(0.86, 0.72, 1.49, 0.20, 0.30, 104),
    ),
)
"""Wang et al. 2023, Table 1. BioViL's weights are Microsoft's; where nobody names them, its row
is trained with its kind of score: the cosine of the sentence and the mean region."""

VARIANTS = (
    Row(
        "multipositive",
        "multi-positive by claims",
        _objective(kind="multipositive", relation="claims"),
    ),
    Row(
        "dcl_mates",
        "DCL eta=.1, known positives",
        {
            "objective": _DCL | {"relation": "claims", "floor": "fallback"},
            "eta": {"source": "constant", "constant": 0.1},
        },
    ),
    Row(
        "shuffled", "control: LSE+NL, shuffled", _objective() | {"train": {"shuffle_reports": True}}
    ),
)
"""The project's own, and a control that can learn nothing."""


def chosen_rows(config: Config) -> tuple[Row, ...]:
    """Give the rows that a config asks for, in the table's order, other people's models last.

    Raises:
        ConfigError: `table1.rows` names one that there is not.
    """
    settings = config.table1
    models = {
        item.name: Row(item.name, item.name, paper=_paper_of(item.name), is_trained=False)
        for item in settings.models
    }
    table = [models.pop(row.name, row) for row in (*PAPER_ROWS, *VARIANTS)]
    table += models.values()
    names = [row.name for row in table]
    unknown = sorted(set(settings.rows) - set(names))
    if unknown:
        raise ConfigError(f"table1.rows names {unknown}; choose among {names}")
    optional = {row.name for row in VARIANTS}
    asked = settings.rows or [name for name in names if name not in optional]
    return tuple(row for row in table if row.name in asked)


def _paper_of(name: str) -> Mapping[str, float]:
    return next((row.paper for row in PAPER_ROWS if row.name == name), {})
