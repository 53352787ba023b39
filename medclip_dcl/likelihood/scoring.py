"""Likelihoods: the pseudo-log-likelihood of every distinct sentence, scored once.

A corpus is cut into units (`Plan`). Each is scored by one thread of a process, or by a
GPU, so that on one kind of machine its bits depend on the unit alone; and it is written to a
part of its own as soon as it is finished, so that a kill loses only the units in work. Several
processes, on one node or on many, share the units; the main one puts the parts together.
"""

import hashlib
import io
import math
import multiprocessing
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from transformers import BertConfig, PreTrainedTokenizerBase

from medclip_dcl.artifact import Artifact, ArtifactType, fingerprint_changes
from medclip_dcl.distributed import Launch, available_cores
from medclip_dcl.errors import (
    ArtifactCorrupt,
    ArtifactStale,
    LaunchError,
    MedclipError,
    ScoreError,
    ending_with_fault,
)
from medclip_dcl.files import write_bytes
from medclip_dcl.likelihood.diagnostics import spearman
from medclip_dcl.likelihood.engines import EngineName, find_budget, prepare_engine, resolve_engine
from medclip_dcl.likelihood.masked_lm import (
    load_language_model,
    model_digest,
    tokenizer_digest,
)
from medclip_dcl.likelihood.pll import Encoding, Variant, encode_sentences, score_encodings
from medclip_dcl.likelihood.settings import LikelihoodConfig
from medclip_dcl.models.text_encoder import read_bert_config, read_bert_tokenizer
from medclip_dcl.progress import Progress
from medclip_dcl.tables import Column, TableFormat, read_table, write_table
from medclip_dcl.text import sentences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
_ALL = 1 << 16  # past the last word piece of any input
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


_BATCH = 4096  # sentences cut into word pieces at a time
_SPAN_BITS = 16

_UNIT_OPERATIONS = {"cpu": 2.5e11, "cuda": 2.5e13}  # three to ten seconds of a core, one of a GPU
_MOST_PIECES = {"cpu": 200_000, "cuda": 2_000_000}  # of a unit, for models that are tiny
_FEW_PIECES = 4096  # a unit need not be smaller, even where there are few sentences
_SMALLEST_SHARE = 64  # units that a corpus falls into at least, beyond that size


@dataclass(frozen=True)
class Plan:
    """The distinct sentences of a corpus, and the spans and units that scoring them takes.

    It is made before the first result, so that a resumed run gives the same bits. A unit is a
    fixed set of spans that is scored and acknowledged as a whole; a span is a run of scored word
    pieces, [first, last), of one sentence. Sentences of one length are next to each other, so
    that a unit is a few batches without padding; sentences of equal word pieces are scored once;
    and a sentence whose masked copies cost more than a unit is cut between words into several
    spans, whose sums add up. Cost is counted in word pieces that pass through the model: pieces
    of the span x input length.
    """

    keys: np.ndarray  # text key of each sentence, ascending, 32 bytes each
    texts: Sequence[str]
    pieces: Ints  # word pieces of each sentence that are scored
    twin: Ints  # the sentence of equal word pieces that is scored in its stead, often itself
    truncated: int  # sentences whose ends the model cannot read
    text_index: Ints  # sentence of each span; short sentences first
    first: Ints
    last: Ints
    cost: Ints  # of each span
    unit: Ints  # number of each span's unit, ascending
    operations: float  # multiplications and additions for one word piece

    @property
    def scored(self) -> int:
        """Sentences that are scored themselves."""
        return len(np.unique(self.twin))

    @property
    def codes(self) -> Ints:
        """A number for every span, whatever unit it falls into."""
        return span_codes(self.text_index, self.first, self.last)


