"""Likelihoods: the pseudo-log-likelihood of every distinct sentence, scored once.

The scorer of a corpus: a language model on disk, and tasks for it.

A task is scored by one thread of a process, or by a GPU, so that on one kind of machine its
bits depend on the task alone.

Scoring of a corpus in units: by several processes, kept as it goes, put together at the end.
"""

import io
import math
import multiprocessing
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from medclip_dcl.artifact import Artifact, ArtifactType, fingerprint_changes
from medclip_dcl.distributed import Launch, available_cores
from medclip_dcl.errors import ArtifactCorrupt, ArtifactStale, LaunchError, MedclipError, ScoreError
from medclip_dcl.files import write_bytes
from medclip_dcl.likelihood.engines import EngineName, find_budget, prepare_engine, resolve_engine
from medclip_dcl.likelihood.masked_lm import (
    load_language_model,
    model_digest,
    read_config,
    read_tokenizer,
    tokenizer_digest,
)
from medclip_dcl.likelihood.pll import Variant, encode_sentences, score_encodings
from medclip_dcl.likelihood.settings import LikelihoodConfig
from medclip_dcl.likelihood.work_units import (
    Ints,
    Measured,
    Plan,
    measure,
    part_of,
    piece_operations,
    plan_units,
    span_codes,
    units_of,
)
from medclip_dcl.progress import Progress
from medclip_dcl.tables import Column, TableFormat, read_table
from medclip_dcl.text import sentences

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

_PART_COLUMNS = (
    Column("text_key", pa.string(), "`text_key` of the sentence"),
    Column("first", pa.int32(), "first word piece of the span that was scored, from 0"),
    Column("last", pa.int32(), "the word piece after the span"),
    Column("pll_nats", pa.float64(), "sum over the span, nats"),
)


