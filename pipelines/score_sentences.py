"""Score every distinct sentence by its pseudo-log-likelihood.

    python -m pipelines.score_sentences --config FILE
    accelerate launch -m pipelines.score_sentences --config FILE
    torchrun --nproc-per-node 8 -m pipelines.score_sentences --config FILE

Reads sentences and language_model, writes likelihoods. The expensive job: work is cut into
units before the first result, and finished units are acknowledged within seconds, so a
killed run goes on where it stopped and ends with the same bits. A launcher gives each GPU a
process, on one node or on several that share the recipe's folder; without one the cores of
a CPU share the work.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch

from medclip_dcl.artifact import ArtifactWriter
from medclip_dcl.distributed import Launch, joined
from medclip_dcl.errors import ArtifactCorrupt, ArtifactError
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.likelihood.diagnostics import spearman
from medclip_dcl.likelihood.engines import EngineName
from medclip_dcl.likelihood.scoring import (
    Floats,
    ScoringOptions,
    Work,
    collect_scores,
    drift,
    engine_of,
    plan_work,
    score_share,
)
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text import sentences
from pipelines.job import Job, run_job

_DRIFT_SENTENCES = 32  # spread over the corpus


def build(job: Job) -> None:
    """Make the likelihoods.

    Args:
        job: the job's frame.
    """
    with joined() as launch:
        scoring = _Scoring(job, launch)
        if launch.is_main:
            scoring.lead()
        else:
            scoring.follow()


class _Scoring:
    """One process of the job: the main one makes the artifact, the others score their share."""

    def __init__(self, job: Job, launch: Launch) -> None:
        self._job, self._launch = job, launch
        self._settings = job.config.likelihood
        verify = launch.is_main  # one process in many hashes every byte
        self._source = job.open(sentences.ARTIFACT, verify=verify)
        self._model = job.open(masked_lm.ARTIFACT, verify=verify)
        self._fingerprint = ScoringOptions(
            self._model.path,
            self._settings.variant,
            self._settings.dtype,
            self._settings.token_budget,
            _device(launch),
            self._settings.engine,
        )
        self._others_wait = launch.processes > 1

    def lead(self) -> None:
        """Make the artifact unless it is valid."""
        try:
            header = scoring.score_header(self._source, self._model, self._settings)
            engine = self._engine_of_scores(header) or engine_of(self._fingerprint)
            self._fingerprint = replace(self._fingerprint, engine=engine)
            self._job.make(
                scoring.ARTIFACT,
                {**header, "engine": engine},
                {"sentences": self._source, "language_model": self._model},
                self._write,
            )
        finally:
            self._tell("")

    def follow(self) -> None:
        """Score a share where the main process finds something to score."""
        engine, _, folder = self._launch.tell("").partition(" ")
        if folder:
            self._fingerprint = replace(self._fingerprint, engine=cast("EngineName", engine))
            self._score(Path(folder), self._plan(sentences.distinct_sentences(self._source)))
            self._launch.wait()

    def _engine_of_scores(self, header: Mapping[str, str]) -> EngineName | None:
        """Give the engine of whole likelihoods that are to be reused, whatever this machine has."""
        if self._settings.engine != "auto":
            return None
        try:
            sealed = self._job.open(scoring.ARTIFACT, verify=False)
        except ArtifactError:
            return None
        said = sealed.fingerprint["settings"]
        same = said == {**header, "engine": said.get("engine")}
        return cast("EngineName", said["engine"]) if same else None

    def _tell(self, engine_and_folder: str) -> None:
        """Tell the others once how and where to score, or that there is nothing to do."""
        if self._others_wait:
            self._others_wait = False
            self._launch.tell(engine_and_folder)

    def _tell_drift(self, texts: Sequence[str]) -> None:
        """Say how far scores in the precision that is asked for lie from those in float32."""
        some = texts[:: -(-len(texts) // _DRIFT_SENTENCES)]
        worst = drift(self._fingerprint, some)
        self._job.say(dtype=self._settings.dtype, drift_nats=round(worst, 4), sentences=len(some))

    def _write(self, writer: ArtifactWriter) -> Mapping[str, Any]:
        distinct = sentences.distinct_sentences(self._source)
        work = self._plan(distinct)
        folder = writer.directory / scoring.PARTS
        table = _finished(writer.directory, distinct["text_key"].to_pylist())
        if table is None:
            if self._settings.dtype != "float32":
                self._tell_drift(distinct["text"].to_pylist())
            folder.mkdir(exist_ok=True)
            self._tell(f"{self._fingerprint.engine} {folder}")
            self._score(folder, work)
            self._launch.wait()
            table = _table(distinct, work, collect_scores(folder, work, self._launch))
            write_table(writer.directory, scoring.LIKELIHOODS, table)
        if folder.exists():
            shutil.rmtree(folder)
        return _figures(table) | {
            "scored": len(work.measured.order),
            "truncated": work.measured.truncated,
        }

    def _plan(self, distinct: pa.Table) -> Work:
        keys, texts = distinct["text_key"].to_pylist(), distinct["text"].to_pylist()
        return plan_work(keys, texts, self._fingerprint, self._settings)

    def _score(self, folder: Path, work: Work) -> None:
        damaged = score_share(folder, work, self._fingerprint, self._settings, self._launch)
        if damaged and self._launch.is_main:
            self._job.say(damaged_parts=damaged, state="their sentences are scored again")


def _device(launch: Launch) -> str:
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{launch.local_rank % torch.cuda.device_count()}"


def _finished(folder: Path, keys: Sequence[str]) -> pa.Table | None:
    """Read the whole table where a killed run had just written it."""
    try:
        table = read_table(folder, scoring.LIKELIHOODS)
    except ArtifactCorrupt:
        return None
    return table if table["text_key"].to_pylist() == list(keys) else None


def _table(distinct: pa.Table, work: Work, pll_nats: Floats) -> pa.Table:
    table = distinct.append_column("pll_nats", pa.array(pll_nats, pa.float64()))
    return table.append_column("tokens", pa.array(work.measured.pieces, pa.int32()))


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
    """Run the job."""
    return run_job("score_sentences", build, argv)


if __name__ == "__main__":
    sys.exit(main())