def plan_units(
    tokenizer: PreTrainedTokenizerBase,
    config: BertConfig,
    keys: Sequence[str],
    texts: Sequence[str],
    *,
    device: str = "cpu",
    unit_pieces: int = 0,
) -> Plan:
    """Cut a corpus into units of about equal cost; the plan depends on the arguments alone.

    `keys`, ascending, name the `texts`; sentences longer than the model reads are truncated. Units
    are sized by the speed of the device, `cpu` or `cuda`, or by `unit_pieces`, the cost of a unit
    (0: some seconds' worth), of which one may cost twice as much, or as the copies of a word do.

    Raises:
        ScoreError: a sentence has no word piece.
    """
    limit = int(config.max_position_embeddings)
    length, pieces, twin, order, truncated = _measure(tokenizer, texts, limit)
    cost = length * pieces
    operations = piece_operations(config)
    if not unit_pieces:
        most = min(_MOST_PIECES[device], int(_UNIT_OPERATIONS[device] / operations))
        share = int(cost[order].sum()) // _SMALLEST_SHARE
        unit_pieces = max(1, min(most, max(_FEW_PIECES, share)))
    rows: list[tuple[int, int, int]] = []
    for index in order.tolist():
        if cost[index] <= unit_pieces:
            rows.append((index, 0, int(pieces[index])))
            continue
        (encoding,) = encode_sentences(tokenizer, [texts[index]], int(length[index]))
        cuts = _cuts(encoding, max(1, unit_pieces // int(length[index])))
        rows += [(index, first, last) for first, last in pairwise(cuts)]
    index, first, last = np.array(rows, np.int64).reshape(-1, 3).T
    span_cost = (last - first) * length[index]
    unit = (np.cumsum(span_cost) - span_cost) // unit_pieces
    return Plan(
        np.array(keys, "S32"),
        texts,
        pieces,
        twin,
        truncated,
        index,
        first,
        last,
        span_cost,
        unit,
        operations,
    )


def _measure(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int
) -> tuple[Ints, Ints, Ints, Ints, int]:
    # Input length, scored pieces and twin of each sentence; the sentences that are scored
    # themselves, short ones first; the number that is truncated.
    length, pieces = np.zeros((2, len(texts)), np.int64)
    prints = np.zeros((2, len(texts)), np.uint64)
    truncated = 0
    for start in range(0, len(texts), _BATCH):
        for index, item in enumerate(
            encode_sentences(tokenizer, texts[start : start + _BATCH], limit + 1), start
        ):
            truncated += len(item.ids) > limit  # its own encoding is one piece shorter
            length[index] = min(limit, len(item.ids))
            pieces[index] = item.tokens - (len(item.ids) > limit)
            data = np.array([item.ids, item.words], np.int32).tobytes()
            # 16 bytes of a hash stand for the pieces: a million sentences fit in 16 MB
            prints[:, index] = np.frombuffer(
                hashlib.blake2b(data, digest_size=16).digest(), np.uint64
            )
    by_piece = np.lexsort((np.arange(len(texts)), *prints, length))
    same = (np.diff(prints[:, by_piece]) == 0).all(0) & (np.diff(length[by_piece]) == 0)
    starts = np.append(True, ~same)
    twin = np.empty(len(texts), np.int64)
    twin[by_piece] = by_piece[starts][np.cumsum(starts) - 1]
    return length, pieces, twin, by_piece[starts], truncated


def piece_operations(config: BertConfig) -> float:
    """Count the multiplications and additions of a model's layers for one word piece.

    The vocabulary head, which runs on masked positions alone, and attention are left out.
    """
    width = float(config.hidden_size)
    return 2.0 * config.num_hidden_layers * width * (4 * width + 2 * config.intermediate_size)


def span_codes(index: Ints, first: Ints, last: Ints) -> Ints:
    """Give every span a number of its own; pieces count to 65,535."""
    codes: Ints = (index << 2 * _SPAN_BITS) | (first << _SPAN_BITS) | last
    return codes


def units_of(plan: Plan, left: NDArray[np.bool_]) -> Iterator[Ints]:
    """Give the spans that are left of one unit after the other, as rows of the plan."""
    rows = np.flatnonzero(left)
    ends = np.flatnonzero(np.diff(plan.unit[rows])) + 1
    yield from (part for part in np.split(rows, ends) if len(part))


def part_of(encoding: Encoding, first: int, last: int) -> Encoding:
    """Ask for scored pieces [first, last), whole words, of a sentence; others are only read."""
    if (first, last) == (0, encoding.tokens):
        return encoding
    words, number = [], 0
    for word in encoding.words:
        asked = word >= 0 and first <= number < last
        number += word >= 0
        words.append(word if asked else -1)
    return Encoding(encoding.ids, tuple(words))


def _cuts(encoding: Encoding, most: int) -> list[int]:
    # Between words, into spans of at most `most` pieces, or of one word.
    words = [word for word in encoding.words if word >= 0]
    starts = [
        number for number, word in enumerate(words) if not number or word != words[number - 1]
    ]
    cuts = [0]
    for start, end in pairwise([*starts, len(words)]):
        if end - cuts[-1] > most and start > cuts[-1]:
            cuts.append(start)
    return [*cuts, len(words)]


@dataclass(frozen=True)
class ScoringOptions:
    """Options of scoring: variant, precision, engine and budget."""

    folder: Path  # of the language model
    variant: Variant
    dtype: str
    token_budget: int  # word pieces in one forward pass; 0: what suits the device
    device: str = "cpu"
    engine: EngineName = "auto"


class Task(NamedTuple):
    """Sentences, or spans of them, that are scored as a whole."""

    number: int
    texts: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # [first, last) of the scored word pieces of each text


class Scores(NamedTuple):
    """Scores of one task, nats."""

    number: int
    pll_nats: tuple[float, ...]


def _engine_of(options: ScoringOptions) -> EngineName:
    """Find the engine that scores on this machine; ScoreError where the one asked for cannot."""
    if options.engine == "plain":
        return "plain"
    model: Any = load_language_model(options.folder).model
    model.to(device=options.device, dtype=getattr(torch, options.dtype))
    return resolve_engine(model, options.engine)


class Scorer:
    """Scores tasks in this process."""

    def __init__(self, options: ScoringOptions) -> None:
        self._options = options
        loaded = load_language_model(options.folder)
        self._model = loaded.model
        cast(Any, self._model).to(device=options.device, dtype=getattr(torch, options.dtype))
        self._tokenizer = loaded.tokenizer
        self._limit = int(self._model.config.max_position_embeddings)
        self._engine = prepare_engine(self._model, options.engine, threads=1)
        self._budget = options.token_budget or find_budget(self._model)

    def score(self, task: Task) -> Scores:
        """Score a task, in order; sentences too long for the model are truncated."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # so that the bits of a score do not depend on their number
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
                self._options.variant,
                self._budget,
                engine=self._engine,
            )
        finally:
            torch.set_num_threads(threads)
        return Scores(task.number, tuple(pll_nats.tolist()))


def drift(options: ScoringOptions, texts: Sequence[str]) -> float:
    """Measure the largest difference, nats, of a few sentences' scores from those in float32."""
    task = Task(0, tuple(texts), tuple((0, _ALL) for _ in texts))
    exact = Scorer(replace(options, dtype="float32", engine="auto")).score(task).pll_nats
    rough = Scorer(options).score(task).pll_nats
    return max(abs(one - other) for one, other in zip(exact, rough, strict=True))


def score_tasks(
    options: ScoringOptions, tasks: Iterable[Task], workers: int
) -> Generator[Scores, None, None]:
    """Score tasks in `workers` processes, each task in whichever is free; 1: in this one.

    The scores come in the order in which they are finished.

    Raises:
        ScoreError: a score is not a number, or a worker died.
    """
    waiting = iter(tasks)
    if workers <= 1:
        scorer = None
        for task in waiting:
            scorer = scorer or Scorer(options)
            yield scorer.score(task)
        return
    # Not concurrent.futures: its workers outlive a parent that is killed, hold up one that is
    # stopped until their task is done, and a dead one is reported without its exit code.
    crew = dict(_start_worker(options) for _ in range(workers))
    idle, busy, answers = list(crew), list[Connection](), list[Scores]()
    try:
        while idle:
            for connection, task in zip(idle, waiting, strict=False):
                _send(connection, task, crew)
                busy.append(connection)
            yield from answers  # once the workers have more to do
            idle = [item for item in wait(busy) if isinstance(item, Connection)] if busy else []
            busy = [connection for connection in busy if connection not in idle]
            answers = [_receive(connection, crew) for connection in idle]
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
    with ending_with_fault(), suppress(EOFError, ConnectionError, KeyboardInterrupt):
        try:
            scorer = Scorer(options)
            while True:
                connection.send(scorer.score(connection.recv()))
        except MedclipError as error:
            connection.send(error)


def _send(connection: Connection, task: Task, crew: Mapping[Connection, BaseProcess]) -> None:
    try:
        connection.send(task)
    except ConnectionError as error:
        raise _died(crew[connection]) from error


def _receive(connection: Connection, crew: Mapping[Connection, BaseProcess]) -> Scores:
    try:
        answer = connection.recv()
    except (EOFError, ConnectionError) as error:
        raise _died(crew[connection]) from error
    if isinstance(answer, MedclipError):
        raise answer
    return cast(Scores, answer)


def _died(process: BaseProcess) -> ScoreError:
    process.join()
    return ScoreError(
        f"a scoring process ended with code {process.exitcode}; lower likelihood.workers or "
        "likelihood.token_budget, and run again to go on"
    )


class CorpusScoring:
    """One process of a launch that scores a corpus: the main one leads, the others follow."""

    def __init__(
        self,
        source: Artifact,
        model: Artifact,
        settings: LikelihoodConfig,
        launch: Launch,
        say: Callable[..., None],
    ) -> None:
        self._source, self._model, self._settings = source, model, settings
        self._launch, self._say = launch, say
        device = "cpu"
        if torch.cuda.is_available():
            device = f"cuda:{launch.local_rank % torch.cuda.device_count()}"
        self._options = ScoringOptions(
            model.path,
            settings.variant,
            settings.dtype,
            settings.token_budget,
            device,
            settings.engine,
        )
        self._others_wait = launch.processes > 1

    def choose_engine(self, existing: Artifact | None) -> dict[str, str]:
        """Choose the engine, and give the settings that the scores depend on.

        `existing` likelihoods may be reused, whatever engine this machine has.
        """
        header = score_header(self._source, self._model, self._settings)
        said = existing.fingerprint["settings"] if existing else {}
        if self._settings.engine == "auto" and said == {**header, "engine": said.get("engine")}:
            engine = cast("EngineName", said["engine"])
        else:
            engine = _engine_of(self._options)
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
        workers = self._settings.workers or self._workers(cost * plan.operations)
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
        "spearman_pll_count": round(spearman(pll_nats[said], count[said]), 4),
    }


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
