"""How far apart are fitted, paper and true class probabilities? On generated studies.

    python -m benchmarks.method.eta_calibration.study [--quick]

Per seed: generate studies, split, read claims, fit a small BERT, score, then build eta from
every source and fit a and k on every kind of evidence. Each eta is compared with the
generator's own share rho of training images of which the sentence is true, capped as eta is.

    error      root mean square of log eta - log min(rho, cap), nats, over training sentences
               with an eta above 0: as often as they are said, and each once. 0.69: factor 2
    r          correlation of log eta and log rho, as said
    zero       share of the training sentences, as said, that a source leaves uncorrected

`truth` is what a fit to rho itself would give, the best that a and k can do by the same
fit; `constant` is the best single value; `claims themselves` is the measured share without
any likelihood, at least the smallest that counts as measured. Reports here are templates
and the BERT is small, so its likelihoods are lower than those of CXR-BERT on real ones; the
paper's a and k were searched there, by training, and are not refuted here. No bar: the
table as it falls. The default method, `capped`, was chosen on seed 0 with 400 patients,
which the full tier does not run.
"""

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.method.eta_calibration.__main__ import Options, calibrate
from benchmarks.method.eta_calibration.evidence import by_claims, read_scored_corpus
from benchmarks.method.eta_calibration.fit import Line, eta_of_line
from benchmarks.processes import options
from benchmarks.record import finish, is_quick
from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import load_config
from medclip_dcl.likelihood import eta, scoring
from medclip_dcl.likelihood.diagnostics import compare_with_truth
from medclip_dcl.likelihood.eta import read_given_table
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

CONFIG = "configs/demo.yaml"
SEEDS = (1, 2, 3)
QUICK = ("generate.patients=150", "language_model.steps=100")
RESAMPLES = 40
QUICK_RESAMPLES = 10
SETTINGS = (
    "generate.size_px=64",  # images are not looked at
    "generate.workers=1",
    "generate.coverage_images=1",
    "likelihood.workers=1",
    "generate.patients=400",
    "language_model.steps=300",
    "eta.table=${WORK}/studies/truth/eta.csv",
)
STAGES = (
    "generate_studies",
    "build_manifest",
    "split_sentences",
    "read_claims",
    "fit_language_model",
    "score_sentences",
)
FITS = (
    ("claims", "capped"),
    ("claims", "censored"),
    ("labels", "capped"),
    ("frequency", "capped"),
    ("table", "capped"),
    ("table", "censored"),
)
SOURCES = ("frequency", "labels", "oracle")

Floats = NDArray[np.float64]
Row = dict[str, float]


class Trial:
    """One generated corpus in a folder of its own; `resamples` are those of the intervals."""

    def __init__(self, work: Path, seed: int, more: Sequence[str], resamples: int) -> None:
        self.work, self._resamples = work, resamples
        self._settings = (f"work={work}", f"seed={seed}", *SETTINGS, *more)

    def run(self, job: str, *settings: str) -> None:
        """Run a job in this process (starting Python costs more), its lines on stderr."""
        with contextlib.redirect_stdout(sys.stderr):
            main = importlib.import_module(f"pipelines.{job}").main
            code = main(["--config", CONFIG, *options((*self._settings, *settings))])
        if code:
            raise RuntimeError(f"{job} ended with exit code {code}")

    def calibrate(self, evidence: str, method: str) -> dict[str, Any]:
        """Fit a and k."""
        config = load_config(Path(CONFIG), self._settings)
        return calibrate(config, Options(evidence, method, resamples=self._resamples))

    def claimed_shares(self) -> Floats:
        """Measure class probabilities by claims."""
        kinds = (sentences.ARTIFACT, scoring.ARTIFACT, labels.ARTIFACT)
        source, scored, claimed = (open_artifact(kind.at(self.work), kind) for kind in kinds)
        corpus = read_scored_corpus(source, scored)
        measured = by_claims(corpus, claimed, Options().min_studies)
        evidence = measured(np.ones(len(corpus.study_ids)))
        reported = evidence.weight > 0  # a sentence without claims is left uncorrected
        return np.where(reported, np.maximum(evidence.share, evidence.floor), 0.0)

    def cached(self, source: str) -> Floats:
        """Build the eta cache from a source."""
        self.run("build_eta_cache", f"eta.source={source}")
        folder = open_artifact(eta.ARTIFACT.at(self.work), eta.ARTIFACT).path
        values: Floats = read_table(folder, eta.ETA)["eta"].to_numpy()
        return values