def score_header(
    source: Artifact, model: Artifact | None, settings: LikelihoodConfig
) -> dict[str, str]:
    """List what scores depend on beside the sentences' texts.

    Args:
        source: the sentences.
        model: the language model; None: what depends on it is left out.
        settings: how sentences are scored.

    Returns:
        Names and values; part of the recipe of likelihoods.
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
    """Refuse likelihoods that were scored otherwise than is asked now.

    Args:
        artifact: likelihoods.
        header: what is asked, from `score_header`.

    Raises:
        ArtifactStale: a value differs; the message names each.
    """
    said = artifact.fingerprint["settings"]
    found = {name: said[name] for name in header if name in said}
    differences = fingerprint_changes(found, {name: header[name] for name in found})
    if differences:
        raise ArtifactStale(
            f"the likelihoods were scored otherwise ({'; '.join(differences)}); rerun "
            "score_sentences, or set these back"
        )


class ScoreWriter:
    """Acknowledges scores: after a kill a part is there whole or not at all.

    Several processes may keep journals in one folder.

    Args:
        folder: folder of the parts.
        flush_every_s: seconds that a score may wait to be written, as far as the next one
            can be foreseen.
        clock: gives the time, seconds.
    """

    def __init__(
        self, folder: Path, flush_every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._every_s, self._clock = folder, flush_every_s, clock
        self._waiting: list[pa.Table] = []
        self._name = _new_name()
        self._flushed = self._added = clock()

    def add(self, rows: pa.Table) -> None:
        """Take scores, and write them and those that wait when the next would come too late.

        Args:
            rows: columns text_key, first, last and pll_nats.
        """
        self._waiting.append(rows)
        now = self._clock()
        next_s = now - self._added  # the next scores will take as long as these did
        self._added = now
        if now - self._flushed + next_s >= self._every_s:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            form = TableFormat(f"{self._name}.parquet", _PART_COLUMNS)
            table = pa.concat_tables(self._waiting).cast(form.schema)
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
            write_bytes(self._folder / form.file, buffer.getvalue())
            self._waiting, self._name = [], _new_name()
        self._flushed = self._clock()


def read_parts(folder: Path) -> tuple[pa.Table, int]:
    """Read what has been acknowledged.

    Args:
        folder: folder of the parts.

    Returns:
        Columns text_key, first, last and pll_nats; and the number of parts that are
        damaged and were left out.
    """
    tables = [TableFormat("", _PART_COLUMNS).schema.empty_table()]
    damaged = 0
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            tables.append(read_table(folder, TableFormat(path.name, _PART_COLUMNS)))
        except ArtifactCorrupt:
            damaged += 1
    return pa.concat_tables(tables), damaged


def _new_name() -> str:
    return f"part-{secrets.token_hex(8)}"


_ALL = 1 << 16  # past the last word piece of any input


@dataclass(frozen=True)
class ScoringOptions:
    """How sentences are scored."""

    folder: Path
    """Folder of the language model."""
    variant: Variant
    dtype: str
    token_budget: int
    """Word pieces in one forward pass; 0: what suits the device."""
    device: str = "cpu"
    """Device of the model, as torch names it."""
    engine: EngineName = "auto"
    """How the model is run."""


@dataclass(frozen=True)
class Task:
    """Sentences, or spans of them, that are scored as a whole."""

    number: int
    texts: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    """First and last scored word piece of each text; the last is not included."""


@dataclass(frozen=True)
class Scores:
    """Scores of one task."""

    number: int
    pll_nats: tuple[float, ...]


def engine_of(options: ScoringOptions) -> EngineName:
    """Say which engine a recipe comes to on this machine.

    Args:
        options: how to score.

    Returns:
        `onnxruntime` or `plain`.

    Raises:
        ScoreError: `onnxruntime` is asked for and cannot be had.
    """
    if options.engine == "plain":
        return "plain"
    model: Any = load_language_model(options.folder).model
    model.to(device=options.device, dtype=getattr(torch, options.dtype))
    return resolve_engine(model, options.engine)


class Scorer:
    """Scores tasks in this process.

    Args:
        recipe: how to score.
    """

    def __init__(self, options: ScoringOptions) -> None:
        self._fingerprint = options
        loaded = load_language_model(options.folder)
        self._model = loaded.model
        cast(Any, self._model).to(device=options.device, dtype=getattr(torch, options.dtype))
        self._tokenizer = loaded.tokenizer
        self._limit = int(self._model.config.max_position_embeddings)
        self._engine = prepare_engine(self._model, options.engine, threads=1)
        self._budget = options.token_budget or find_budget(self._model)

    def score(self, task: Task) -> Scores:
        """Score a task.

        Args:
            task: sentences; those too long for the model are truncated.

        Returns:
            Their scores, in order.

        Raises:
            ScoreError: a score is no number.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            whole = encode_sentences(self._tokenizer, task.texts, self._limit)
            parts = [
                part_of(encoding, first, last)
                for encoding, (first, last) in zip(whole, task.spans, strict=True)
            ]
            pll_nats = score_encodings(
                self._model,
                parts,
                self._tokenizer.mask_token_id,
                self._fingerprint.variant,
                self._budget,
                engine=self._engine,
            )
        finally:
            torch.set_num_threads(threads)
        return Scores(task.number, tuple(pll_nats.tolist()))


def drift(options: ScoringOptions, texts: Sequence[str]) -> float:
    """Measure how far scores in the recipe's precision lie from those in float32.

    Args:
        options: how to score.
        texts: a few sentences; at least one.

    Returns:
        Largest difference of a sentence's score, nats.

    Raises:
        ScoreError: a score is no number.
    """
    task = Task(0, tuple(texts), tuple((0, _ALL) for _ in texts))
    exact = Scorer(replace(options, dtype="float32")).score(task).pll_nats
    rough = Scorer(options).score(task).pll_nats
    return max(abs(one - other) for one, other in zip(exact, rough, strict=True))


def score_tasks(
    options: ScoringOptions, tasks: Iterable[Task], workers: int
) -> Generator[Scores, None, None]:
    """Score tasks, each in whatever process is free.

    Args:
        options: how to score.
        tasks: what to score; taken as processes become free.
        workers: processes; 1: this one.

    Yields:
        Scores of each task, in the order in which they are finished.

    Raises:
        ScoreError: a score is no number, or a worker died.
    """
    if workers <= 1:
        scorer = None
        for task in tasks:
            scorer = scorer or Scorer(options)
            yield scorer.score(task)
        return
    crew = [_hire(options) for _ in range(workers)]
    try:
        yield from _share_out(iter(tasks), dict(crew))
    finally:
        for connection, process in crew:
            connection.close()
            process.terminate()
            process.join()


