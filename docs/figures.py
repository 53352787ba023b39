"""The figures of the pages, drawn from the public loss, the labeler, kept results and the imports.

python docs/figures.py      # writes docs/figures/*.svg; the same input gives the same bytes
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.method.real_studies.summary import BASELINE, SHOWN, TITLES, read_runs  # noqa: E402
from medclip_dcl import debiased_contrastive_loss, read_claims  # noqa: E402
from tests.house.tree import HOSPITAL, SHIPPED, modules, syntax  # noqa: E402

FOLDER = ROOT / "docs" / "figures"
BLUE, ORANGE, GREY = "#00796b", "#e65100", "#9e9e9e"
_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and the same with any font
    "svg.hashsalt": "medclip-dcl",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

STUDIES = {
    "A": "No pneumothorax. Heart size is normal.",
    "B": "Heart size is normal. No pneumothorax.",
    "C": "There is a left pleural effusion. No pneumothorax.",
    "D": "The heart is enlarged. No pneumothorax.",
    "E": "There is a pneumothorax. Heart size is normal.",
    "F": "No pneumonia. There is a left pleural effusion. The heart is enlarged. No pneumothorax.",
}
"""A batch: the first sentence of each report is its anchor."""


def false_negatives() -> Figure:
    """Draw which sentence of a batch is true of which image."""
    reports = {name: read_claims(text) for name, text in STUDIES.items()}
    sentences = [text.split(". ")[0].rstrip(".") + "." for text in STUDIES.values()]
    figure = Figure(figsize=(6.2, 2.9))
    axes = figure.add_axes((0.38, 0.02, 0.40, 0.84))
    for row, sentence in enumerate(sentences):
        said = read_claims(sentence)
        for column, report in enumerate(reports.values()):
            fits = said.asserted.keys() <= report.asserted.keys() and not (
                said.negated & report.asserted.keys()
            )
            kind = ("own pair" if row == column else "false negative") if fits else "negative"
            color = {"own pair": BLUE, "false negative": ORANGE, "negative": "#eeeeee"}[kind]
            mark = {"own pair": "+", "false negative": "!", "negative": ""}[kind]
            axes.add_patch(mpl.patches.Rectangle((column, row), 0.94, 0.94, color=color))
            axes.text(column + 0.47, row + 0.47, mark, color="w", ha="center", va="center")
    axes.set(xlim=(0, len(reports)), ylim=(len(sentences), 0), aspect="equal")
    axes.set_yticks([row + 0.5 for row in range(len(sentences))], sentences)
    axes.set_xticks([column + 0.5 for column in range(len(reports))], reports)
    axes.xaxis.tick_top()
    axes.set_title("image of study", fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    key = (("+  its own pair", BLUE), ("!  false negative", ORANGE), ("    negative", GREY))
    for line, (label, color) in enumerate(key):
        figure.text(0.80, 0.62 - 0.11 * line, label, color=color)
    return figure


def gradient() -> Figure:
    """Draw how hard an anchor pushes its negatives away, by their similarity and eta."""
    gamma, negatives, positive = 5.0**0.5, 31, 0.5
    figure = Figure(figsize=(5.6, 2.9), layout="constrained")
    axes = figure.subplots()
    similarity = torch.linspace(-1, 1, 201)
    for eta, style in ((0.0, ":"), (0.02, "-"), (0.1, "--"), (0.3, "-.")):
        f = torch.full((len(similarity), negatives + 1), positive)
        f[:, 1:] = similarity.unsqueeze(1)
        s = (gamma**2 * f).requires_grad_()
        own = torch.zeros(len(similarity), dtype=torch.long)
        loss = debiased_contrastive_loss(s, own, eta, gamma, reduction="none").sum()
        (push,) = torch.autograd.grad(loss, s)
        label = f"eta = {eta:g}" if eta else "eta = 0 (InfoNCE)"
        axes.plot(
            similarity, push[:, 1:].sum(dim=1), style, color=BLUE if eta else GREY, label=label
        )
    axes.axvline(positive, color=GREY, linewidth=0.6)
    axes.text(positive + 0.02, axes.get_ylim()[1] * 0.93, "the pair", color=GREY)
    axes.set(xlabel=f"similarity of the {negatives} negatives", ylabel="weight on all negatives")
    axes.legend(frameon=False)
    return figure


def when_it_helps() -> Figure:
    """Draw what each objective gains in AUC where the truth is known."""
    rows = {
        "pll, floor": "eta by likelihood, floor (paper)",
        "pll": "eta by likelihood, fallback",
        "pll shuffled": "the same, eta shuffled",
        "const 0.1": "constant eta = .1",
        "multipositive claims": "relations",
        "multipositive shuffled": "relations, reports shuffled",
        "infonce, early": "InfoNCE, stopped early",
    }
    panels = {"phantom": "simulated features", "studies": "generated images"}
    return _differences(rows, [(bed, "auc", title) for bed, title in panels.items()], "AUC")


def relations() -> Figure:
    """Draw what image anchors on their own pair add to relations."""
    rows = {
        "const 0.1": "constant eta = .1",
        "relations": "relations, text anchors",
        "relations, both": "relations, both anchors",
        "cross": "cross: images on their own pair",
        "cross, shuffled": "cross, reports shuffled",
    }
    metrics = {"auc": "AUC", "acc": "balanced accuracy", "r1": "R@1"}
    bed = "cross phantom stopped"
    return _differences(rows, [(bed, metric, title) for metric, title in metrics.items()], "")


def _differences(rows: dict[str, str], panels: list[tuple[str, str, str]], unit: str) -> Figure:
    """Draw differences to InfoNCE, mean and standard deviation over seeds; absent rows stay out."""
    text = (ROOT / "benchmarks/results/method.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)["tables"]
    figure = Figure(figsize=(7, 0.9 + 0.27 * len(rows)), layout="constrained")
    for axes, (bed, metric, title) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True
    ):
        for place, row in enumerate(rows):
            if row in tables.get(bed, {}):
                _, _, mean, spread, wins = tables[bed][row][metric][:5]
                seeds = len(tables[bed][row]["seeds"])
                color = GREY if "shuffled" in row else BLUE
                fill = color if wins == seeds else "white"
                axes.errorbar(
                    mean, place, xerr=spread, fmt="o", color=color, markersize=5, mfc=fill
                )
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_title(title, fontsize=9)
        axes.set_yticks(range(len(rows)), rows.values())
        axes.set_ylim(len(rows) - 0.5, -0.5)
    figure.supxlabel(f"{unit} minus that of InfoNCE".strip(), fontsize=9)
    return figure


def real_studies() -> Figure:
    """Draw what each objective does on real studies from either start, and against InfoNCE."""
    runs = read_runs()
    shown = [row for row in SHOWN if row != "ceiling"]
    shown.sort(key=lambda row: -(runs.mean("warm", row) or 0))
    figure = Figure(figsize=(7, 1.2 + 0.27 * len(shown)), layout="constrained")
    level, gain = figure.subplots(1, 2, sharey=True)
    starts = {"random": (BLUE, "random weights"), "warm": (ORANGE, "pretrained on the images")}
    for start, (color, label) in starts.items():
        for place, row in enumerate(shown):
            at = place + (0.14 if start == "warm" else -0.14)
            level.plot(runs.mean(start, row), at, "o", color=color, markersize=5, label=label)
            label = ""  # once in the legend
            if row == BASELINE or (against := runs.minus(row, BASELINE, start=start)) is None:
                continue
            reach = [[against.value - against.low], [against.high - against.value]]
            fill = color if against.low > 0 else "white"
            gain.errorbar(against.value, at, xerr=reach, fmt="o", color=color, ms=5, mfc=fill)
    gain.axvline(0, color="black", linewidth=0.6)
    level.set_title("zero-shot AUC, four sentences a side", fontsize=9)
    gain.set_title("minus InfoNCE, 95 %", fontsize=9)
    level.set_yticks(range(len(shown)), [TITLES[row] for row in shown])
    level.set_ylim(len(shown) - 0.5, -0.5)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


_CLIENT = ("client", "exchange", "schemas")


def _room(parts: tuple[str, ...]) -> str:
    """Room of a module: a subpackage of the library, its core, or a folder beside it."""
    if parts[0] != "medclip_dcl":
        is_page = parts[:2] == ("pipelines", "report")
        return "report" if is_page else parts[0].removeprefix("medclip_")
    if parts[:3] == ("medclip_dcl", "data", "sources"):
        return "sources"
    return "client" if parts[1] in _CLIENT else parts[1]


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that type checkers alone read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _run_nodes(node)


def imports_of_rooms() -> dict[str, set[str]]:
    """Room -> the rooms that it imports, without those that follow from others."""
    imports: dict[str, set[str]] = {}
    for path in modules(*SHIPPED, HOSPITAL):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "hospital" else parts
        if parts == ("medclip_dcl", "__init__"):  # which loads any public name on first use
            continue
        room = imports.setdefault(_room(parts), set())
        for node in _run_nodes(syntax(path)):
            if isinstance(node, ast.ImportFrom):
                here = parts[: -node.level] if node.level else ()
                base = (*here, *filter(None, [node.module]))
                names = [".".join((*base, alias.name)) for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for other in (tuple(name.split(".")) for name in names):
                if other[0] in {*SHIPPED, "medclip_hospital"} and len(other) > 1:
                    room.add(_room(other))
    for room, others in imports.items():
        others.discard(room)
    reached = {room: set[str]() for room in imports}
    for _ in imports:  # as many rounds as rooms reach everything
        for room, others in imports.items():
            reached[room] |= others.union(*(reached[other] for other in others))
    return {
        room: {
            other
            for other in others
            if not any(other in reached[between] for between in others - {other})
        }
        for room, others in imports.items()
    }


def architecture() -> Figure:
    """Draw the rooms of the code in layers, each above those that it imports."""
    imports = imports_of_rooms()
    layer = dict.fromkeys(imports, 0)
    for _ in imports:
        for room, others in imports.items():
            layer[room] = max((layer[other] + 1 for other in others), default=0)
    layers = [[room for room in sorted(imports) if layer[room] == n] for n in set(layer.values())]
    center = {
        room: (7 * (slot + 1) / (len(row) + 1), 0.75 * height)
        for height, row in enumerate(layers)
        for slot, room in enumerate(row)
    }
    figure = Figure(figsize=(7, 0.62 * len(layers)), layout="constrained")
    axes = figure.subplots()
    for room, others in sorted(imports.items()):
        for other in sorted(others):
            (x, y), (below_x, below_y) = center[room], center[other]
            arrow = mpl.patches.FancyArrowPatch(
                (x, y - 0.17),
                (below_x, below_y + 0.19),
                arrowstyle="-|>",
                mutation_scale=7,
                color=GREY,
                linewidth=0.8,
                gid=f"{room} imports {other}",
            )
            axes.add_patch(arrow)
    for room, (x, y) in center.items():
        color = ORANGE if room in {"hospital", "client"} else BLUE
        box = {"boxstyle": "round", "facecolor": color, "edgecolor": "none"}
        axes.text(x, y, room, color="w", ha="center", va="center", bbox=box)
    axes.set_xlim(0, 7)
    axes.set_ylim(-0.3, 0.75 * len(layers) - 0.4)
    axes.set_axis_off()
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "architecture": architecture,
    "false_negatives": false_negatives,
    "gradient": gradient,
    "when_it_helps": when_it_helps,
    "relations": relations,
    "real_studies": real_studies,
}


def svg(name: str) -> str:
    """Draw one figure as SVG text."""
    with mpl.rc_context(_STYLE):
        stream = StringIO()
        FIGURES[name]().savefig(
            stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=False
        )
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write every figure."""
    FOLDER.mkdir(exist_ok=True)
    for name in FIGURES:
        (FOLDER / f"{name}.svg").write_text(svg(name), encoding="utf-8")


if __name__ == "__main__":
    main()
