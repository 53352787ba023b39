"""Tables of results for the site, and the commands, machines and days of the result pages.

The site has a table where a page says `<!-- table: NAME -->`, and
`python -m tests.house.documents NAME` prints it. Without a name machine and day are written again
in lines that name a kept result, as `make docs` does; `.ci/run` stops where that changes a page.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RESULT_PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))


def real_studies_table() -> str:
    """One row per objective: its figures on tested patients, and what it gains over InfoNCE."""
    head = ("", "runs", "AUC", "of six", "alone", "AUPRC", "accuracy, offset", "inverted",
            "minus InfoNCE", "would have been seen")  # fmt: skip
    rows = [_row(*head), "|---" * len(head) + "|"]
    figures = (
        "mean_auc",
        "mean_auc_of_six",
        "mean_auc_alone",
        "mean_auprc",
        "mean_accuracy_offset",
    )
    for row in _real_rows():
        against = row["against_baseline"]
        numbers = [*map(_share, (row[name] for name in figures)), _inverted(row), _gain(against)]
        seen = None if against is None else against["seen"]
        rows.append(_row(row["title"], str(row["runs"]), *numbers, _share(seen)))
    return "\n".join(rows)


def real_warm_table() -> str:
    """One row per objective: its figures from pretrained images, and what these give and cost."""
    head = ("warm start", "runs", "AUC", "inverted", "minus InfoNCE", "minus its random start")
    rows = [_row(*head), "|---" * len(head) + "|"]
    for row in _real_rows("warm"):
        if row["runs"] < 5:  # a constant that some folds chose
            continue
        gains = (_gain(row[f"against_{other}"]) for other in ("baseline", "random"))
        figures = (str(row["runs"]), _share(row["mean_auc"]), _inverted(row))
        rows.append(_row(row["title"], *figures, *gains))
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


def _real_rows(start: str = "random") -> list[dict[str, Any]]:
    kept = json.loads((RESULTS / "real_studies.json").read_text("utf-8"))["tables"][start]
    return sorted(kept["rows"].values(), key=lambda row: -row["mean_auc"])


def _inverted(row: Mapping[str, Any]) -> str:
    return f"{row['inverted']} of {row['asked']}"


def _gain(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    interval = "" if found["low"] is None else f" [{found['low']:+.3f}, {found['high']:+.3f}]"
    return f"{found['value']:+.3f}{interval}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


TABLES: dict[str, Callable[[], str]] = {
    "real_studies": real_studies_table,
    "real_warm": real_warm_table,
    "real_primary": real_primary_table,
    "real_findings": real_findings_table,
    "real_questions": real_questions_table,
    "real_likelihood": real_likelihood_table,
}


def with_tables(text: str) -> str:
    """Put each table where the page names it."""
    return re.sub(r"<!-- table: (\w+) -->", lambda match: TABLES[match[1]](), text)


RUN = re.compile(
    r"^((?:- )?)\[([\w.]+)\]\(\.\./\.\./benchmarks/results/\2\): `([^`]+)`(?: at `([^`]+)`)?, .*$",
    re.MULTILINE,
)


def with_runs(text: str) -> str:
    """Write machine and day again in each line that names a kept result and its command."""
    return RUN.sub(lambda match: match[1] + _run(match[2], match[3], match[4]), text)


def _run(file: str, command: str, tag: str | None) -> str:
    kept = json.loads((RESULTS / file).read_text("utf-8"))
    facts = kept["machine"]
    cores = f"{facts['cores']} core{'s' * (facts['cores'] > 1)} of {facts['processor']}"
    machine = f"{facts['accelerator'] or cores}, {facts.get('date', '')}"
    for name, other in kept.get("others", {}).items():
        machine += f"; {name}, {other['machine']['date']}"
    shown = f"`{kept.get('command', command)}`"
    shown += f" at `{tag}`" if tag else ""  # a study whose code has left the tree
    return f"[{file}](../../benchmarks/results/{file}): {shown}, {machine}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Print the tables that are named, or write the runs of every result page."""
    for name in sys.argv[1:]:
        print(TABLES[name]())
    for path in RESULT_PAGES if len(sys.argv) == 1 else ():
        path.write_text(with_runs(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
