"""Which a and k does the corpus itself suggest? Fits eta = a * p**k, writes a recipe fragment.

Reads sentences, likelihoods and, as `calibrate.evidence` asks, claims, the label table or
`eta.table`; writes a folder `calibration` beside the artifacts:

    eta.yaml          the `eta` section of a recipe: source, a, k, eta_max
    calibration.json  the fit, its 95 % interval, its error beside the paper's a and k
    calibration.svg   every sentence's likelihood and class probability, and the lines
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import yaml

from medclip_dcl.config import resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.files import write_text
from medclip_dcl.likelihood import scoring
from medclip_dcl.likelihood.calibration import (
    Evidence,
    Line,
    best_constant,
    censored_shares,
    correlation,
    eta_of_line,
    fit_line,
    log_error,
    resample_lines,
)
from medclip_dcl.likelihood.eta import EtaConfig, read_given_table
from medclip_dcl.reporting.calibration import CALIBRATION, FOLDER, draw_calibration
from medclip_dcl.reporting.charts import standalone
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.sentences import without_number
from medclip_dcl.training.class_evidence import (
    Measure,
    ScoredCorpus,
    by_claims,
    by_labels,
    by_table,
    by_wordings,
    read_scored_corpus,
)
from pipelines.job import Job, run_job

_POINTS = 800


def build(job: Job) -> None:
    """Fit a and k, and write the fragment, the record and the picture.

    Args:
        job: the recipe; its sentences, likelihoods and what `calibrate.evidence` reads exist.

    Raises:
        ArtifactError: one of them is missing or damaged.
        ScoreError: too few sentences are measured below the cap.
    """
    settings, cap = job.config.calibrate, job.config.eta.eta_max
    scored = job.open(scoring.ARTIFACT)
    corpus = read_scored_corpus(job.open(sentences.ARTIFACT), scored)
    measure = _measure(job, corpus)
    evidence = measure(np.ones(len(corpus.study_ids)))
    line = fit_line(evidence, cap, settings.method)
    rng = np.random.default_rng(job.config.seed)
    lines = resample_lines(
        measure, corpus.patient_of, cap, settings.method, settings.resamples, rng
    )
    record = {
        "evidence": settings.evidence,
        "method": settings.method,
        "min_studies": settings.min_studies,
        "likelihoods": scored.digest,
        "cap": cap,
        "studies": len(corpus.study_ids),
        "sentences": int((evidence.weight > 0).sum()),
        **asdict(censored_shares(evidence, cap)),
        "correlation": correlation(evidence),
        "fitted": asdict(line),
        "interval": _intervals(lines),
        "resamples": len(lines),
        **_compared(evidence, line, job.config.eta),
        "points": _points(evidence, rng),
    }
    folder = job.work / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CALIBRATION, json.dumps(record, indent=1) + "\n")
    write_text(folder / "calibration.svg", standalone(draw_calibration(record)))
    write_text(folder / "eta.yaml", _fragment(record))
    job.say(recipe=str(folder / "eta.yaml"), **_facts(record))


def _measure(job: Job, corpus: ScoredCorpus) -> Measure:
    settings = job.config.calibrate
    least = settings.min_studies
    if settings.evidence == "frequency":
        return by_wordings(corpus, least)
    if settings.evidence == "table":
        form = without_number if job.config.sentences.strip_numbers else str
        path = resolve_path(job.config.eta.table, job.config)
        return by_table(corpus, read_given_table(path, form), least)
    claimed = job.open(labels.ARTIFACT)
    if settings.evidence == "claims":
        return by_claims(corpus, claimed, least)
    return by_labels(corpus, claimed, job.open(manifest.ARTIFACT), least)


def _compared(evidence: Evidence, line: Line, eta: EtaConfig) -> dict[str, Any]:
    """Errors of the fitted line, of the recipe's and the paper's a and k, and of a constant."""
    cap, paper, constant = eta.eta_max, EtaConfig(), best_constant(evidence, eta.eta_max)
    lines = {
        "fitted": line,
        "configured": Line(eta.a, eta.k, 0.0),
        "paper": Line(paper.a, paper.k, 0.0),
        "constant": Line(constant, 0.0, 0.0),
    }
    errors = {
        name: log_error(eta_of_line(evidence.pll_nats, item, cap), evidence, cap)
        for name, item in lines.items()
    }
    return {"constant": constant, "paper": {"a": paper.a, "k": paper.k}, "log_errors": errors}


def _intervals(lines: Sequence[Line]) -> dict[str, list[float]] | None:
    if not lines:
        return None
    return {
        name: np.quantile([getattr(line, name) for line in lines], [0.025, 0.975]).tolist()
        for name in ("a", "k")
    }


def _points(evidence: Evidence, rng: np.random.Generator) -> list[list[float]]:
    """A sample of the measured sentences for the picture: likelihood and share, no texts."""
    known = np.flatnonzero(evidence.is_measured & (evidence.weight > 0))
    kept = rng.choice(known, min(len(known), _POINTS), replace=False)
    return [[round(float(evidence.pll_nats[i]), 3), float(evidence.share[i])] for i in sorted(kept)]


def _fragment(record: Mapping[str, Any]) -> str:
    section = {
        "source": "pll",
        "a": float(f"{record['fitted']['a']:.4g}"),
        "k": float(f"{record['fitted']['k']:.4g}"),
        "eta_max": record["cap"],
    }
    head = (
        f"# Fitted by calibrate_eta to {record['sentences']} sentences of {record['studies']} "
        f"training studies\n# (evidence: {record['evidence']}; likelihoods "
        f"{record['likelihoods'][:12]}). Put it in place of the recipe's `eta` section.\n"
    )
    return head + yaml.safe_dump({"eta": section}, sort_keys=False)


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: round(record["fitted"][name], 4) for name in ("a", "k")}
    for name, (low, high) in (record["interval"] or {}).items():
        facts |= {f"{name}_low": round(low, 4), f"{name}_high": round(high, 4)}
    facts["correlation"] = round(record["correlation"], 3)
    errors = record["log_errors"].items()
    return facts | {f"log_error_{name}": round(value, 3) for name, value in errors}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    return run_job("calibrate_eta", build, argv)


if __name__ == "__main__":
    sys.exit(main())