def _share_out(waiting: Iterator[Task], crew: dict[Connection, BaseProcess]) -> Iterator[Scores]:
    busy = [connection for connection in crew if _hand(connection, waiting, crew)]
    while busy:
        for connection in (item for item in wait(busy) if isinstance(item, Connection)):
            try:
                answer = connection.recv()
            except (EOFError, ConnectionError) as error:
                raise _died(crew[connection]) from error
            if isinstance(answer, MedclipError):
                raise answer
            if not _hand(connection, waiting, crew):
                busy.remove(connection)
            yield answer


def _hand(
    connection: Connection, waiting: Iterator[Task], crew: dict[Connection, BaseProcess]
) -> bool:
    """Give a process its next task; tell whether there was one."""
    task = next(waiting, None)
    if task is None:
        return False
    try:
        connection.send(task)
    except ConnectionError as error:
        raise _died(crew[connection]) from error
    return True


def _died(process: BaseProcess) -> ScoreError:
    process.join()
    return ScoreError(
        f"a scoring process ended with code {process.exitcode}; lower likelihood.workers or "
        "likelihood.token_budget, and run again to go on"
    )


def _hire(options: ScoringOptions) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is seen as the end of the pipe
    return ours, process


def _work(connection: Connection, options: ScoringOptions) -> None:
    """Score what is sent until the other end is gone."""
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        try:
            scorer = Scorer(options)
            while True:
                connection.send(scorer.score(connection.recv()))
        except MedclipError as error:
            connection.send(error)


Floats = NDArray[np.float64]

_OPERATIONS_WORTH_A_PROCESS = 3e12  # about a minute of one core; starting a process takes seconds
_UNIT_OPERATIONS = {"cpu": 2.5e11, "cuda": 2.5e13}  # three to ten seconds of a core, one of a GPU
_MOST_PIECES = {"cpu": 200_000, "cuda": 2_000_000}  # of a unit, for models that are tiny
_FEW_PIECES = 4096  # a unit need not be smaller, even where there are few sentences
_SMALLEST_SHARE = 64  # units that a corpus falls into at least, beyond that size
_SEEN_BY_ALL_S = 90.0  # a network file system may show a new file that late


@dataclass(frozen=True)
class Work:
    """Distinct sentences, and the units that scoring them falls into."""

    keys: np.ndarray
    texts: Sequence[str]
    measured: Measured
    plan: Plan
    operations: float
    """Multiplications and additions for one word piece."""


