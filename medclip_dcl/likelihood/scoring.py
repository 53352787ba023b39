"""Scoring of a corpus in units: by several processes, kept as it goes, put together at the end."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from medclip_dcl.artifacts.likelihoods import ScoreJournal, read_parts
from medclip_dcl.config.text import LikelihoodConfig
from medclip_dcl.cores import available_cores
from medclip_dcl.errors import LaunchError
from medclip_dcl.launch import Launch
from medclip_dcl.likelihood.language_model import read_config, read_tokenizer
from medclip_dcl.likelihood.scorer import Recipe, Task, score_tasks
from medclip_dcl.likelihood.units import (
    Ints,
    Measured,
    Plan,
    measure,
    piece_operations,
    plan_units,
    span_codes,
    units_of,
)
from medclip_dcl.progress import Progress

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
    keys: Sequence[str], texts: Sequence[str], recipe: Recipe, settings: LikelihoodConfig
) -> Work:
    """Cut a corpus into units of work.

    Args:
        keys: text keys, ascending.
        texts: their sentences.
        recipe: how they are scored.
        settings: `unit_pieces` is read.

    Returns:
        The work; it depends on the arguments alone.

    Raises:
        CheckpointError: the language model cannot be read.
        ScoreError: a sentence has no word piece.
    """
    config, tokenizer = read_config(recipe.folder), read_tokenizer(recipe.folder)
    operations = piece_operations(config)
    measured = measure(tokenizer, texts, int(config.max_position_embeddings))
    kind = recipe.device.partition(":")[0]
    most = min(_MOST_PIECES[kind], int(_UNIT_OPERATIONS[kind] / operations))
    usual = min(most, max(_FEW_PIECES, measured.cost // _SMALLEST_SHARE))
    plan = plan_units(tokenizer, texts, measured, settings.unit_pieces or max(1, usual))
    return Work(np.array(keys, "S32"), texts, measured, plan, operations)


def score_share(
    folder: Path, work: Work, recipe: Recipe, settings: LikelihoodConfig, launch: Launch
) -> int:
    """Score what nobody has acknowledged of this process's share of the units.

    Args:
        folder: folder of the acknowledged parts, which all processes see.
        work: the whole work.
        recipe: how to score.
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
    workers = settings.workers or _workers(cost * work.operations, recipe, launch)
    handed: dict[int, Ints] = {}
    journal = ScoreJournal(folder, settings.flush_every_s)
    with (
        _progress(total, total - cost, launch) as bar,
        closing(score_tasks(recipe, _tasks(work, left, handed), workers)) as finished,
    ):
        try:
            for scores in finished:
                rows = handed.pop(scores.number)
                journal.add(_table(work, rows, scores.pll_nats))
                if bar is not None:
                    bar.advance(int(plan.cost[rows].sum()))
        finally:
            journal.flush()
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
    np.add.at(pll_nats, work.plan.place, values)
    twins: Floats = pll_nats[work.measured.twin]
    return twins


def _acknowledged(parts: pa.Table, work: Work) -> Floats:
    """Give the score of every span of the plan that a part holds, and NaN for the others."""
    plan = work.plan
    values = np.full(len(plan.place), np.nan)
    keys = np.array(parts["text_key"].to_pylist(), "S32")
    place = np.searchsorted(work.keys, keys)
    known = place < len(work.keys)
    known[known] = work.keys[place[known]] == keys[known]
    first, last = (parts[name].to_numpy().astype(np.int64)[known] for name in ("first", "last"))
    codes = span_codes(place[known].astype(np.int64), first, last)
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
        texts = tuple(work.texts[place] for place in plan.place[rows].tolist())
        spans = zip(plan.first[rows].tolist(), plan.last[rows].tolist(), strict=True)
        yield Task(number, texts, tuple(spans))


def _table(work: Work, rows: Ints, pll_nats: Sequence[float]) -> pa.Table:
    plan = work.plan
    return pa.table(
        {
            "text_key": pa.array(work.keys[plan.place[rows]].astype("U32").tolist(), pa.string()),
            "first": pa.array(plan.first[rows], pa.int32()),
            "last": pa.array(plan.last[rows], pa.int32()),
            "pll_nats": pa.array(pll_nats, pa.float64()),
        }
    )


def _workers(operations: float, recipe: Recipe, launch: Launch) -> int:
    if recipe.device != "cpu":
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
