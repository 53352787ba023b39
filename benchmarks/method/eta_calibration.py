"""How far apart are fitted, paper and true class probabilities? On generated studies.

    python -m benchmarks.eta_calibration [--quick]

Per seed: generate studies, split, read claims; fit a small BERT for 400 steps, as the demo does,
and one for 1,500, and score with each; then build eta from every source, and a and k of `eta.fit`.
Each eta is compared with the generator's own share rho of training images of which the sentence is
true, capped as eta is.

    error   root mean square of log eta - log min(rho, cap), nats, each sentence as often as it is
            said. 0.69: factor 2. Over the same occurrences in every row: those of sentences that
            no source leaves uncorrected, `compared` of all
    each    the same, each sentence once
    r       correlation of log eta and log rho, as said
    zero    share of all occurrences that a source leaves uncorrected

`fitted to truth` is what a fit to rho itself gives, the best that a and k can do by the same fit;
`constant` is the best single value for the same evidence; `claims themselves` is the measured
share without any likelihood, at least the smallest that counts as measured. Reports here are
templates and the BERT is small, so its likelihoods are lower than those of CXR-BERT on real ones;
the paper's a and k were searched there, by training, and are not refuted here. No bar: the table
as it falls.
"""

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import finish, is_quick
from medclip_dcl.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.likelihood import eta, masked_lm, scoring
from medclip_dcl.likelihood.diagnostics import compare_with_truth
from medclip_dcl.likelihood.eta import read_given_table
from medclip_dcl.likelihood.eta_fit import (
    LEAST_STUDIES,
    Line,
    Shares,
    best_constant,
    fit_line,
    measure_shares,
)
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from testing.processes import options

CONFIG = "configs/demo.yaml"
SEEDS = (1, 2, 3)
STEPS = (400, 1500)
"""Of the language models: the demo's, and as many as Table 1's."""
QUICK, QUICK_STEPS = ("generate.patients=150",), (100,)
SETTINGS = (
    "generate.size_px=64",  # images are not looked at
    "generate.workers=1",
    "generate.coverage_images=1",
    "likelihood.workers=1",
    "generate.patients=400",
    "eta.table=${WORK}/studies/truth/eta.csv",
)
CORPUS_STAGES = ("generate_studies", "build_manifest", "split_sentences", "read_claims")
FITS = ("claims", "labels")
SOURCES = ("frequency", "labels", "oracle")

Floats = NDArray[np.float64]
Row = dict[str, float]


class Trial:
    """One generated corpus in a folder of its own."""

    def __init__(self, work: Path, seed: int, more: Sequence[str]) -> None:
        self.work = work
        self._settings = (f"work={work}", f"seed={seed}", *SETTINGS, *more)

    def run(self, job: str, *settings: str) -> None:
        """Run a job in this process (starting Python costs more), its lines on stderr."""
        with contextlib.redirect_stdout(sys.stderr):
            main = importlib.import_module(f"pipelines.{job}").main
            code = main(["--config", CONFIG, *options((*self._settings, *settings))])
        if code:
            raise RuntimeError(f"{job} ended with exit code {code}")

    def open(self, kind: ArtifactType) -> Artifact:
        """Open what a job has written."""
        return open_artifact(kind.at(self.work), kind)

    def cached(self, *settings: str) -> tuple[Floats, Row]:
        """Build the eta cache; give its values, and a and k where it has them."""
        self.run("build_eta_cache", *settings)
        cache = self.open(eta.ARTIFACT)
        values: Floats = read_table(cache.path, eta.ETA)["eta"].to_numpy()
        return values, {name: cache.summary[name] for name in ("a", "k") if name in cache.summary}