def plan_work(
    keys: Sequence[str], texts: Sequence[str], options: ScoringOptions, settings: LikelihoodConfig
) -> Work:
    """Cut a corpus into units of work.

    Args:
        keys: text keys, ascending.
        texts: their sentences.
        options: how they are scored.
        settings: `unit_pieces` is read.

    Returns:
        The work; it depends on the arguments alone.

    Raises:
        CheckpointError: the language model cannot be read.
        ScoreError: a sentence has no word piece.
    """
    config, tokenizer = read_config(options.folder), read_tokenizer(options.folder)
    operations = piece_operations(config)
    measured = measure(tokenizer, texts, int(config.max_position_embeddings))
    kind = options.device.partition(":")[0]
    most = min(_MOST_PIECES[kind], int(_UNIT_OPERATIONS[kind] / operations))
    usual = min(most, max(_FEW_PIECES, measured.cost // _SMALLEST_SHARE))
    plan = plan_units(tokenizer, texts, measured, settings.unit_pieces or max(1, usual))
    return Work(np.array(keys, "S32"), texts, measured, plan, operations)


def score_share(
    folder: Path, work: Work, options: ScoringOptions, settings: LikelihoodConfig, launch: Launch
) -> int:
    """Score what nobody has acknowledged of this process's share of the units.

    Args:
        folder: folder of the acknowledged parts, which all processes see.
        work: the whole work.
        options: how to score.
        settings: `workers` and `flush_every_s` are read.
        launch: this process among those of the launch.

    Returns:
        Damaged parts that were found, whose sentences are scored again.

    Raises:
        ScoreError: a score is no number, or a worker died.
        LaunchError: the folder is not there.
    """
    _await_folder(folder)
    parts, damaged = read_parts(folder)
    plan = work.plan
    mine = plan.unit % launch.processes == launch.rank
    left = mine & np.isnan(_acknowledged(parts, work))
    launch.wait()  # nobody adds a part before all have read those of earlier runs
    total, cost = int(plan.cost[mine].sum()), int(plan.cost[left].sum())
    workers = settings.workers or _workers(cost * work.operations, options, launch)
    handed: dict[int, Ints] = {}
    writer = ScoreWriter(folder, settings.flush_every_s)
    with (
        _progress(total, total - cost, launch) as bar,
        closing(score_tasks(options, _tasks(work, left, handed), workers)) as finished,
    ):
        try:
            for scores in finished:
                rows = handed.pop(scores.number)
                writer.add(_table(work, rows, scores.pll_nats))
                if bar is not None:
                    bar.advance(int(plan.cost[rows].sum()))
        finally:
            writer.flush()
    return damaged


def collect_scores(folder: Path, work: Work, launch: Launch) -> Floats:
    """Put together what all processes have acknowledged.

    Args:
        folder: folder of the parts.
        work: the whole work.
        launch: this process among those of the launch, all of which have finished.

    Returns:
        Pseudo-log-likelihood of every sentence, nats.

    Raises:
        LaunchError: not everything is there.
    """
    deadline = time.monotonic() + (_SEEN_BY_ALL_S if launch.processes > 1 else 0)
    values = _acknowledged(read_parts(folder)[0], work)
    while np.isnan(values).any():
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{int(np.isnan(values).sum())} of {len(values)} scores are not in the recipe's "
                "folder; put `work` where all nodes see it, and run again to go on"
            )
        time.sleep(1)
        values = _acknowledged(read_parts(folder)[0], work)
    pll_nats = np.zeros(len(work.texts))
    np.add.at(pll_nats, work.plan.text_index, values)
    twins: Floats = pll_nats[work.measured.twin]
    return twins


def _acknowledged(parts: pa.Table, work: Work) -> Floats:
    """Give the score of every span of the plan that a part holds, and NaN for the others."""
    plan = work.plan
    values = np.full(len(plan.text_index), np.nan)
    keys = np.array(parts["text_key"].to_pylist(), "S32")
    index = np.searchsorted(work.keys, keys)
    known = index < len(work.keys)
    known[known] = work.keys[index[known]] == keys[known]
    first, last = (parts[name].to_numpy().astype(np.int64)[known] for name in ("first", "last"))
    codes = span_codes(index[known].astype(np.int64), first, last)
    order = np.argsort(plan.codes)
    spot = np.searchsorted(plan.codes, codes, sorter=order)
    fits = spot < len(order)
    fits[fits] = plan.codes[order[spot[fits]]] == codes[fits]
    values[order[spot[fits]]] = parts["pll_nats"].to_numpy()[known][fits]
    return values


def _tasks(work: Work, left: NDArray[np.bool_], handed: dict[int, Ints]) -> Iterator[Task]:
    """Make tasks of what is left, unit by unit, and note what was handed out."""
    plan = work.plan
    for rows in units_of(plan, left):
        number = int(plan.unit[rows[0]])
        handed[number] = rows
        texts = tuple(work.texts[index] for index in plan.text_index[rows].tolist())
        spans = zip(plan.first[rows].tolist(), plan.last[rows].tolist(), strict=True)
        yield Task(number, texts, tuple(spans))


def _table(work: Work, rows: Ints, pll_nats: Sequence[float]) -> pa.Table:
    plan = work.plan
    return pa.table(
        {
            "text_key": pa.array(
                work.keys[plan.text_index[rows]].astype("U32").tolist(), pa.string()
            ),
            "first": pa.array(plan.first[rows], pa.int32()),
            "last": pa.array(plan.last[rows], pa.int32()),
            "pll_nats": pa.array(pll_nats, pa.float64()),
        }
    )


def _workers(operations: float, options: ScoringOptions, launch: Launch) -> int:
    if options.device != "cpu":
        return 1
    cores = available_cores() // launch.local_processes
    return max(1, min(cores, math.floor(operations / _OPERATIONS_WORTH_A_PROCESS)))


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
                "a process of this launch does not see the recipe's folder; put `work` where all "
                "nodes see it"
            )
        time.sleep(1)
