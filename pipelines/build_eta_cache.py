"""Turn likelihoods into the class probability eta of every distinct sentence.

Reads sentences and, where eta comes from them, likelihoods, claims with labels, or a
table; writes eta_cache. Seconds: a, k and the cap change without rescoring.

Where eta comes from (`eta.source`), capped at `eta.eta_max`:
    pll        a * exp(k * pll_nats), the paper's
    frequency  share of training reports that contain the sentence
    constant   `eta.constant` for all
    labels     share of labelled training studies that the sentence's claims fit
    table      column `eta` (or `rho`) of `eta.table`
    oracle     the same; says that the table holds true class probabilities
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from medclip_dcl.artifact import Artifact, ArtifactType, ArtifactWriter
from medclip_dcl.config import resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.errors import ArtifactMissing, ArtifactStale, ConfigError, ScoreError
from medclip_dcl.files import sha256_file
from medclip_dcl.likelihood import eta, masked_lm, scoring
from medclip_dcl.likelihood.eta import (
    EtaConfig,
    cap_eta,
    eta_from_frequency,
    eta_from_pll,
    label_shares,
)
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.sentences import without_number
from pipelines.job import Job, run_job

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Given:
    """What an estimate may read."""

    settings: EtaConfig
    inputs: Mapping[str, Artifact]
    table: Path | None
    form: Callable[[str], str]
    """Brings a text into the form in which the corpus keeps sentences."""
    distinct: pa.Table
    """Columns text_key, text, count and reports, in order of text_key."""


def build(job: Job) -> None:
    """Make the eta cache.

    Args:
        job: the job's frame.
    """
    settings = job.config.eta
    kinds = (sentences.ARTIFACT, *_SOURCES[settings.source].reads)
    inputs = {kind.name: job.open(kind) for kind in kinds}
    if scoring.ARTIFACT.name in inputs:
        _refuse_other_scores(job, inputs)
    table, digests = None, {}
    if _SOURCES[settings.source].table:
        table = resolve_path(settings.table, job.config)
        if not table.is_file():
            raise ConfigError(f"eta.source is {settings.source!r} and eta.table names no file")
        digests["table"] = sha256_file(table)
    form = without_number if job.config.sentences.strip_numbers else str
    distinct = sentences.distinct_sentences(inputs[sentences.ARTIFACT.name])
    job.make(
        eta.ARTIFACT,
        {"eta": _SOURCES[settings.source].asked(settings)},
        {**inputs, **digests},
        partial(_write, given=Given(settings, inputs, table, form, distinct)),
    )


def _refuse_other_scores(job: Job, inputs: Mapping[str, Artifact]) -> None:
    """Refuse likelihoods of another model, tokenizer, variant, dtype or splitter by name."""
    try:
        model = job.open(masked_lm.ARTIFACT, verify=False)
    except ArtifactMissing:  # the likelihoods may have been made elsewhere
        model = None
    source = inputs[sentences.ARTIFACT.name]
    header = scoring.score_header(source, model, job.config.likelihood)
    scoring.refuse_other_scores(inputs[scoring.ARTIFACT.name], header)


def _write(writer: ArtifactWriter, given: Given) -> Mapping[str, Any]:
    settings, distinct = given.settings, given.distinct
    raw = _SOURCES[settings.source].estimate(given)
    values = cap_eta(torch.from_numpy(raw), settings.eta_max).numpy()
    scored = _scored(given) if settings.source == "pll" else None
    nothing = pa.nulls(len(distinct))
    columns = {
        "text_key": distinct["text_key"],
        "eta": pa.array(values, pa.float64()),
        "pll_nats": scored["pll_nats"] if scored is not None else nothing,
        "tokens": scored["tokens"] if scored is not None else nothing,
        "count": distinct["count"],
    }
    write_table(writer.directory, eta.ETA, pa.table(columns))
    return _figures(raw, values, distinct["count"].to_numpy(), settings)


def _scored(given: Given) -> pa.Table:
    """Read the likelihoods, which must be those of the very same sentences."""
    table = read_table(given.inputs[scoring.ARTIFACT.name].path, scoring.LIKELIHOODS)
    if not table["text_key"].equals(given.distinct["text_key"]):
        raise ArtifactStale("likelihoods and sentences differ; rerun score_sentences")
    return table


def _from_pll(given: Given) -> Floats:
    pll_nats = torch.from_numpy(_scored(given)["pll_nats"].to_numpy().copy())
    eta: Floats = eta_from_pll(pll_nats, given.settings.a, given.settings.k).numpy()
    return eta


def _from_frequency(given: Given) -> Floats:
    total = sentences.training_reports(given.inputs[sentences.ARTIFACT.name])
    return eta_from_frequency(given.distinct["reports"].to_numpy().astype(np.int64), total)


def _constant(given: Given) -> Floats:
    return np.full(len(given.distinct), given.settings.constant)


def _from_table(given: Given) -> Floats:
    assert given.table is not None
    values = eta.read_given_table(given.table, given.form)
    keys = given.distinct["text_key"].to_pylist()
    missing = [key for key in keys if key not in values]
    if missing and given.settings.on_missing == "error":
        raise ScoreError(
            f"eta.table lacks {len(missing)} of {len(keys)} sentences, the first with key "
            f"{missing[0]}; add them or set eta.on_missing to 'zero'"
        )
    return np.array([values.get(key, 0.0) for key in keys])


def _from_labels(given: Given) -> Floats:
    artifacts = (given.inputs[kind.name] for kind in (labels.ARTIFACT, manifest.ARTIFACT))
    return label_shares(given.distinct["text_key"].to_pylist(), *artifacts)


def _figures(
    raw: Floats, eta: Floats, count: NDArray[np.int64], settings: EtaConfig
) -> dict[str, Any]:
    weights = count / max(1, count.sum())
    low, middle, high = np.quantile(eta, [0.05, 0.5, 0.95])
    return {
        "source": settings.source,
        "sentences": len(eta),
        "capped_share": round(float((raw > settings.eta_max).mean()), 6),
        "capped_share_weighted": round(float(((raw > settings.eta_max) * weights).sum()), 6),
        "eta_mean": round(float(eta.mean()), 6),
        "eta_mean_weighted": round(float((eta * weights).sum()), 6),
        "eta_p5": round(float(low), 6),
        "eta_median": round(float(middle), 6),
        "eta_p95": round(float(high), 6),
        "eta_zero_share": round(float((eta == 0).mean()), 6),
    }


@dataclass(frozen=True)
class Source:
    """One source of eta: how it estimates, and what it reads."""

    estimate: Callable[[Given], Floats]
    settings: tuple[str, ...]
    reads: tuple[ArtifactType, ...] = ()
    table: bool = False

    def asked(self, settings: EtaConfig) -> dict[str, Any]:
        """Pick the settings that matter, so that a change of the others rebuilds nothing."""
        names = ("source", "eta_max", *self.settings)
        return {name: getattr(settings, name) for name in names}


_SOURCES = {
    "pll": Source(_from_pll, ("a", "k"), (scoring.ARTIFACT,)),
    "frequency": Source(_from_frequency, ()),
    "constant": Source(_constant, ("constant",)),
    "labels": Source(_from_labels, (), (labels.ARTIFACT, manifest.ARTIFACT)),
    "table": Source(_from_table, ("on_missing",), table=True),
    "oracle": Source(_from_table, ("on_missing",), table=True),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    return run_job("build_eta_cache", build, argv)


if __name__ == "__main__":
    sys.exit(main())
