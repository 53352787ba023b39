"""Run a config: its stages in order, each in a process of its own; what is valid is reused.

A stage is forked from a process that imports what stages need once: of a run that only reuses,
imports would be nearly all the time. Training of several processes is launched, unless its model
is valid.
"""

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medclip_dcl.core.artifact import fingerprint_changes, read_artifact_header
from medclip_dcl.core.errors import ArtifactError, ConfigError, MedclipError, ending_with_fault
from medclip_dcl.core.progress import OF_RUN, duration, writes_json

from .cli import ConfigFile, Force, Log, Overrides, Replace, config_of, set_log
from .job import STOPPED, Job, main_of, refuse_replacing
from .stages import REPORT, STAGES, stages_of

if TYPE_CHECKING:
    from .config import Config

_TRAIN = "train"
_NOT_REUSED = 100  # no exit code of a stage


def run(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML file, or a name such as `demo`.")
    ],
    overrides: Overrides = None,
    force: Annotated[
        list[str] | None,
        typer.Option(
            "--force",
            metavar="STAGE",
            help="Make a stage's artifact again, valid or not, and what depends on it: after a "
            "change of the code; may be repeated.",
        ),
    ] = None,
    replace: Replace = False,
    log: Log = None,
) -> int:
    """Run every stage of a config; what is valid already is reused.

    `medclip demo` is `medclip run demo`: every stage on generated studies, in minutes.
    """
    set_log(log)
    force = force or []
    loaded = config_of(config, overrides)
    arguments = _arguments(config, overrides)
    started = time.monotonic()
    stages = stages_of(loaded)
    if absent := [item for item in force if item not in stages]:
        raise ConfigError(f"--force names {absent}, which this run lacks; it has {list(stages)}")
    if force or replace:
        arguments.append("--replace")
    else:
        refuse_to_replace(loaded, _folder(loaded), stages)
    with _Stopping() as stopping:
        code = _run_stages(loaded, stages, arguments, force, stopping)
    if code == 0:
        _sum_up(loaded, time.monotonic() - started)
    return code


def _run_stages(
    loaded: "Config",
    stages: Sequence[str],
    arguments: Sequence[str],
    force: Sequence[str],
    stopping: "_Stopping",
) -> int:
    for stage in stages:  # each is forked from here, and would import it by itself
        main_of(stage)
    gc.freeze()  # no collection of a stage walks through what was imported
    for stage in stages:
        words = [*arguments, *(["--force"] if stage in force else [])]
        code = _NOT_REUSED
        if stage == _TRAIN and stage not in force:  # launching many processes takes seconds
            code = _follow(stopping, _reuse, loaded)
        if code == _NOT_REUSED:
            launcher = _launcher(loaded) if stage == _TRAIN else []
            work = partial(_launch, launcher) if launcher else main_of(stage)
            code = _follow(stopping, work, words)
        if stopping.is_asked and code in {0, STOPPED}:  # it may have ended before it heard of it
            print("run: stopped; run the same command again to go on", file=sys.stderr)
            return STOPPED
        if code:
            print(f"{stage} ended with exit code {code}", file=sys.stderr)
            return code
    return 0


def refuse_to_replace(config: "Config", work: Path, stages: Collection[str]) -> None:
    """Refuse a run that would replace a finished model or its results, before it does anything.

    Settings are compared with those that the artifacts in `work` were made with. ArtifactStale
    where they differ, and a model or results are there.
    """
    settings, changes = config.model_dump(mode="json"), {}
    for stage in stages:
        name = STAGES[stage].makes
        if name and name != "index":  # which is neither, and neither depends on it
            with suppress(ArtifactError):  # one that is not there, or damaged, is made in any case
                made = read_artifact_header(work / name).fingerprint["settings"]
                made = {"likelihood": made} if name == "likelihoods" else made
                changes[name] = list(_differences(made, settings))
    before = [line for name, lines in changes.items() if name != "results" for line in lines]
    reasons = {"model": before, "results": before + changes.get("results", [])}
    lost = [name for name, lines in reasons.items() if lines and name in changes]
    if lost:
        what = {"model": "a finished model", "results": "finished results"}
        refuse_replacing(work, " and ".join(what[name] for name in lost), reasons[lost[-1]])


