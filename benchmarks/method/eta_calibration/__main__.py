"""Which a and k does a corpus itself suggest? Fits eta = a * p**k, writes a config fragment.

    python -m benchmarks.method.eta_calibration --config FILE [--set KEY=VALUE]
        [--evidence claims|labels|frequency|table] [--method capped|censored]
        [--min-studies 5] [--resamples 200]

Reads sentences, likelihoods and, as `--evidence` asks, claims, the label table or
`eta.table`; writes a folder `calibration` next to the artifacts:

    eta.yaml          the `eta` section of a config: source, a, k, eta_max
    calibration.json  the fit, its 95 % interval, its error next to the paper's a and k

Look at the correlation first: a likelihood is the chance of one wording, and where it says
little of the meaning, a constant, `labels` or a `table` is the better source of eta.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.method.eta_calibration.evidence import (
    Measure,
    ScoredCorpus,
    by_claims,
    by_labels,
    by_table,
    by_wordings,
    read_scored_corpus,
)
from benchmarks.method.eta_calibration.fit import (
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
from medclip_dcl.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.config import Config, load_config, resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.errors import MedclipError
from medclip_dcl.files import write_text
from medclip_dcl.likelihood import scoring
from medclip_dcl.likelihood.eta import read_given_table
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

FOLDER, CALIBRATION = "calibration", "calibration.json"


@dataclass(frozen=True)
class Options:
    """How the corpus is measured and fitted."""

    evidence: str = "claims"
    """How a class probability is measured: `claims` or `labels`, the share of the other
    training studies whose claims or labels stand `same` or `unclear` to the sentence;
    `frequency`, the share that says the very same words; `table`, as `eta.table` gives it."""
    method: str = "capped"
    """`capped` or `censored`, as `fit` explains."""
    min_studies: int = 5
    """Other studies that a share must rest on; a smaller one is only known to be below."""
    resamples: int = 200
    """Bootstrap samples of patients for 95 % intervals; 0: none."""


def calibrate(config: Config, options: Options) -> dict[str, Any]:
    """Fit a and k, write the fragment and the record, and give the record: no texts.

    ArtifactError where an artifact is missing or damaged; ScoreError where too few sentences are
    measured below the cap.
    """
    cap, work = config.eta.eta_max, resolve_path(config.work, config)
    scored = _open(work, scoring.ARTIFACT)
    corpus = read_scored_corpus(_open(work, sentences.ARTIFACT), scored)
    measure = _measure(config, options, corpus)
    evidence = measure(np.ones(len(corpus.study_ids)))
    line = fit_line(evidence, cap, options.method)
    rng = np.random.default_rng(config.seed)
    lines = resample_lines(measure, corpus.patient_of, cap, options.method, options.resamples, rng)
    record = {
        **asdict(options),
        "likelihoods": scored.digest,
        "cap": cap,
        "studies": len(corpus.study_ids),
        "sentences": int((evidence.weight > 0).sum()),
        **censored_shares(evidence, cap),
        "correlation": correlation(evidence),
        "fitted": asdict(line),
        "interval": _intervals(lines),
        "resamples": len(lines),
        **_compared(evidence, line, config.eta),
    }
    folder = work / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CALIBRATION, json.dumps(record, indent=1) + "\n")
    write_text(folder / "eta.yaml", _fragment(record))
    return record


def _open(work: Path, kind: ArtifactType) -> Artifact:
    return open_artifact(kind.at(work), kind)


def _measure(config: Config, options: Options, corpus: ScoredCorpus) -> Measure:
    least, work = options.min_studies, resolve_path(config.work, config)
    if options.evidence == "frequency":
        return by_wordings(corpus, least)
    if options.evidence == "table":
        given = read_given_table(resolve_path(config.eta.table, config))
        return by_table(corpus, given, least)
    claimed = _open(work, labels.ARTIFACT)
    if options.evidence == "claims":
        return by_claims(corpus, claimed, least)
    return by_labels(corpus, claimed, _open(work, manifest.ARTIFACT), least)


def _compared(evidence: Evidence, line: Line, eta: EtaConfig) -> dict[str, Any]:
    """Errors of the fitted line, of the configured and the paper's a and k, and of a constant."""
    cap, paper, constant = eta.eta_max, EtaConfig(), best_constant(evidence, eta.eta_max)
    lines = {
        "fitted": line,
        "configured": Line(eta.a, eta.k),
        "paper": Line(paper.a, paper.k),
        "constant": Line(constant, 0.0),
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


def _fragment(record: Mapping[str, Any]) -> str:
    section = {
        "source": "pll",
        "a": float(f"{record['fitted']['a']:.4g}"),
        "k": float(f"{record['fitted']['k']:.4g}"),
        "eta_max": record["cap"],
    }
    head = (
        f"# Fitted by eta_calibration to {record['sentences']} sentences of {record['studies']} "
        f"training studies\n# (evidence: {record['evidence']}; likelihoods "
        f"{record['likelihoods'][:12]}). Put it in place of the config's `eta` section.\n"
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
    """Calibrate one corpus and print the fit as a JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method.eta_calibration")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--evidence", choices=("claims", "labels", "frequency", "table"), default=Options.evidence
    )
    parser.add_argument("--method", choices=("capped", "censored"), default=Options.method)
    parser.add_argument("--min-studies", type=int, default=Options.min_studies)
    parser.add_argument("--resamples", type=int, default=Options.resamples)
    asked = parser.parse_args(argv)
    if asked.min_studies < 1 or asked.resamples < 0:
        parser.error("--min-studies must be at least 1 and --resamples at least 0")
    options = Options(asked.evidence, asked.method, asked.min_studies, asked.resamples)
    try:
        record = calibrate(load_config(asked.config, asked.set), options)
    except MedclipError as error:
        print(f"eta_calibration: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(_facts(record)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
