"""Likelihoods: the pseudo-log-likelihood of every distinct sentence, scored once.

A corpus is cut into units, sentences of about one length. Each unit is scored by one thread of a
process, or by a GPU, so that on one kind of machine its bits depend on the unit alone; and it is
written to a part of its own as soon as it is finished, so that a kill loses only the units in work.
Processes have one thread or one GPU each.
"""

import io
import math
import multiprocessing
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from scipy import stats
from transformers import BertConfig, PreTrainedTokenizerBase

from medclip_dcl.core import errors
from medclip_dcl.core.artifact import Artifact, ArtifactType, fingerprint_changes
from medclip_dcl.core.files import write_bytes
from medclip_dcl.core.progress import Progress, available_cores
from medclip_dcl.core.tables import Column, TableFormat, read_table, write_table
from medclip_dcl.likelihood import LikelihoodConfig, masked_lm
from medclip_dcl.likelihood.pll import Variant, encode_sentences, find_budget, score_encodings
from medclip_dcl.models.settings import EngineName
from medclip_dcl.models.text_encoder import read_bert_config, read_bert_tokenizer
from medclip_dcl.text import sentences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ARTIFACT = ArtifactType("likelihoods", 2, "score_sentences", costly=True)

LIKELIHOODS = TableFormat(  # one row per distinct sentence, in order of text_key
    "likelihoods.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column("pll_nats", pa.float64(), "pseudo-log-likelihood, sum over word pieces, nats, <= 0"),
        Column("tokens", pa.int32(), "word pieces, [CLS] and [SEP] left out"),
        Column("count", pa.int32(), "occurrences in the training split"),
    ),
)

PARTS = "parts"  # folder, in the draft, of what has been acknowledged

_WORTH_A_PROCESS = {"cpu": 3e12, "cuda": 3e14}  # operations; starting one takes seconds
_DRIFT_SENTENCES = 32  # spread over the corpus
_ENCODED_AT_ONCE = 4096  # sentences

_UNIT_OPERATIONS = {"cpu": 2.5e11, "cuda": 2.5e13}  # three to ten seconds of a core, one of a GPU
_MOST_PIECES = {"cpu": 200_000, "cuda": 2_000_000}  # of a unit, for models that are tiny
_FEW_PIECES = 1024  # a unit need not be smaller, even where there are few sentences
_SMALLEST_SHARE = 64  # units that a corpus falls into at least, beyond that size

_PART_COLUMNS = LIKELIHOODS.columns[:2]  # text_key, pll_nats


@dataclass(frozen=True)
class Plan:
    """Units that the sentences of a corpus are scored in.

    It is made before the first result, so that a resumed run gives the same bits.
    """

    pieces: Ints  # word pieces of each sentence that are scored
    cost: Ints
    """Word pieces that pass through the model for each sentence: a copy of it for each piece."""
    unit: Ints
    """Number of each sentence's unit; those of like length stand in one, so that little differs
    between its batches."""
    truncated: int  # sentences whose ends the model cannot read
    operations: float  # multiplications and additions for one word piece


