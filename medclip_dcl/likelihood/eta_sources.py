"""Estimates of every sentence's eta, and the cache that they are written into.

`eta.source` names the estimate; every one is capped at `eta.eta_max`:

    pll        a * p**k, the paper's; a and k given, or fitted to the corpus (`eta.fit`)
    frequency  share of training reports that contain the sentence
    constant   `eta.constant` for all
    labels     share of labelled training studies that the sentence's claims fit
    table      column `eta` (or `rho`) of `eta.table`
    oracle     the same; says that the table holds true class probabilities
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import torch
from numpy.typing import NDArray

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactStale, ConfigError, ScoreError
from medclip_dcl.core.tables import read_table, write_table
from medclip_dcl.data import manifest
from medclip_dcl.likelihood.eta import ETA, Floats, cap_eta, eta_from_pll
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.text import sentences
from medclip_dcl.text.boundaries import without_number
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import text_key

NOT_MENTIONED = -2
"""Label of a finding that a study's label table leaves blank."""


class SentenceClaims(NamedTuple):
    """Claims of one sentence, as far as a table of findings can show."""

    asserted: tuple[str, ...]
    negated: tuple[str, ...]
    normal: bool


def eta_from_frequency(reports: NDArray[np.int64], total: int) -> Floats:
    """Estimate the class probability by the share of training reports with the very sentence.

    Raises:
        ScoreError: there is no training report, or fewer than contain a sentence.

    Source: ours; a report is one random image's text, so the share of reports is the
        chance that a random image comes with this sentence.
    """
    if total < 1 or int(reports.max(initial=0)) > total:
        raise ScoreError(f"{total} training reports do not fit the counts; rerun split_sentences")
    return reports.astype(np.float64) / total


def eta_from_labels(
    said: Iterable[SentenceClaims], labels: NDArray[np.int8], names: Sequence[str]
) -> Floats:
    """Estimate the class probability by how many labelled training studies a sentence fits.

    A study fits if every asserted finding is labelled present and no negated one is labelled
    present or uncertain; a sentence that calls the image normal fits studies labelled `No Finding`.
    A sentence without claims, or with one of a finding that no study is labelled for, gets 0, and
    is left uncorrected. `labels` (studies, findings): 1
    present, 0 absent, -1 uncertain, or `NOT_MENTIONED`; `names`: the finding of each column.

    Raises:
        ScoreError: there is no labelled study.

    Source: ours; the counterpart of "Remove by CheX5 labels" in Wang et al. 2023, Table 1.
    """
    if not len(labels):
        raise ScoreError("no training study has labels; set eta.source to another value")
    column = {name: number for number, name in enumerate(names)}
    shares: dict[SentenceClaims, float] = {}
    eta = []
    for claims in said:
        if claims not in shares:  # many sentences make the same claims
            shares[claims] = _fitting_share(claims, labels, column)
        eta.append(shares[claims])
    return np.array(eta, dtype=np.float64)


def _fitting_share(
    claims: SentenceClaims, labels: NDArray[np.int8], column: dict[str, int]
) -> float:
    if not any(claims):
        return 0.0
    fits = np.ones(len(labels), dtype=bool)
    is_normal = claims.normal and not claims.asserted
    said = (*claims.asserted, *claims.negated, *(("No Finding",) if is_normal else ()))
    if any(name not in column or (labels[:, column[name]] == NOT_MENTIONED).all() for name in said):
        return 0.0  # not a label of this source: nobody knows whom the sentence fits
    for finding in claims.asserted:
        fits &= labels[:, column[finding]] == 1
    for finding in claims.negated:
        fits &= np.isin(labels[:, column[finding]], (0, NOT_MENTIONED))
    if is_normal:
        fits &= labels[:, column["No Finding"]] == 1
    return float(fits.mean())


def label_shares(keys: Sequence[str], claimed: Artifact, listed: Artifact) -> Floats:
    """Return the share of labelled training studies that each key's sentence fits.

    Raises:
        ArtifactStale: the claims lack a sentence.
        ConfigError: the manifest has no label table.
        ScoreError: no training study has labels.
    """
    rows = {
        row["text_key"]: SentenceClaims(
            tuple(sorted({name.partition("|")[0] for name in row["asserted"]})),
            tuple(sorted(row["negated"])),
            row["normal"],
        )
        for row in read_table(claimed.path, labels.SENTENCE_CLAIMS).to_pylist()
    }
    if not rows.keys() >= set(keys):
        raise ArtifactStale("claims and sentences differ; rerun read_claims")
    return eta_from_labels((rows[key] for key in keys), _labels(listed), LABELS)


