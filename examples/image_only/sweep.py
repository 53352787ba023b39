"""Train at several class ratios, losses and seeds, and draw Figure 2 of Wang et al. 2023.

    python examples/image_only/sweep.py --ratios 0.1 0.5 --losses cl true oracle --out runs/digits
    python examples/image_only/sweep.py --data data/cifar10 --precision bf16 --out runs/cifar10_r

Options that are not named here go to train.py. A finished run is not repeated and a killed one
continues, so the same command may be given again with more ratios, losses or seeds. With
`--part 0/4` this process takes every fourth run, as one element of a Slurm array would. When all
are done, any part draws: left, accuracy by class ratio; right, by share of labels at one ratio.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from train import main as train

RATIOS = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9]
MARKS = "osD^vP"


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train what is missing; once nothing is, write sweep.json and sweep.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS)
    parser.add_argument("--losses", nargs="+", default=["cl", "low", "high", "true"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at", type=float, default=0.5, help="ratio of the right picture")
    parser.add_argument("--part", default="0/1", help="this process's share of the runs")
    parser.add_argument("--out", type=Path, required=True)
    args, words = parser.parse_known_args(argv)
    part, parts = map(int, args.part.split("/"))
    runs = {
        (ratio, loss, seed): args.out / f"r{ratio:g}_{loss}_{seed}"
        for seed, ratio, loss in product(range(args.seeds), args.ratios, args.losses)
    }
    for (ratio, loss, seed), out in list(runs.items())[part::parts]:
        if not (out / "results.json").exists():
            run = ["--ratio", ratio, "--loss", loss, "--seed", seed, "--out", out]
            train([*words, *map(str, run)])
    if missing := [out.name for out in runs.values() if not (out / "results.json").exists()]:
        print(f"{len(missing)} of {len(runs)} runs are still to be done")
        return []
    rows = [
        row for (ratio, loss, seed), out in runs.items() for row in read(ratio, loss, seed, out)
    ]
    text = json.dumps({"words": words, "rows": rows}, separators=(",", ":"))
    (args.out / "sweep.json").write_text(text.replace('{"ratio', '\n{"ratio') + "\n", "utf-8")
    at = args.at if args.at in args.ratios else args.ratios[0]
    draw(rows, at).savefig(args.out / "sweep.png", dpi=110)
    report(rows)
    return rows


def read(ratio: float, loss: str, seed: int, out: Path) -> list[dict[str, Any]]:
    """Return a run's probes, draws averaged, and the state of its last step."""
    results = json.loads((out / "results.json").read_text("utf-8"))
    last = results["training"][-1]
    rows = []
    for encoder, share in product(("trained", "untrained"), results["options"]["shares"]):
        probes = [
            probe
            for probe in results["probes"]
            if (probe["encoder"], probe["fraction"]) == (encoder, share)
        ]
        means = {
            name: round(float(np.mean([probe[name] for probe in probes])), 4)
            for name in ("labels", "accuracy", "top_5", "mean_recall", "recall_rare")
        }
        facts = {"ratio": ratio, "loss": loss, "seed": seed, "encoder": encoder, "share": share}
        state = {"steps": last["step"], "frac_floor": round(last["frac_floor"], 4)}
        rows.append({**facts, **means, **state})
    return rows


def draw(rows: list[dict[str, Any]], at: float) -> Figure:
    """Draw mean accuracy and its standard error over seeds, one line a loss."""
    most = max(row["share"] for row in rows)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, key, fixed in ((left, "ratio", ("share", most)), (right, "share", ("ratio", at))):
        for mark, loss in zip(MARKS, losses(rows), strict=False):
            lines = table(rows, loss, key, fixed)
            mean = [np.mean(found) for found in lines.values()]
            several = (len(found) > 1 for found in lines.values())
            error = [
                np.std(found, ddof=1) / len(found) ** 0.5 if more else 0.0
                for found, more in zip(lines.values(), several, strict=True)
            ]
            style = {"color": "gray", "linestyle": ":"} if loss == "untrained" else {}
            axes.errorbar(list(lines), mean, error, marker=mark, capsize=2, label=loss, **style)
        axes.set(ylabel="accuracy of a linear probe")
    left.set(xlabel="ratio r of the rare classes", title=f"{most:.0%} of the labels")
    right.set(xlabel="share of labels", title=f"r = {at:g}", xscale="log")
    left.legend(frameon=False)
    return figure


def losses(rows: list[dict[str, Any]]) -> list[str]:
    """Return the losses in their order, and the network before its first step."""
    return [*dict.fromkeys(row["loss"] for row in rows), "untrained"]


def table(
    rows: list[dict[str, Any]], loss: str, key: str, fixed: tuple[str, float]
) -> dict[float, list[float]]:
    """Return the accuracies of every seed by ratio or share."""
    encoder, first = ("untrained", rows[0]["loss"]) if loss == "untrained" else ("trained", loss)
    found: dict[float, list[float]] = {}
    for row in rows:
        if (row["encoder"], row["loss"], row[fixed[0]]) == (encoder, first, fixed[1]):
            found.setdefault(row[key], []).append(row["accuracy"])
    return dict(sorted(found.items()))


def report(rows: list[dict[str, Any]]) -> None:
    """Print mean accuracies, and how each seed differs from the first loss."""
    for share, ratio in dict.fromkeys((row["share"], row["ratio"]) for row in rows):
        base = table(rows, rows[0]["loss"], "ratio", ("share", share))[ratio]
        for loss in losses(rows):
            found = table(rows, loss, "ratio", ("share", share))[ratio]
            gaps = "  ".join(f"{x - y:+.3f}" for x, y in zip(found, base, strict=True))
            print(f"labels {share:<6g} r {ratio:<5g} {loss:10} {np.mean(found):.3f}   {gaps}")


if __name__ == "__main__":
    main()