def measure(trial: Trial, steps: Sequence[int]) -> dict[str, Row]:
    """Run one corpus through: name of an eta -> its figures."""
    for job in CORPUS_STAGES:
        trial.run(job)
    source = trial.open(sentences.ARTIFACT)
    distinct = sentences.distinct_sentences(source)
    count = distinct["count"].to_numpy().astype(np.float64)
    given = read_given_table(trial.work / "studies" / "truth" / "eta.csv")
    rho = np.array([given.get(key, np.nan) for key in distinct["text_key"].to_pylist()])
    cap = EtaConfig().eta_max
    claimed = measure_shares(source, trial.open(labels.ARTIFACT), "claims", None)
    studies = sentences.training_reports(source)
    true = Shares(np.nan_to_num(rho), np.where(rho > 0, count, 0.0), LEAST_STUDIES / (studies - 1))

    etas: dict[str, tuple[Floats, Row]] = {}
    models: dict[str, Row] = {}
    for number in steps:
        name = f"{number} steps"
        trial.run("fit_language_model", f"language_model.steps={number}")
        trial.run("score_sentences", f"language_model.steps={number}")
        models[name] = {"accuracy": trial.open(masked_lm.ARTIFACT).summary["held_out_accuracy"]}
        asked = f"language_model.steps={number}"
        etas[f"{name}, paper"] = trial.cached(asked)
        for fit in FITS:
            etas[f"{name}, fitted to {fit}"] = trial.cached(asked, f"eta.fit={fit}")
        scored = read_table(trial.open(scoring.ARTIFACT).path, scoring.LIKELIHOODS)
        pll_nats = scored["pll_nats"].to_numpy()
        line = fit_line(pll_nats, true, cap)
        etas[f"{name}, fitted to truth"] = line.eta(pll_nats, cap), line._asdict()
    for name, shares in {"claims": claimed, "truth": true}.items():
        constant = Line(best_constant(shares, cap), 0.0)
        etas[f"constant, {name}"] = constant.eta(pll_nats, cap), {"a": constant.a}
    measured = np.maximum(claimed.share, claimed.floor)
    etas["claims themselves"] = np.where(claimed.weight > 0, np.minimum(measured, cap), 0.0), {}
    for kind in SOURCES:
        etas[kind] = trial.cached(f"eta.source={kind}")
    return models | _judged(etas, rho, count, cap)


def _judged(
    etas: Mapping[str, tuple[Floats, Row]], rho: Floats, count: Floats, cap: float
) -> dict[str, Row]:
    """Compare every eta with the truth over the sentences that all of them correct."""
    common = np.all([values > 0 for values, _ in etas.values()], axis=0) & (rho > 0) & (count > 0)
    weight = count[common].astype(np.int64)
    rows = {}
    for name, (values, line) in etas.items():
        said = compare_with_truth(values[common], rho[common], weight, cap)
        once = compare_with_truth(values[common], rho[common], np.ones_like(weight), cap)
        rows[name] = {
            **line,
            "error": said.log_error,
            "each": once.log_error,
            "r": said.pearson_log_weighted,
            "zero": float(count[values == 0].sum() / count.sum()),
            "mean": float(np.average(values, weights=count)),
        }
    rows["compared"] = {"share": float(weight.sum() / count.sum())}
    capped = np.minimum(rho, cap)[np.isfinite(rho)]
    rows["truth"] = {"mean": float(np.average(capped, weights=count[np.isfinite(rho)]))}
    return rows


def print_table(seed: int | str, rows: Mapping[str, Row]) -> None:
    columns = ("a", "k", "error", "each", "r", "zero", "mean", "accuracy", "share")
    print(f"\nseed {seed}\n{'eta':30}" + "".join(f"{name:>10}" for name in columns))
    for name, row in rows.items():
        cells = (f"{row[key]:.3f}" if key in row else "" for key in columns)
        print(f"{name:30}" + "".join(f"{cell:>10}" for cell in cells))


def mean_rows(trials: Sequence[Mapping[str, Row]]) -> dict[str, Row]:
    """Average over seeds."""
    return {
        name: {key: float(np.mean([rows[name][key] for rows in trials])) for key in row}
        for name, row in trials[0].items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table per seed, their mean, and the JSON line."""
    quick = is_quick(argv)
    trials = {}
    for seed in SEEDS[:1] if quick else SEEDS:
        with tempfile.TemporaryDirectory(prefix="calibration-") as folder:
            trial = Trial(Path(folder), seed, QUICK if quick else ())
            trials[seed] = measure(trial, QUICK_STEPS if quick else STEPS)
        print_table(seed, trials[seed])
    means = mean_rows(list(trials.values()))
    print_table("mean", means)
    figures = {
        f"{name}: {key}": value
        for name, row in means.items()
        for key, value in row.items()
        if not np.isnan(value)
    }
    figures |= {
        f"{name}: {key}, seed {seed}": row[key]
        for seed, rows in trials.items()
        for name, row in rows.items()
        for key in ("a", "k", "error", "accuracy")
        if key in row
    }
    return finish("calibration", figures, {})


if __name__ == "__main__":
    sys.exit(main())
