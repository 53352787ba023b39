"""Score every distinct sentence by its pseudo-log-likelihood.

Reads sentences and language_model, writes likelihoods. The expensive job: work is cut
into units that are acknowledged one by one, so a killed run goes on where it stopped
and ends with the same bits.
"""

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from medclip_dcl.artifacts import language_model, likelihoods, sentences
from medclip_dcl.artifacts.frame import Artifact, Draft, json_digest
from medclip_dcl.artifacts.language_model import tokenizer_digest
from medclip_dcl.artifacts.tables import read_table, write_table
from medclip_dcl.config.text import LikelihoodConfig
from medclip_dcl.cores import available_cores
from medclip_dcl.errors import ArtifactCorrupt
from medclip_dcl.likelihood.diagnostics import spearman
from medclip_dcl.likelihood.scorer import Recipe, Scores, Unit, score_units
from medclip_dcl.progress import Progress
from pipelines.job import Job, run_job

_UNITS = "units"
_OPERATIONS_WORTH_A_PROCESS = 3e12  # about a minute of one core; starting a process takes seconds
_OPERATIONS_PER_WEIGHT = 600  # 2 for each of some 300 word pieces of a sentence's masked copies


def build(job: Job) -> None:
    """Make the likelihoods.

    Args:
        job: the job's frame.
    """
    corpus, model = job.open(sentences.KIND), job.open(language_model.KIND)
    settings = job.config.likelihood
    asked = {
        "variant": settings.variant,
        "dtype": settings.dtype,
        "splitter": corpus.recipe["settings"].get("splitter", ""),
        "normalisation": sentences.NORMALISATION,
        "tokenizer": tokenizer_digest(model),
    }
    job.make(
        likelihoods.KIND,
        asked,
        {"sentences": corpus, "language_model": model},
        partial(_write, corpus=corpus, model=model, settings=settings),
    )


def _write(
    draft: Draft, corpus: Artifact, model: Artifact, settings: LikelihoodConfig
) -> Mapping[str, Any]:
    distinct = sentences.distinct_sentences(corpus)
    keys = distinct["text_key"].to_pylist()
    table = _finished(draft.directory, keys)
    if table is None:
        units = _units(keys, distinct["text"].to_pylist(), settings)
        weights = model.files[language_model.WEIGHTS]["bytes"] / 4
        recipe = Recipe(model.path, settings.variant, settings.dtype, settings.token_budget)
        workers = settings.workers or _workers(weights * len(keys))
        scored = _score(draft.directory / _UNITS, recipe, units, workers)
        table = scored.append_column("count", distinct["count"])
        write_table(draft.directory, likelihoods.LIKELIHOODS, table)
    shutil.rmtree(draft.directory / _UNITS, ignore_errors=True)
    return _figures(table)


def _finished(folder: Path, keys: Sequence[str]) -> pa.Table | None:
    """Read the whole table where a killed run had just written it."""
    try:
        table = read_table(folder, likelihoods.LIKELIHOODS)
    except ArtifactCorrupt:
        return None
    return table if table["text_key"].to_pylist() == list(keys) else None


def _units(keys: Sequence[str], texts: Sequence[str], settings: LikelihoodConfig) -> list[Unit]:
    """Cut the sorted sentences into units whose names tell what they hold."""
    units = []
    for number, start in enumerate(range(0, len(keys), settings.unit_sentences)):
        part = slice(start, start + settings.unit_sentences)
        digest = json_digest([settings.token_budget, *keys[part]])[:16]
        units.append(Unit(f"unit-{number:06d}-{digest}", tuple(keys[part]), tuple(texts[part])))
    return units


def _workers(weighed_sentences: float) -> int:
    if torch.cuda.is_available():
        return 1
    worth = weighed_sentences * _OPERATIONS_PER_WEIGHT / _OPERATIONS_WORTH_A_PROCESS
    return max(1, min(available_cores(), math.floor(worth)))


def _score(folder: Path, recipe: Recipe, units: Sequence[Unit], workers: int) -> pa.Table:
    """Score the units that no earlier run has acknowledged; put all together."""
    folder.mkdir(exist_ok=True)
    tables = {unit.name: likelihoods.read_unit(folder, unit.name, unit.keys) for unit in units}
    left = [unit for unit in units if tables[unit.name] is None]
    total = sum(len(unit.keys) for unit in units)
    done = total - sum(len(unit.keys) for unit in left)
    keys_of = {unit.name: unit.keys for unit in units}
    with (
        Progress("score sentences", total, "sentence", done) as bar,
        closing(score_units(recipe, left, workers)) as finished,
    ):
        for scores in finished:
            table = _table(keys_of[scores.name], scores)
            likelihoods.write_unit(folder, scores.name, table)
            tables[scores.name] = table
            bar.advance(len(table))
    return pa.concat_tables([tables[unit.name] for unit in units])


def _table(keys: Sequence[str], scores: Scores) -> pa.Table:
    return pa.table(
        {
            "text_key": pa.array(keys, pa.string()),
            "pll_nats": pa.array(scores.pll_nats, pa.float64()),
            "tokens": pa.array(scores.tokens, pa.int32()),
        }
    )


def _figures(table: pa.Table) -> dict[str, Any]:
    pll_nats = table["pll_nats"].to_numpy()
    tokens, count = table["tokens"].to_numpy(), table["count"].to_numpy()
    low, middle, high = np.quantile(pll_nats, [0.05, 0.5, 0.95])
    said = count > 0
    return {
        "sentences": len(table),
        "tokens": int(tokens.sum()),
        "longest_tokens": int(tokens.max()),
        "pll_p5_nats": round(float(low), 4),
        "pll_median_nats": round(float(middle), 4),
        "pll_p95_nats": round(float(high), 4),
        "spearman_pll_count": round(spearman(pll_nats[said], count[said]), 4),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    return run_job("score_sentences", build, argv)


if __name__ == "__main__":
    sys.exit(main())