def plan_units(
    tokenizer: PreTrainedTokenizerBase, config: BertConfig, texts: Sequence[str], device: str
) -> Plan:
    """Cut a corpus into units of about equal cost; the plan depends on the arguments alone.

    Sentences longer than the model reads are truncated. Units are sized by the speed of the device,
    `cpu` or `cuda`. ScoreError: a sentence has no word piece.
    """
    limit = int(config.max_position_embeddings)
    length, pieces = np.zeros((2, len(texts)), np.int64)
    truncated = 0
    for start in range(0, len(texts), _ENCODED_AT_ONCE):
        # One piece more than is read tells who is too long; an encoding takes kilobytes.
        encodings = encode_sentences(tokenizer, texts[start : start + _ENCODED_AT_ONCE], limit + 1)
        for index, item in enumerate(encodings, start):
            is_too_long = len(item.ids) > limit
            truncated += is_too_long
            length[index] = min(limit, len(item.ids))
            pieces[index] = item.tokens - is_too_long
    # Of the layers; not of attention, and not of the head, which runs on masked positions alone.
    width = float(config.hidden_size)
    operations = 2 * config.num_hidden_layers * width * (4 * width + 2 * config.intermediate_size)
    cost = length * pieces
    most = min(_MOST_PIECES[device], int(_UNIT_OPERATIONS[device] / operations))
    size = max(1, min(most, max(_FEW_PIECES, int(cost.sum()) // _SMALLEST_SHARE)))
    order = np.argsort(length, kind="stable")
    unit = np.empty(len(texts), np.int64)
    # By where a sentence begins: a unit costs too much by its last sentence at most.
    unit[order] = (np.cumsum(cost[order]) - cost[order]) // size
    return Plan(pieces, cost, unit, truncated, operations)


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
        header["model"] = masked_lm.model_digest(model)
        header["tokenizer"] = masked_lm.tokenizer_digest(model)
    return header


def refuse_other_scores(artifact: Artifact, header: Mapping[str, str]) -> None:
    """Raise ArtifactStale, naming each setting that differs from those of a `score_header`."""
    settings = artifact.fingerprint["settings"]
    then = {name: settings[name] for name in header if name in settings}
    differences = fingerprint_changes(then, {name: header[name] for name in then})
    if differences:
        raise errors.ArtifactStale(
            f"the likelihoods were scored with other settings ({'; '.join(differences)}); rerun "
            "score_sentences, or set these back"
        )


def write_part(folder: Path, keys: Sequence[str], pll_nats: Sequence[float]) -> None:
    """Acknowledge the scores of a unit: after a kill a part is there whole or not at all."""
    # Named at random: a resumed run, cut into other units, must not write over earlier parts.
    form = TableFormat(f"part-{secrets.token_hex(8)}.parquet", _PART_COLUMNS)
    buffer = io.BytesIO()
    table = pa.table({"text_key": keys, "pll_nats": pll_nats}, form.schema)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_bytes(folder / form.file, buffer.getvalue())


def read_parts(folder: Path) -> tuple[pa.Table, int]:
    """Read what has been acknowledged, and count the damaged parts that were left out."""
    tables = [TableFormat("", _PART_COLUMNS).schema.empty_table()]
    damaged = 0
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            tables.append(read_table(folder, TableFormat(path.name, _PART_COLUMNS)))
        except errors.ArtifactCorrupt:
            damaged += 1
    return pa.concat_tables(tables), damaged


@dataclass(frozen=True)
class ScoringOptions:
    """Options of scoring: variant, precision, device and engine."""

    folder: Path  # of the language model
    variant: Variant
    dtype: str = "float32"
    device: str = "cpu"
    engine: EngineName = "auto"


Scores = list[float]  # nats


class Scorer:
    """Scores sentences in this process."""

    def __init__(self, options: ScoringOptions) -> None:
        self._variant = options.variant
        loaded = masked_lm.load_language_model(options.folder)
        self._model, self._tokenizer = cast(Any, loaded.model), loaded.tokenizer
        self._model.to(device=options.device)
        self._limit = int(self._model.config.max_position_embeddings)
        with _one_thread():
            self._engine = masked_lm.prepare_engine(
                self._model, options.engine, options.dtype, options.folder
            )
        self.engine: EngineName = self._engine.name
        """Who scores: `openvino` or `torch`."""
        if self.engine == "torch":
            self._model.to(dtype=getattr(torch, options.dtype))
        self._budget = find_budget(self._model)

    def score(self, texts: Sequence[str]) -> Scores:
        """Score sentences, in order; those too long for the model are truncated."""
        with _one_thread():
            pll_nats = score_encodings(
                self._model,
                encode_sentences(self._tokenizer, texts, self._limit),
                self._tokenizer.mask_token_id,
                self._variant,
                self._budget,
                engine=self._engine,
            )
        return list(pll_nats.tolist())


@contextmanager
def _one_thread() -> Iterator[None]:
    # So that the bits of a score do not depend on the number of threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def drift(options: ScoringOptions, texts: Sequence[str]) -> float:
    """Measure the largest difference, nats, of a few sentences' scores from those in float32."""
    exact = Scorer(replace(options, dtype="float32", engine="auto")).score(texts)
    rough = Scorer(options).score(texts)
    return max(abs(one - other) for one, other in zip(exact, rough, strict=True))


def score_units(
    options: ScoringOptions, units: Iterable[Sequence[str]], workers: int
) -> Generator[tuple[int, Scores], None, None]:
    """Score units of sentences in `workers` processes, each in whichever is free; 1: in this one.

    Of several processes each has its own GPU, or all are on the CPU. Numbers of units, from 0, come
    with their scores, in the order in which they are finished.

    Raises:
        ScoreError: a score is not a number, or a worker died.
    """
    waiting = enumerate(units)
    if workers <= 1:
        scorer = None
        for number, texts in waiting:
            scorer = scorer or Scorer(options)
            yield number, scorer.score(texts)
        return
    # Not concurrent.futures: its workers outlive a parent that is killed, hold up one that is
    # stopped until their unit is done, and a dead one is reported without its exit code.
    numbered = options.device == "cuda"
    crew = dict(
        _start_worker(replace(options, device=f"cuda:{number}") if numbered else options)
        for number in range(workers)
    )
    idle, busy, answers = list(crew), dict[Connection, int](), list[tuple[int, Scores]]()
    try:
        while idle:
            # `idle` first: with nobody idle left, zip must not take a unit and drop it.
            for connection, (number, texts) in zip(idle, waiting, strict=False):
                with suppress(ConnectionError):  # it has ended, and its end is received below
                    connection.send(texts)
                busy[connection] = number
            yield from answers  # once the workers have more to do
            idle = [item for item in wait([*busy]) if isinstance(item, Connection)] if busy else []
            answers = [(busy.pop(item), _receive(item, crew[item])) for item in idle]
    finally:
        for connection, process in crew.items():
            connection.close()
            process.terminate()
            process.join()


def _start_worker(options: ScoringOptions) -> tuple[Connection, BaseProcess]:
    # Workers are forked from a process that has imported this module, which takes seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is seen as the end of the pipe
    return ours, process


def _work(connection: Connection, options: ScoringOptions) -> None:
    """Score what is sent until the other end is gone."""
    with errors.ending_with_fault(), suppress(EOFError, ConnectionError, KeyboardInterrupt):
        try:
            scorer = Scorer(options)
            while True:
                connection.send(scorer.score(connection.recv()))
        except errors.MedclipError as error:
            connection.send(error)


def _receive(connection: Connection, process: BaseProcess) -> Scores:
    try:
        answer = connection.recv()
    except (EOFError, ConnectionError) as error:
        process.join()
        raise errors.ScoreError(
            f"a scoring process ended with code {process.exitcode}; lower workers, "
            "and run again to go on"
        ) from error
    if isinstance(answer, errors.MedclipError):
        raise answer
    return cast(Scores, answer)


class CorpusScoring:
    """Scores a corpus: on a CPU in a process for each core, else in one for each GPU."""

    def __init__(
        self,
        source: Artifact,
        model: Artifact,
        settings: LikelihoodConfig,
        say: Callable[..., None],
        workers: int = 0,
    ) -> None:
        """Take sentences, model and settings; `workers` are the most processes, 0: no bound."""
        self._source, self._model, self._settings = source, model, settings
        self._say, self._workers = say, workers
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._options = ScoringOptions(
            model.path, settings.variant, settings.dtype, device, settings.engine
        )

    def choose_engine(self, existing: Artifact | None) -> dict[str, str]:
        """Choose the engine, and return the settings that the scores depend on.

        `existing` likelihoods may be reused, whatever engine this machine has.
        """
        header = score_header(self._source, self._model, self._settings)
        scored_with = dict(existing.fingerprint["settings"]) if existing else {}
        engine: EngineName = scored_with.pop("engine", "auto")
        if self._settings.engine != "auto" or scored_with != header:
            engine = Scorer(self._options).engine
        self._options = replace(self._options, engine=engine)
        return {**header, "engine": engine}

    def write(self, folder: Path) -> dict[str, Any]:
        """Score what is not acknowledged, write the table into the draft's folder, and sum up.

        Raises:
            ScoreError: a score is not a number, or a worker died.
        """
        distinct = sentences.distinct_sentences(self._source)
        keys, texts = distinct["text_key"].combine_chunks(), distinct["text"].to_pylist()
        plan = plan_units(
            read_bert_tokenizer(self._model.path),
            read_bert_config(self._model.path),
            texts,
            self._options.device,
        )
        parts = folder / PARTS
        table = _finished(folder, keys)
        if table is None:
            parts.mkdir(exist_ok=True)
            if self._settings.dtype != "float32":
                some = texts[:: -(-len(texts) // _DRIFT_SENTENCES)]
                worst = round(drift(self._options, some), 4)
                self._say(dtype=self._settings.dtype, drift_nats=worst, sentences=len(some))
            self._score(parts, plan, keys.to_pylist(), texts)
            pll_nats = _acknowledged(read_parts(parts)[0], keys)
            table = distinct.append_column("pll_nats", pa.array(pll_nats))
            table = table.append_column("tokens", pa.array(plan.pieces, pa.int32()))
            write_table(folder, LIKELIHOODS, table)
        shutil.rmtree(parts, ignore_errors=True)
        return _summary(table) | {"truncated": plan.truncated}

    def _score(self, folder: Path, plan: Plan, keys: Sequence[str], texts: Sequence[str]) -> None:
        parts, damaged = read_parts(folder)
        if damaged:
            self._say(damaged_parts=damaged, state="their sentences are scored again")
        left = np.flatnonzero(np.isnan(_acknowledged(parts, pa.array(keys))))
        left = left[np.argsort(plan.unit[left], kind="stable")]
        ends = np.flatnonzero(np.diff(plan.unit[left])) + 1
        units = [rows for rows in np.split(left, ends) if len(rows)]
        unit_texts = ([texts[row] for row in rows] for rows in units)
        total, cost = int(plan.cost.sum()), int(plan.cost[left].sum())
        # By what is left, not by the whole: a nearly finished run needs no crew.
        workers = self._processes(cost * plan.operations)
        with (
            Progress("score sentences", total, "word piece", total - cost) as bar,
            # closed, or the workers stay
            closing(score_units(self._options, unit_texts, workers)) as finished,
        ):
            for number, pll_nats in finished:
                rows = units[number]
                write_part(folder, [keys[row] for row in rows], pll_nats)
                bar.advance(int(plan.cost[rows].sum()))

    def _processes(self, operations: float) -> int:
        # Several would share a GPU and its memory, and be no faster.
        device = self._options.device
        most = torch.cuda.device_count() if device == "cuda" else available_cores()
        if self._workers:
            return min(most, self._workers) if device == "cuda" else self._workers
        return max(1, min(most, math.floor(operations / _WORTH_A_PROCESS[device])))


def _acknowledged(parts: pa.Table, keys: pa.Array) -> Floats:
    # Score of every sentence that a part holds, NaN for the others. Parts may be of other units.
    values = np.full(len(keys), np.nan)
    rows = pc.index_in(parts["text_key"], keys).combine_chunks()
    values[rows.drop_null().to_numpy()] = parts["pll_nats"].filter(rows.is_valid()).to_numpy()
    return values


def _finished(folder: Path, keys: pa.Array) -> pa.Table | None:
    # Where a killed run had just written the whole table.
    try:
        table = read_table(folder, LIKELIHOODS)
    except errors.ArtifactCorrupt:
        return None
    return table if table["text_key"].combine_chunks().equals(keys) else None


def _summary(table: pa.Table) -> dict[str, Any]:
    pll_nats = table["pll_nats"].to_numpy()
    tokens, count = table["tokens"].to_numpy(), table["count"].to_numpy()
    low, middle, high = np.quantile(pll_nats, [0.05, 0.5, 0.95])
    trained = count > 0  # sentences of other splits alone have no frequency
    return {
        "sentences": len(table),
        "tokens": int(tokens.sum()),
        "longest_tokens": int(tokens.max()),
        "pll_p5_nats": round(float(low), 4),
        "pll_median_nats": round(float(middle), 4),
        "pll_p95_nats": round(float(high), 4),
        "spearman_pll_count": round(_spearman(pll_nats[trained], count[trained]), 4),
    }


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    a, b = stats.rankdata(x), stats.rankdata(y)
    varies = len(a) > 1 and min(np.ptp(a), np.ptp(b)) > 0  # else nothing correlates
    return float(np.corrcoef(a, b)[0, 1]) if varies else float("nan")