def measure(trial: Trial) -> dict[str, Row]:
    """Run one corpus through: name of an eta -> its figures."""
    for job in STAGES:
        trial.run(job)
    cap, paper = EtaConfig().eta_max, EtaConfig()
    scored = read_table(scoring.ARTIFACT.at(trial.work), scoring.LIKELIHOODS)
    pll_nats, count = scored["pll_nats"].to_numpy(), scored["count"].to_numpy()
    given = read_given_table(trial.work / "studies" / "truth" / "eta.csv")
    rho = np.array([given.get(key, np.nan) for key in scored["text_key"].to_pylist()])

    def judged(eta: Floats) -> Row:
        said = count > 0
        one = compare_with_truth(eta[said], rho[said], count[said], cap)
        other = compare_with_truth(eta[said], rho[said], np.ones_like(count[said]), cap)
        zero = count[said & (eta == 0)].sum() / count[said].sum()
        return {
            "error": one.log_error,
            "error_each_once": other.log_error,
            "r": one.pearson_log_weighted,
            "zero": float(zero),
        }

    def of_line(a: float, k: float) -> Row:
        return {"a": a, "k": k, **judged(eta_of_line(pll_nats, Line(a, k), cap))}

    rows = {"pll, paper": of_line(paper.a, paper.k)}
    for evidence, method in FITS:
        record = trial.calibrate(evidence, method)
        name = "truth" if evidence == "table" else evidence
        name += ", censored" * (method == "censored")
        fitted, interval = record["fitted"], record["interval"]
        rows[f"pll, {name}"] = of_line(fitted["a"], fitted["k"]) | {
            f"{letter}_{end}": value
            for letter in ("a", "k")
            for end, value in zip(("low", "high"), interval[letter], strict=True)
        }
        if method == "capped" and evidence in {"claims", "table"}:
            rows[f"constant, {name}"] = of_line(record["constant"], 0.0)
    rows["claims themselves"] = judged(np.minimum(trial.claimed_shares(), cap))
    return rows | {source: judged(trial.cached(source)) for source in SOURCES}


def print_table(seed: int | str, rows: Mapping[str, Row]) -> None:
    print(f"\nseed {seed}")
    columns = ("a", "a_low", "a_high", "k", "k_low", "k_high", "error", "error_each_once", "r")
    columns += ("zero",)
    print(f"{'eta':22}" + "".join(f"{name:>{2 + max(6, len(name))}}" for name in columns))
    for name, row in rows.items():
        cells = (f"{row[key]:.3f}" if key in row else "" for key in columns)
        widths = (2 + max(6, len(key)) for key in columns)
        print(f"{name:22}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True)))


def mean_rows(trials: Sequence[Mapping[str, Row]]) -> dict[str, Row]:
    """Average over seeds, intervals left out."""
    return {
        name: {
            key: float(np.mean([rows[name][key] for rows in trials]))
            for key in row
            if not key.endswith(("_low", "_high"))
        }
        for name, row in trials[0].items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table per seed, their mean, and the JSON line."""
    quick = is_quick(argv)
    trials = {}
    for seed in SEEDS[:1] if quick else SEEDS:
        with tempfile.TemporaryDirectory(prefix="calibration-") as folder:
            more, resamples = (QUICK, QUICK_RESAMPLES) if quick else ((), RESAMPLES)
            trial = Trial(Path(folder), seed, more, resamples)
            trials[seed] = measure(trial)
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
        for key in ("a", "k", "error")
        if key in row
    }
    return finish("calibration", figures, {})


if __name__ == "__main__":
    sys.exit(main())
