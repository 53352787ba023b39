"""Real processes that cost no start: forked from one that has imported what they need.

The first five seconds of a job or of the service are imports. A test that kills a job, lets its
disk fail or asks a service does not depend on them, so all share one process that has imported
everything and does nothing else. What is forked from it is a real process, in a group and session
of its own, with `main` of the module that `python -m` would run.
"""

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT, free_port

_PRELOADED = (
    "api.launcher", "pipelines.__main__", "pipelines.build_index", "pipelines.eta",
    "pipelines.fitting", "pipelines.pages", "pipelines.train",
)  # fmt: skip
_chosen: list[str] = []
_Before = tuple[str, tuple[Any, ...]]


def start(
    module: str,
    arguments: Sequence[str],
    log: Path,
    *,
    output: Path | None = None,
    environment: Mapping[str, str] | None = None,
    before: _Before | None = None,
) -> ForkServerProcess:
    """Start `main(arguments)` of a module; the exit code of the process is the one it returns.

    `log` receives what it prints, or its errors alone where `output` takes the rest. `environment`
    is added to the variables of this process; a library that reads its own as it is imported sees
    them if `before` forgets it. `before` names a function, `module:function`, and its arguments; it
    is called in the new process first.
    """
    streams = (str(output or log), str(log))
    variables = {**os.environ, **(environment or {})}
    process = context().Process(
        target=_run, args=(module, tuple(arguments), streams, variables, before)
    )
    process.start()
    return process


def run(module: str, arguments: Sequence[str], log: Path, **more: Any) -> int:
    """Run a module's `main` to its end and give its exit code, negative where a signal ended it."""
    process = start(module, arguments, log, **more)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def start_ranks(
    count: int,
    module: str,
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    **more: Any,
) -> list[ForkServerProcess]:
    """Start `count` processes that form one group, as torchrun does; each other's log has its rank.

    The first holds the group together and is to end last. The rest is as for `start`.
    """
    group = {"GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true", **(environment or {})}
    if count > 1:
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        group |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    started = []
    for rank in range(count):
        own = group | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {})
        file = log.with_name(f"{log.name}-{rank}") if rank else log
        started.append(start(module, arguments, file, environment=own, **more))
    return started


def context(preloaded: Sequence[str] = _PRELOADED) -> ForkServerContext:
    """Return the context of multiprocessing whose server has imported everything.

    Who needs other modules than most says so before the first start.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read where torch is first imported
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    context = multiprocessing.get_context("forkserver")
    if not _chosen:
        _chosen.extend(preloaded)
    context.set_forkserver_preload(_chosen)
    with contextlib.chdir(ROOT):  # the server finds its modules from where it is started
        ensure_running()
    return context


def forget(package: str) -> None:
    """Let a package be imported again, with the variables of this process."""
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[name]


def _run(
    module: str,
    arguments: tuple[str, ...],
    streams: tuple[str, str],
    variables: dict[str, str],
    before: _Before | None,
) -> None:
    os.setsid()
    os.chdir(ROOT)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND  # both streams may be one file
    for number, path in enumerate(streams, start=1):
        handle = os.open(path, flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()  # those of the server are as old as it is
    os.environ.update(variables)
    if before is not None:
        where, _, name = before[0].partition(":")
        getattr(importlib.import_module(where), name)(*before[1])
    code = importlib.import_module(module).main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
