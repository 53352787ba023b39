"""Likelihoods: the pseudo-log-likelihood of every distinct sentence, scored once.

A corpus is cut into units (`Plan`). Each is scored by one thread of a process, or by a
GPU, so that on one kind of machine its bits depend on the unit alone; and it is written to a
part of its own as soon as it is finished, so that a kill loses only the units in work. Several
processes, on one node or on many, share the units; the main one puts the parts together.
"""

import io
import math
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from scipy import stats

from medclip_dcl.core.artifact import Artifact, ArtifactType, fingerprint_changes
from medclip_dcl.core.distributed import Launch, available_cores
from medclip_dcl.core.errors import (
    ArtifactCorrupt,
    ArtifactStale,
    LaunchError,
    ScoreError,
)
from medclip_dcl.core.files import write_bytes
from medclip_dcl.core.progress import Progress
from medclip_dcl.core.tables import Column, TableFormat, read_table, write_table
from medclip_dcl.likelihood.masked_lm import (
    model_digest,
    tokenizer_digest,
)
from medclip_dcl.likelihood.scorer import Scorer, ScoringOptions, Task, drift, score_tasks
from medclip_dcl.likelihood.settings import LikelihoodConfig
from medclip_dcl.likelihood.work_units import Plan, plan_units, span_codes, units_of
from medclip_dcl.models.settings import EngineName
from medclip_dcl.models.text_encoder import read_bert_config, read_bert_tokenizer
from medclip_dcl.text import sentences

Floats = NDArray[np.float64]

ARTIFACT = ArtifactType("likelihoods", 2, "score_sentences", costly=True)

LIKELIHOODS = TableFormat(
    "likelihoods.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column("pll_nats", pa.float64(), "pseudo-log-likelihood, sum over word pieces, nats, <= 0"),
        Column("tokens", pa.int32(), "word pieces, [CLS] and [SEP] left out"),
        Column("count", pa.int32(), "occurrences in the training split"),
    ),
)
"""One row per distinct sentence, in order of text_key."""

PARTS = "parts"
"""Folder, in the draft, of what has been acknowledged."""

_OPERATIONS_WORTH_A_PROCESS = 3e12  # about a minute of one core; starting a process takes seconds
_SEEN_BY_ALL_S = 90.0  # a network file system may show a new file that late
_DRIFT_SENTENCES = 32  # spread over the corpus

_PART_COLUMNS = (
    Column("text_key", pa.string(), "`text_key` of the sentence"),
    Column("first", pa.int32(), "first word piece of the span that was scored, from 0"),
    Column("last", pa.int32(), "the word piece after the span"),
    Column("pll_nats", pa.float64(), "sum over the span, nats"),
)


def score_header(
    source: Artifact, model: Artifact | None, settings: LikelihoodConfig
) -> dict[str, str]:
    """List what scores depend on besides texts, for the fingerprint of likelihoods.

    Where the model is None, what depends on it is left out.
    """
    header = {
        "variant": settings.variant,
        "dtype": settings.dtype,
        "splitter": str(source.fingerprint["settings"].get("splitter", "")),
        "normalisation": sentences.NORMALISATION,
    }
    if model is not None:
        header["model"] = model_digest(model)
        header["tokenizer"] = tokenizer_digest(model)
    return header


def refuse_other_scores(artifact: Artifact, header: Mapping[str, str]) -> None:
    """Raise ArtifactStale, naming each setting that differs from those of a `score_header`."""
    said = artifact.fingerprint["settings"]
    found = {name: said[name] for name in header if name in said}
    differences = fingerprint_changes(found, {name: header[name] for name in found})
    if differences:
        raise ArtifactStale(
            f"the likelihoods were scored with other settings ({'; '.join(differences)}); rerun "
            "score_sentences, or set these back"
        )


def write_part(folder: Path, rows: pa.Table) -> None:
    """Acknowledge the scores of a unit: after a kill a part is there whole or not at all.

    Several processes may write in the folder; rows have text_key, first, last and pll_nats.
    """
    form = TableFormat(f"part-{secrets.token_hex(8)}.parquet", _PART_COLUMNS)
    buffer = io.BytesIO()
    table = rows.cast(form.schema)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_bytes(folder / form.file, buffer.getvalue())


def read_parts(folder: Path) -> tuple[pa.Table, int]:
    """Read what has been acknowledged, and count the damaged parts that were left out."""
    tables = [TableFormat("", _PART_COLUMNS).schema.empty_table()]
    damaged = 0
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            tables.append(read_table(folder, TableFormat(path.name, _PART_COLUMNS)))
        except ArtifactCorrupt:
            damaged += 1
    return pa.concat_tables(tables), damaged


