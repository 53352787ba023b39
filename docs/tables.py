"""Tables of results for the site, and the commands, machines and days of the result pages.

The site has a table where a page says `<!-- table: NAME -->`, and
`python -m docs.tables NAME` prints it. Without a name machine and day are written again
in lines that name a kept result, as `make docs` does; `.ci/run` stops where that changes a page.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.method.real_studies import summary

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RESULT_PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))


def real_studies_table() -> str:
    """Every row of the kept runs on real studies."""
    runs = summary.read_runs()
    return summary.table(runs, "random", runs.rows("random"), summary.COLUMNS)


def real_pretrained_table() -> str:
    """Rows from an image encoder that was pretrained on the images."""
    return summary.table(summary.read_runs(), "warm", summary.SHOWN, summary.COLUMNS)


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


TABLES: dict[str, Callable[[], str]] = {
    "real_studies": real_studies_table,
    "real_pretrained": real_pretrained_table,
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