def _differences(
    made: Mapping[str, Any], settings: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    # `auto` was settled when the artifact was made.
    for name in [name for name in made if name in settings and settings[name] != "auto"]:
        old, new = made[name], settings[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{name}.")
        else:
            yield from fingerprint_changes({name: old}, {name: new}, prefix)


def run_train(
    config: ConfigFile,
    overrides: Overrides = None,
    force: Force = False,
    replace: Replace = False,
    log: Log = None,
) -> int:
    """Train a model, with as many processes as the config asks for."""
    set_log(log)
    launcher = _launcher(config_of(config, overrides)) or [sys.executable, *_MODULE]
    flags = [flag for flag, given in (("--force", force), ("--replace", replace)) if given]
    return _launch(launcher, [*_arguments(config, overrides), *flags])


def _launch(launcher: Sequence[str], words: Sequence[str]) -> int:
    with _Stopping() as stopping:
        process = subprocess.Popen([*launcher, *words])
        stopping.pass_on(process.terminate)
        return process.wait()


def _arguments(config: Path, overrides: Overrides) -> list[str]:
    options = [word for override in overrides or () for word in ("--set", override)]
    return ["--config", str(config), *options]


_MODULE = ("-m", f"{__package__}.{_TRAIN}")


def _launcher(config: "Config") -> list[str]:
    # Begins the command line of training in many processes; empty: this process can be the one.
    if "WORLD_SIZE" in os.environ:  # somebody has launched us already
        return []
    if (processes := config.train.processes) > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        return [sys.executable, *launch, str(processes), *_MODULE]
    # Metal refuses to work in a process that was forked.
    return [sys.executable, *_MODULE] if sys.platform == "darwin" else []


def _reuse(config: "Config") -> int:
    from .train import reuse

    with suppress(MedclipError):  # training says what is wrong
        return 0 if reuse(Job(_TRAIN, config, _folder(config))) else _NOT_REUSED
    return _NOT_REUSED


class _Stopping:
    """SIGTERM and SIGINT, for a `with` block: passed on to what works now, and remembered.

    A stage that gets one saves, and says how to go on. One that ended before the signal reached it
    says nothing, and neither does the moment between two stages: hence `is_asked`.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._terminate: Callable[[], None] | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_Stopping":
        self._take(signal.SIGTERM, self._ask)
        # A terminal sends its Ctrl-C to the stage as well.
        self._take(signal.SIGINT, self._note if sys.stdin.isatty() else self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Handle signals as before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def pass_on(self, terminate: Callable[[], None]) -> None:
        """Call `terminate` for every signal from now on, and for one that has come before."""
        self._terminate = terminate
        if self.is_asked:
            terminate()

    def _take(self, number: signal.Signals, handler: Callable[..., None]) -> None:
        self._previous[number] = signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self.is_asked = True

    def _ask(self, *_: object) -> None:
        self.is_asked = True
        if self._terminate is not None:
            self._terminate()


def _call(stopping: _Stopping, function: Callable[..., int], given: tuple[Any, ...]) -> None:
    stopping.release()
    if stopping.is_asked:  # between the fork and now
        sys.exit(STOPPED)
    os.environ[OF_RUN] = "1"
    with ending_with_fault():
        sys.exit(function(*given))


def _follow(stopping: _Stopping, function: Callable[..., int], *given: Any) -> int:
    """Fork a stage, and give its exit code; it reports by itself."""
    arguments = (stopping, function, given)
    process = multiprocessing.get_context("fork").Process(target=_call, args=arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Threads that libraries start as they are imported hold no lock that a stage needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    stopping.pass_on(process.terminate)
    process.join()
    return process.exitcode or 0


def _sum_up(config: "Config", seconds: float) -> None:
    folder = _folder(config)
    report = folder / REPORT
    if writes_json() and not sys.stdout.isatty():
        facts = {"run": str(folder), "seconds": seconds}
        print(json.dumps(facts | ({"report": str(report)} if report.is_file() else {})))
        return
    from .results import summary_lines

    print("", *summary_lines(folder), sep="\n")
    print(f"in all   {duration(seconds)}")


def _folder(config: "Config") -> Path:
    from medclip_dcl.core.settings import resolve_path

    return resolve_path(config.work, config.work)