class CorpusScoring:
    """One process of a launch that scores a corpus: the main one leads, the others follow."""

    def __init__(
        self,
        source: Artifact,
        model: Artifact,
        settings: LikelihoodConfig,
        launch: Launch,
        say: Callable[..., None],
        workers: int = 0,
    ) -> None:
        """Share the work of a launch; ScoreError where several workers would share a GPU."""
        self._source, self._model, self._settings = source, model, settings
        self._launch, self._say, self._asked_workers = launch, say, workers
        device = "cpu"
        if torch.cuda.is_available():
            device = f"cuda:{launch.local_rank % torch.cuda.device_count()}"
        self._options = ScoringOptions(
            model.path,
            settings.variant,
            settings.dtype,
            device,
            settings.engine,
        )
        if workers > 1 and device != "cpu":
            raise ScoreError(
                f"workers {workers} would share one GPU and its memory, and a GPU is scored on by "
                "one process; leave workers out, and start one process a GPU with torchrun"
            )
        self._others_wait = launch.processes > 1

    def choose_engine(self, existing: Artifact | None) -> dict[str, str]:
        """Choose the engine, and give the settings that the scores depend on.

        `existing` likelihoods may be reused, whatever engine this machine has.
        """
        header = score_header(self._source, self._model, self._settings)
        scored_with = dict(existing.fingerprint["settings"]) if existing else {}
        engine: EngineName = scored_with.pop("engine", "auto")
        if self._settings.engine != "auto" or scored_with != header:
            engine = Scorer(self._options).engine
        self._options = replace(self._options, engine=engine)
        return {**header, "engine": engine}

    def lead(self, folder: Path) -> dict[str, Any]:
        """Score with the others, write the table into the draft's folder, and sum up.

        Raises:
            ScoreError: a score is not a number, or a worker died.
            LaunchError: the processes do not see the same folder.
        """
        distinct = sentences.distinct_sentences(self._source)
        plan, parts = self._plan(distinct), folder / PARTS
        table = _finished(folder, distinct["text_key"].to_pylist())
        if table is None:
            if self._settings.dtype != "float32":
                self._say_drift(distinct["text"].to_pylist())
            parts.mkdir(exist_ok=True)
            self.tell(f"{self._options.engine} {parts}")
            self._score(parts, plan)
            self._launch.wait()
            pll_nats = pa.array(_collect(parts, plan, self._launch), pa.float64())
            table = distinct.append_column("pll_nats", pll_nats)
            table = table.append_column("tokens", pa.array(plan.pieces, pa.int32()))
            write_table(folder, LIKELIHOODS, table)
        if parts.exists():
            shutil.rmtree(parts)
        return _summary(table) | {"scored": plan.scored, "truncated": plan.truncated}

    def follow(self) -> None:
        """Score a share where the main process finds something to score."""
        engine, _, folder = self._launch.tell("").partition(" ")
        if folder:
            self._options = replace(self._options, engine=cast("EngineName", engine))
            self._score(Path(folder), self._plan(sentences.distinct_sentences(self._source)))
            self._launch.wait()

    def tell(self, engine_and_folder: str) -> None:
        """Send the others, once, how and where to score; empty: there is nothing to do."""
        if self._others_wait:
            self._others_wait = False
            self._launch.tell(engine_and_folder)

    def _plan(self, distinct: pa.Table) -> Plan:
        return plan_units(
            read_bert_tokenizer(self._model.path),
            read_bert_config(self._model.path),
            distinct["text_key"].to_pylist(),
            distinct["text"].to_pylist(),
            device=self._options.device.partition(":")[0],
            unit_pieces=self._settings.unit_pieces,
        )

    def _score(self, folder: Path, plan: Plan) -> None:
        # What is not acknowledged of this process's share of the units.
        launch = self._launch
        _await_folder(folder)
        parts, damaged = read_parts(folder)
        if damaged and launch.is_main:
            self._say(damaged_parts=damaged, state="their sentences are scored again")
        mine = plan.unit % launch.processes == launch.rank
        left = mine & np.isnan(_acknowledged(parts, plan))
        launch.wait()  # nobody adds a part before all have read those of earlier runs
        total, cost = int(plan.cost[mine].sum()), int(plan.cost[left].sum())
        workers = self._asked_workers or self._workers(cost * plan.operations)
        tasks = _tasks(plan, left)
        with (
            _progress(total, total - cost, launch) as bar,
            closing(score_tasks(self._options, tasks, workers)) as finished,
        ):
            for scores in finished:
                low, high = np.searchsorted(plan.unit, [scores.number, scores.number + 1])
                rows = low + np.flatnonzero(left[low:high])
                write_part(folder, _part(plan, rows, scores.pll_nats))
                if bar is not None:
                    bar.advance(int(plan.cost[rows].sum()))

    def _workers(self, operations: float) -> int:
        if self._options.device != "cpu":
            return 1
        cores = available_cores() // self._launch.local_processes
        return max(1, min(cores, math.floor(operations / _OPERATIONS_WORTH_A_PROCESS)))

    def _say_drift(self, texts: Sequence[str]) -> None:
        some = texts[:: -(-len(texts) // _DRIFT_SENTENCES)]
        worst = drift(self._options, some)
        self._say(dtype=self._settings.dtype, drift_nats=round(worst, 4), sentences=len(some))


def _collect(folder: Path, plan: Plan, launch: Launch) -> Floats:
    # What all processes have acknowledged: one score per sentence, nats.
    deadline = time.monotonic() + (_SEEN_BY_ALL_S if launch.processes > 1 else 0)
    values = _acknowledged(read_parts(folder)[0], plan)
    while np.isnan(values).any():
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{int(np.isnan(values).sum())} of {len(values)} scores are not in the folder "
                "`work`; put it where all nodes see it, and run again to go on"
            )
        time.sleep(1)
        values = _acknowledged(read_parts(folder)[0], plan)
    pll_nats = np.zeros(len(plan.texts))
    np.add.at(pll_nats, plan.text_index, values)
    twins: Floats = pll_nats[plan.twin]
    return twins


def _acknowledged(parts: pa.Table, plan: Plan) -> Floats:
    # Score of every span of the plan that a part holds, NaN for the others. Parts may hold spans
    # of another plan, one of other units: they count where the very same span is asked.
    values = np.full(len(plan.text_index), np.nan)
    keys = np.array(parts["text_key"].to_pylist(), "S32")
    index = np.searchsorted(plan.keys, keys)
    known = index < len(plan.keys)
    known[known] = plan.keys[index[known]] == keys[known]
    first, last = (parts[name].to_numpy().astype(np.int64)[known] for name in ("first", "last"))
    codes = span_codes(index[known].astype(np.int64), first, last)
    order = np.argsort(plan.codes)
    spot = np.searchsorted(plan.codes, codes, sorter=order)
    fits = spot < len(order)
    fits[fits] = plan.codes[order[spot[fits]]] == codes[fits]
    values[order[spot[fits]]] = parts["pll_nats"].to_numpy()[known][fits]
    return values


def _tasks(plan: Plan, left: NDArray[np.bool_]) -> Iterator[Task]:
    for rows in units_of(plan, left):
        texts = tuple(plan.texts[index] for index in plan.text_index[rows].tolist())
        spans = zip(plan.first[rows].tolist(), plan.last[rows].tolist(), strict=True)
        yield Task(int(plan.unit[rows[0]]), texts, tuple(spans))


def _part(plan: Plan, rows: NDArray[np.int64], pll_nats: Sequence[float]) -> pa.Table:
    keys = plan.keys[plan.text_index[rows]].astype("U32").tolist()
    columns = {"text_key": keys, "first": plan.first[rows], "last": plan.last[rows]}
    return pa.table({**columns, "pll_nats": pll_nats})


def _finished(folder: Path, keys: Sequence[str]) -> pa.Table | None:
    # Where a killed run had just written the whole table.
    try:
        table = read_table(folder, LIKELIHOODS)
    except ArtifactCorrupt:
        return None
    return table if table["text_key"].to_pylist() == list(keys) else None


def _summary(table: pa.Table) -> dict[str, Any]:
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
        "spearman_pll_count": round(_spearman(pll_nats[said], count[said]), 4),
    }


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    a, b = stats.rankdata(x), stats.rankdata(y)
    varies = len(a) > 1 and min(np.ptp(a), np.ptp(b)) > 0
    return float(np.corrcoef(a, b)[0, 1]) if varies else float("nan")


def _progress(total: int, done: int, launch: Launch) -> Progress | nullcontext[None]:
    if not launch.is_main:
        return nullcontext()
    shares = f", 1 of {launch.processes} shares" if launch.processes > 1 else ""
    return Progress(f"score sentences{shares}", total, "word piece", done)


def _await_folder(folder: Path) -> None:
    deadline = time.monotonic() + _SEEN_BY_ALL_S
    while not folder.is_dir():
        if time.monotonic() > deadline:
            raise LaunchError(
                "a process of this launch does not see the folder `work`; put it where all nodes "
                "see it"
            )
        time.sleep(1)
