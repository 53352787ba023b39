"""Jobs in processes of their own that cost no start: forked from one that has imported them.

A job's first seconds are imports. A trial that kills a job, or lets its disk fail, does not
depend on them, so trials share one process that has imported everything and does nothing
else. What is forked from it is a real process, in a group and session of its own.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

_PRELOADED = ("pipelines.build_eta_cache", "pipelines.score_sentences", "pipelines.train")


def start(
    job: str,
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    before: tuple[str, tuple[Any, ...]] | None = None,
) -> ForkServerProcess:
    """Start a job.

    Args:
        job: its name.
        arguments: those of its command line.
        log: file that receives what it prints.
        environment: variables to set besides those of this process.
        before: name of a function, `module:function`, and its arguments; called in the new
            process before the job.

    Returns:
        The running process; its exit code is the job's.
    """
    process = _context().Process(
        target=_run, args=(job, tuple(arguments), str(log), dict(environment or {}), before)
    )
    process.start()
    return process


def run(job: str, arguments: Sequence[str], log: Path, **more: Any) -> int:
    """Run a job to its end.

    Args:
        job: its name.
        arguments: those of its command line.
        log: file that receives what it prints.
        more: as in `start`.

    Returns:
        Its exit code; negative: the signal that ended it.
    """
    process = start(job, arguments, log, **more)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _context() -> ForkServerContext:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read where torch is first imported
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _run(
    job: str,
    arguments: tuple[str, ...],
    log: str,
    environment: dict[str, str],
    before: tuple[str, tuple[Any, ...]] | None,
) -> None:
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.environ.update(environment)
    module = importlib.import_module(f"pipelines.{job}")
    if before is not None:
        where, _, name = before[0].partition(":")
        getattr(importlib.import_module(where), name)(*before[1])
    code = module.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