def has_labels(listed: Artifact) -> bool:
    """Whether a training study of a manifest has labels."""
    return manifest.STUDY_LABELS.file in listed.files and len(_labels(listed)) > 0


def _labels(listed: Artifact) -> NDArray[np.int8]:
    if manifest.STUDY_LABELS.file not in listed.files:
        raise ConfigError("eta.source is 'labels' and the manifest has none; set another source")
    table = manifest.read_labels(listed).to_pylist()
    reports = read_table(listed.path, manifest.REPORTS, ["study_id", "split"]).to_pylist()
    training = {row["study_id"] for row in reports if row["split"] == "train"}
    rows = [
        [NOT_MENTIONED if row.get(name) is None else row[name] for name in LABELS]
        for row in table
        if row["study_id"] in training
    ]
    return np.array(rows, dtype=np.int8).reshape(-1, len(LABELS))


def read_given_table(path: Path) -> dict[str, float]:
    """Read text key -> class probability from a CSV with `text`, and `eta` or `rho`.

    A text may carry the number of a list item, which the corpus's sentences have lost.

    Raises:
        ConfigError: the file cannot be read, lacks a column, holds a value outside
            [0, 1], or two different values for one sentence.
    """
    options = pa_csv.ConvertOptions(
        column_types={"text": pa.string(), "eta": pa.float64(), "rho": pa.float64()}
    )
    try:
        table = pa_csv.read_csv(path, convert_options=options)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError("eta.table cannot be read as CSV with columns text and eta") from error
    values = next((name for name in ("eta", "rho") if name in table.column_names), None)
    if values is None or "text" not in table.column_names:
        raise ConfigError("eta.table has no columns text and eta (or rho); add them")
    given: dict[str, float] = {}
    for text, value in zip(table["text"].to_pylist(), table[values].to_pylist(), strict=True):
        if text is None or value is None or not 0 <= value <= 1:
            raise ConfigError("eta.table has a row without text or a value in [0, 1]; correct it")
        if given.setdefault(text_key(without_number(text)), value) != value:
            raise ConfigError("eta.table gives one sentence two values; keep one row of each")
    return given


def used_settings(settings: EtaConfig) -> dict[str, Any]:
    """Pick the settings that a source uses: a change of the others rebuilds nothing."""
    line = ("a", "k") if settings.fit == "none" else ("fit",)
    own = {"pll": line, "constant": ("constant",)}.get(settings.source, ())
    return {name: getattr(settings, name) for name in ("source", "eta_max", *own)}


def write_cache(
    folder: Path, settings: EtaConfig, inputs: Mapping[str, Artifact], table: Path | None
) -> dict[str, Any]:
    """Estimate the eta of every distinct sentence, cap it and write the cache's table.

    `inputs` are the artifacts that the source reads, by name, `table` is `eta.table` where the
    source is `table` or `oracle`. The summary has counts, quantiles of eta, and a and k as used;
    where they were fitted also the error of their eta, and of the best constant, in nats; where
    they should have been, and too few sentences are measured, `fit_obstacle`.

    Raises:
        ArtifactStale: likelihoods or claims are those of other sentences.
        ConfigError: the table is malformed, or there are no labels.
        ScoreError: a likelihood is positive, or the table lacks a sentence.
    """
    distinct = sentences.distinct_sentences(inputs[sentences.ARTIFACT.name])
    scored = _scored(inputs, distinct) if settings.source == "pll" else None
    facts: dict[str, Any] = {}
    if scored is None:
        raw = _estimate(settings, inputs, table, distinct)
    else:
        raw, facts = _from_likelihoods(scored["pll_nats"].to_numpy(), settings, inputs)
    capped = cap_eta(torch.from_numpy(raw), settings.eta_max).numpy()
    nothing = pa.nulls(len(distinct))
    columns = {
        "text_key": distinct["text_key"],
        "eta": pa.array(capped, pa.float64()),
        "pll_nats": nothing if scored is None else scored["pll_nats"],
        "tokens": nothing if scored is None else scored["tokens"],
        "count": distinct["count"],
    }
    write_table(folder, ETA, pa.table(columns))
    count = distinct["count"].to_numpy().astype(np.int64)
    return _summary(raw, capped, count, settings) | facts


