"""Which a and k does the corpus itself suggest? Fits eta = a * p**k, writes a recipe fragment.

Reads sentences, likelihoods and, as `calibrate.evidence` asks, claims, the label table or
`eta.table`; writes a folder `calibration` beside the artifacts:

    eta.yaml          the `eta` section of a recipe: source, a, k, eta_max
    calibration.json  the fit, its 95 % interval, its error beside the paper's a and k
    calibration.svg   every sentence's likelihood and class probability, and the lines
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml
from jaxtyping import Int8
from numpy.typing import NDArray
from torch import Tensor

from medclip_dcl.artifacts import claims, likelihoods, manifest, sentences
from medclip_dcl.artifacts.eta_cache import read_given_table
from medclip_dcl.artifacts.files import write_text
from medclip_dcl.artifacts.tables import TableFormat, read_table
from medclip_dcl.config import resolve_path
from medclip_dcl.config.text import EtaConfig
from medclip_dcl.errors import ArtifactStale, ConfigError
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
from medclip_dcl.likelihood.class_shares import (
    Meanings,
    Sayings,
    measure_meanings,
    measure_wordings,
)
from medclip_dcl.objective.relations import (
    DIFFERENT,
    encode_claims,
    encode_labels,
    relation_matrix,
)
from medclip_dcl.report.calibration import CALIBRATION, FOLDER, draw_calibration
from medclip_dcl.report.charts import standalone
from medclip_dcl.reports.claims import Claims
from medclip_dcl.reports.sentences import without_number
from pipelines.job import Job, run_job

Measure = Callable[[NDArray[np.float64]], Evidence]
Codes = Int8[Tensor, "texts codes"]

_ROWS = 512  # meanings compared with all reports at a time
_POINTS = 800


@dataclass(frozen=True)
class Corpus:
    """The training sentences: their likelihoods, and who says them."""

    keys: list[str]
    pll_nats: NDArray[np.float64]
    sayings: Sayings
    study_ids: list[str]
    patient_of: NDArray[np.int64]


def build(job: Job) -> None:
    """Fit a and k, and write the fragment, the record and the picture.

    Args:
        job: the job's frame.
    """
    settings, cap = job.config.calibrate, job.config.eta.eta_max
    scored = job.open(likelihoods.KIND)
    corpus = read_corpus(job)
    measure = measure_by(settings.evidence, job, corpus)
    evidence = measure(np.ones(len(corpus.study_ids)))
    line = fit_line(evidence, cap)
    draw = np.random.default_rng(job.config.seed)
    lines = resample_lines(measure, corpus.patient_of, cap, settings.resamples, draw)
    record = {
        "evidence": settings.evidence,
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
        "points": _points(evidence, draw),
    }
    folder = job.work / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CALIBRATION, json.dumps(record, indent=1) + "\n")
    write_text(folder / "calibration.svg", standalone(draw_calibration(record)))
    write_text(folder / "eta.yaml", _fragment(record))
    job.say(recipe=str(folder / "eta.yaml"), **_facts(record))


def read_corpus(job: Job) -> Corpus:
    """Read the training sentences of a recipe.

    Args:
        job: the job's frame.

    Returns:
        The corpus.

    Raises:
        ArtifactStale: likelihoods and sentences differ.
    """
    source, scored = job.open(sentences.KIND), job.open(likelihoods.KIND)
    table = read_table(scored.path, likelihoods.LIKELIHOODS, ["text_key", "pll_nats"])
    distinct = sentences.distinct_sentences(source)
    if not table["text_key"].equals(distinct["text_key"]):
        raise ArtifactStale("likelihoods and sentences differ; rerun score_sentences")
    columns = ["study_id", "subject_id", "split", "text_key"]
    rows = read_table(source.path, sentences.SENTENCES, columns)
    training = rows.filter(pa.compute.equal(rows["split"], "train"))
    pairs = training.group_by(["text_key", "study_id"]).aggregate([("subject_id", "min")])
    ids, study = np.unique(pairs["study_id"].to_numpy(), return_inverse=True)
    keys = distinct["text_key"]
    place = pa.compute.index_in(pairs["text_key"], keys.combine_chunks()).to_numpy()
    patient_of = np.zeros(len(ids), dtype=np.int64)
    _, patient = np.unique(pairs["subject_id_min"].to_numpy(), return_inverse=True)
    patient_of[study] = patient
    return Corpus(
        keys.to_pylist(),
        table["pll_nats"].to_numpy().copy(),
        Sayings(place.astype(np.int64), study, len(keys), len(ids)),
        ids.tolist(),
        patient_of,
    )


def measure_by(evidence: str, job: Job, corpus: Corpus) -> Measure:
    """Choose how class probabilities are measured.

    Args:
        evidence: a value of `calibrate.evidence`.
        job: the job's frame.
        corpus: the training sentences.

    Returns:
        A function that gives the evidence when study i counts as often as the i-th weight says.
    """
    return _MEASURES[evidence](job, corpus)


def _by_claims(job: Job, corpus: Corpus) -> Measure:
    folder = job.open(claims.KIND).path
    told = _encoded(folder, claims.SENTENCE_CLAIMS, "text_key", corpus.keys)
    reports = _encoded(folder, claims.REPORT_CLAIMS, "study_id", corpus.study_ids)
    known = np.ones(len(corpus.study_ids), dtype=bool)
    return _by_meaning(job, corpus, _compare(told, reports, known))


def _by_labels(job: Job, corpus: Corpus) -> Measure:
    listed = job.open(manifest.KIND)
    if manifest.STUDY_LABELS.file not in listed.files:
        raise ConfigError("calibrate.evidence is 'labels' and the source has none; set another")
    rows = {
        row["study_id"]: {name: row[name] for name in manifest.LABELS}
        for row in read_table(listed.path, manifest.STUDY_LABELS).to_pylist()
    }
    labels = encode_labels([rows.get(study, {}) for study in corpus.study_ids])
    known = np.array([study in rows for study in corpus.study_ids])
    folder = job.open(claims.KIND).path
    told = _encoded(folder, claims.SENTENCE_CLAIMS, "text_key", corpus.keys)
    return _by_meaning(job, corpus, _compare(told, labels, known))


def _by_meaning(job: Job, corpus: Corpus, meanings: Meanings) -> Measure:
    least = job.config.calibrate.min_studies
    return lambda weights: measure_meanings(
        corpus.pll_nats, corpus.sayings, meanings, weights, least
    )


def _by_frequency(job: Job, corpus: Corpus) -> Measure:
    least = job.config.calibrate.min_studies
    return lambda weights: measure_wordings(corpus.pll_nats, corpus.sayings, weights, least)


def _by_table(job: Job, corpus: Corpus) -> Measure:
    form = without_number if job.config.sentences.strip_numbers else str
    given = read_given_table(resolve_path(job.config.eta.table, job.config), form)
    known = np.array([key in given for key in corpus.keys], dtype=np.float64)
    share = np.array([given.get(key, 0.0) for key in corpus.keys])
    floor = job.config.calibrate.min_studies / max(1, len(corpus.study_ids) - 1)
    ones = np.ones(len(corpus.sayings.study))
    return lambda weights: Evidence(
        corpus.pll_nats, share, known * corpus.sayings.sums(ones, weights), floor
    )


_MEASURES: Mapping[str, Callable[[Job, Corpus], Measure]] = {
    "claims": _by_claims,
    "labels": _by_labels,
    "frequency": _by_frequency,
    "table": _by_table,
}


def _encoded(folder: Any, form: TableFormat, key: str, ids: Sequence[str]) -> Codes:
    rows = {row[key]: row for row in read_table(folder, form).to_pylist()}
    if not rows.keys() >= set(ids):
        raise ArtifactStale("claims and sentences differ; rerun read_claims")
    return encode_claims([Claims.from_row(rows[name]) for name in ids])


def _compare(told: Codes, studies: Codes, known: NDArray[np.bool_]) -> Meanings:
    """Compare every distinct meaning with every distinct report."""
    meanings, of_sentence = torch.unique(told, dim=0, return_inverse=True)
    columns, of_study = torch.unique(studies, dim=0, return_inverse=True)
    fits = [
        np.packbits((relation_matrix(block, columns) != DIFFERENT).numpy(), axis=1)
        for block in meanings.split(_ROWS)
    ]
    silent = (told == 0).all(dim=1)
    return Meanings(
        of_sentence.masked_fill(silent, -1).numpy(),
        np.where(known, of_study.numpy(), -1),
        np.concatenate(fits),
        len(columns),
    )


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


def _points(evidence: Evidence, draw: np.random.Generator) -> list[list[float]]:
    """A sample of the measured sentences for the picture: likelihood and share, no texts."""
    known = np.flatnonzero(evidence.is_measured & (evidence.weight > 0))
    kept = draw.choice(known, min(len(known), _POINTS), replace=False)
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
