"""Tables of the pages that are made from the code and from kept results.

`make docs` writes them; `.ci/run` stops where that changes a page.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from medclip_dcl.likelihood.settings import EtaConfig
from pipelines.false_negatives import (
    PAPER_BATCH,
    correction,
    eta_by_likelihood,
    expected_rows,
    same_correction,
)

ROOT = Path(__file__).parents[2]
REAL_STUDIES = "docs/results/real_studies.md"
RESULTS = ROOT / "benchmarks" / "results"
RESULT_PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))


def false_negatives_table() -> str:
    """One row per eta: false negatives to expect at global batches of several sizes."""
    etas = eta_by_likelihood(EtaConfig()) | {"constant": EtaConfig().constant}
    head, *rows = expected_rows(etas, BATCHES)
    a = EtaConfig().a
    kept = [f"{same_correction(a, PAPER_BATCH, size):.3g}" for size in BATCHES]
    reach = [f"{correction(a, size).reach:.0%}" for size in BATCHES]
    rows += [
        ("`a` and cap that keep N eta", "", *kept),
        ("reach of the floor at the cap", "", *reach),
    ]
    return "\n".join([_row(*head), "|---" * len(head) + "|", *(_row(*row) for row in rows)])


def mutants_table() -> str:
    """One row per kind of draw: how many of the mutants that change something are noticed."""
    rooms = json.loads((RESULTS / "mutants.json").read_text("utf-8"))["rooms"]
    rows = [_row("draw", "noticed", "rooms and draws below the target"), "|---|---|---|"]
    for title, fresh in (("first", False), ("fresh", True)):
        noticed, changing, below = 0, 0, []
        for room, draws in rooms.items():
            for found in draws.values():
                if bool(found["without_seed"]) is fresh:
                    one, all_ = found["killed"] + found["timeout"], found["drawn"]
                    all_ -= found["equivalent"]
                    noticed, changing = noticed + one, changing + all_
                    below += [f"{room}, {one} of {all_} (missed)"] * (not found["met"])
        rows.append(_row(title, f"{noticed} of {changing}", "; ".join(below) or "none"))
    return "\n".join(rows)


def real_studies_table() -> str:
    """One row per objective: its figures on tested patients, and what it gains over InfoNCE."""
    head = ("", "runs", "AUC", "of six", "alone", "AUPRC", "accuracy, offset", "inverted")
    rows = [_row(*head, "minus InfoNCE"), "|---" * (len(head) + 1) + "|"]
    figures = (
        "mean_auc",
        "mean_auc_of_six",
        "mean_auc_alone",
        "mean_auprc",
        "mean_accuracy_offset",
    )
    for row in _real_rows():
        against, gain = row["against_baseline"], "-"
        if against is not None:
            gain = f"{against['value']:+.3f}"
            if against["low"] is not None:
                gain += f" [{against['low']:+.3f}, {against['high']:+.3f}]"
        numbers = (_share(row[name]) for name in figures)
        inverted = f"{row['inverted']} of {row['asked']}"
        rows.append(_row(row["title"], str(row["runs"]), *numbers, inverted, gain))
    return "\n".join(rows)


def real_findings_table() -> str:
    """One row per objective: the AUC of each finding, and how alike its two sentences score."""
    rows, found = [], _real_rows()
    names = ("Atelectasis", "Cardiomegaly", "Effusion", "Emphysema", "Nodule", "normal")
    rows = [_row("AUC; correlation of the pair", *names), "|---" * (len(names) + 1) + "|"]
    for row in found:
        cells = (f"{_share(row['auc'][n])}; {_share(row['correlation'][n])}" for n in names)
        rows.append(_row(row["title"], *cells))
    return "\n".join(rows)


def real_questions_table() -> str:
    """One row per objective: retrieval, probes and false negatives."""
    head = ("", "image of a report, R@10", "report of an image, R@10", "median rank",
            "probe, 1 % of labels", "10 %", "all", "false negatives", "pushed away")  # fmt: skip
    rows = [_row(*head), "|---" * len(head) + "|"]
    for row in _real_rows():
        if not row["retrieval"]:
            continue
        found, probe, false = row["retrieval"], row["probe"], row["false_negatives"]
        ranks = (found["report_to_image_r10"], found["image_to_report_r10"])
        shares = (*(probe[name] for name in ("0.01", "0.1", "1")), false["share"], false["pushed"])
        median = f"{found['report_to_image_median']:.0f}"
        rows.append(_row(row["title"], *map(_share, ranks), median, *map(_share, shares)))
    return "\n".join(rows)


def real_primary_table() -> str:
    """One row per comparison that decides: difference, interval, p after Holm, what was visible."""
    head = ("mean AUC", "difference", "95 %", "runs ahead", "p (Holm)", "would have been seen")
    rows = [_row(*head), "|---" * len(head) + "|"]
    kept = json.loads((RESULTS / "real_studies.json").read_text("utf-8"))["tables"]["random"]
    titles = {name: row["title"] for name, row in kept["rows"].items()}
    for name, found in kept["primary"].items():
        one, other = (titles[part] for part in name.split(" - "))
        interval = f"{found['low']:+.3f} to {found['high']:+.3f}"
        ahead, p = f"{found['better']} of {found['runs']}", f"{found['holm']:.2f}"
        difference = f"{found['value']:+.3f}"
        rows.append(
            _row(f"{one}, minus {other}", difference, interval, ahead, p, _share(found["seen"]))
        )
    return "\n".join(rows)


def real_likelihood_table() -> str:
    """One row per language model: how its likelihoods order sentences, and how far eta is off."""
    kept = json.loads((RESULTS / "real_likelihood.json").read_text("utf-8"))["figures"]
    etas = {"paper": "paper", "fitted to claims": "fitted to claims"}
    head = ["language model", "held-out accuracy", "rank correlation with rho", "of a word piece"]
    head += [f"{title}: {figure}" for title in etas.values() for figure in ("expects", "error")]
    rows = [_row(*head), "|---" * len(head) + "|"]
    for name in [key.removesuffix(": order") for key in kept if key.endswith(": order")]:
        cells = [kept[f"{name}: {key}"]
                 for key in ("held-out accuracy", "order", "order, of a word piece")]  # fmt: skip
        cells += [kept[f"{name}, {eta}: {key}"] for eta in etas for key in ("expected", "error")]
        rows.append(_row(name, *(f"{value:.2f}" for value in cells)))
    return "\n".join(rows)


def _real_rows() -> list[dict[str, Any]]:
    kept = json.loads((RESULTS / "real_studies.json").read_text("utf-8"))["tables"]["random"]
    return sorted(kept["rows"].values(), key=lambda row: -row["mean_auc"])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


BATCHES = (64, 512, 4096)
"""Global batches of the table of false negatives."""

TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "false_negatives": ("configs/README.md", false_negatives_table),
    "mutants": ("docs/results/reliability.md", mutants_table),
    "real_studies": (REAL_STUDIES, real_studies_table),
    "real_primary": (REAL_STUDIES, real_primary_table),
    "real_findings": (REAL_STUDIES, real_findings_table),
    "real_questions": (REAL_STUDIES, real_questions_table),
    "real_likelihood": (REAL_STUDIES, real_likelihood_table),
}


def with_table(text: str, name: str, table: str) -> str:
    """Put a table between the marks that bear its name."""
    marks = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"no marks for table {name}")
    return marks.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


def with_runs(text: str) -> str:
    """Put command, machine and day below each `<!-- runs: FILE COMMAND [at TAG]; ... -->`."""
    return re.sub(
        r"(<!-- runs: ([^\n]*) -->\n).*?(<!-- end of table -->)",
        lambda match: f"{match[1]}{_runs(match[2])}\n{match[3]}",
        text,
        flags=re.DOTALL,
    )


def _runs(runs: str) -> str:
    lines = []
    for run in runs.split("; "):
        file, command = run.split(" ", 1)
        kept = json.loads((RESULTS / file).read_text("utf-8"))
        facts = kept["machine"]
        cores = f"{facts['cores']} core{'s' * (facts['cores'] > 1)} of {facts['processor']}"
        machine = f"{facts['accelerator'] or cores}, {facts.get('date', '')}"
        command, at, tag = command.partition(" at ")  # a study whose code has left the tree
        shown = f"`{kept.get('command', f'python -m benchmarks.{command}')}`"
        shown += f" at `{tag}`" * bool(at)
        lines.append(f"[{file}](../../benchmarks/results/{file}): {shown}, {machine}")
    return "\n".join(lines if len(lines) == 1 else [f"- {line}" for line in lines])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Write every table into its README."""
    for name, (file, make) in TABLES.items():
        path = ROOT / file
        path.write_text(with_table(path.read_text("utf-8"), name, make()), "utf-8")
        print(f"{file}: {name}")
    for path in RESULT_PAGES:
        path.write_text(with_runs(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