def _estimate(
    settings: EtaConfig,
    inputs: Mapping[str, Artifact],
    table: Path | None,
    distinct: pa.Table,
) -> Floats:
    if settings.source == "constant":
        return np.full(len(distinct), settings.constant)
    if settings.source == "frequency":
        total = sentences.training_reports(inputs[sentences.ARTIFACT.name])
        return eta_from_frequency(distinct["reports"].to_numpy().astype(np.int64), total)
    keys = distinct["text_key"].to_pylist()
    if settings.source == "labels":
        return label_shares(keys, inputs[labels.ARTIFACT.name], inputs[manifest.ARTIFACT.name])
    assert table is not None
    values = read_given_table(table)
    missing = [key for key in keys if key not in values]
    if missing:
        raise ScoreError(
            f"eta.table lacks {len(missing)} of {len(keys)} sentences, the first with key "
            f"{missing[0]}; add them (0: no correction)"
        )
    return np.array([values[key] for key in keys])


def _from_likelihoods(
    pll_nats: Floats, settings: EtaConfig, inputs: Mapping[str, Artifact]
) -> tuple[Floats, dict[str, Any]]:
    """Estimate eta = a p**k, and say with which a and k; where they are fitted, how well."""
    a, k, cap = settings.a, settings.k, settings.eta_max
    facts: dict[str, Any] = {}
    if settings.fit != "none":
        from medclip_dcl.likelihood import eta_fit  # imports scipy

        listed = inputs.get(manifest.ARTIFACT.name)
        texts, claimed = inputs[sentences.ARTIFACT.name], inputs[labels.ARTIFACT.name]
        shares = eta_fit.measure_shares(texts, claimed, settings.fit, listed)
        # A table of few studies trains all the same, by the paper's a and k.
        if reason := eta_fit.obstacle(shares, cap):
            a, k, facts = EtaConfig().a, EtaConfig().k, {"fit_obstacle": reason}
        else:
            line = eta_fit.fit_line(pll_nats, shares, cap)
            a, k = line
            constant = np.full(len(pll_nats), eta_fit.best_constant(shares, cap))
            errors = {"fit_log_error": line.eta(pll_nats, cap), "fit_log_error_constant": constant}
            for name, eta in errors.items():
                facts[name] = round(eta_fit.log_error(eta, shares, cap), 3)
            facts |= {"fit": settings.fit}
    estimated: Floats = eta_from_pll(torch.from_numpy(pll_nats.copy()), a, k).numpy()
    return estimated, {"a": round(a, 6), "k": round(k, 6)} | facts


def _scored(inputs: Mapping[str, Artifact], distinct: pa.Table) -> pa.Table:
    from medclip_dcl.likelihood import scoring  # imports transformers

    scored = read_table(inputs[scoring.ARTIFACT.name].path, scoring.LIKELIHOODS)
    if not scored["text_key"].equals(distinct["text_key"]):
        raise ArtifactStale("likelihoods and sentences differ; rerun score_sentences")
    return scored


def _summary(
    raw: Floats, eta: Floats, count: NDArray[np.int64], settings: EtaConfig
) -> dict[str, Any]:
    weights = count / max(1, count.sum())
    is_capped = raw > settings.eta_max
    low, middle, high = np.quantile(eta, [0.05, 0.5, 0.95])
    figures = {
        "capped_share": is_capped.mean(),
        "capped_share_weighted": (is_capped * weights).sum(),
        "eta_mean": eta.mean(),
        "eta_mean_weighted": (eta * weights).sum(),
        "eta_p5": low,
        "eta_median": middle,
        "eta_p95": high,
        "eta_zero_share": (eta == 0).mean(),
    }
    rounded = {name: round(float(value), 6) for name, value in figures.items()}
    return {"source": settings.source, "sentences": len(eta), **rounded}
