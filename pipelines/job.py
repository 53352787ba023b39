"""The frame of a job: --config, --set, --force, reuse of what is valid, signals.

A finished model, or its results, gives way to other settings only where that is said.
"""

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from medclip_dcl.core.artifact import (
    Artifact,
    ArtifactType,
    fingerprint_changes,
    make_fingerprint,
    open_artifact,
    open_if_current,
    read_artifact_header,
)
from medclip_dcl.core.artifact_writer import ArtifactWriter, changed_code, write_artifact
from medclip_dcl.core.errors import ArtifactError, ArtifactStale
from medclip_dcl.core.files import raise_open_file_limit
from medclip_dcl.core.progress import OF_RUN, duration, is_brief, writes_json
from medclip_dcl.core.settings import resolve_path

from .cli import ConfigFile, Force, Log, Overrides, Replace, config_of, make_command, set_log
from .stages import STAGES, function_of, stages_of

if TYPE_CHECKING:  # sections of every stage, of which a job reads a few
    from .config import Config

STOPPED = 75
_FACTS = 3
_NAMED = 5  # modules in a note; a reader wants to know which, not all


class Stopped(BaseException):
    """A signal asked the job to stop; everything acknowledged is on disk."""


class Inputs(NamedTuple):
    """Inputs of a job by name, and the digests that name them in a fingerprint."""

    values: dict[str, Any]
    digests: dict[str, Artifact | str]


@dataclass(frozen=True)
class Job:
    """A job at work: its name, its configuration and the run's folder."""

    name: str
    config: "Config"
    work: Path
    force: bool = False  # whether its artifacts are made again, valid or not
    replace: bool = False  # whether a finished model may give way to one of other settings

    def open(self, kind: ArtifactType, *, verify: bool = True) -> Artifact:
        """Open an artifact of an earlier job, as `open_artifact` does."""
        return open_artifact(kind.at(self.work), kind, verify=verify)

    def open_inputs(self, *, verify: bool = True) -> "Inputs":
        """Open what this job reads by the table of stages; `verify`: whether bytes are hashed."""
        values, digests = {}, {}
        for item in STAGES[self.name].inputs:
            if item.when(self.config):
                opened = item.open(self.config, partial(self.open, verify=verify))
                values[item.name], digests[item.name] = opened
        return Inputs(values, digests)

    def make(
        self,
        kind: ArtifactType,
        settings: Mapping[str, Any],
        inputs: Mapping[str, Artifact | str],
        write: Callable[[ArtifactWriter], Mapping[str, Any]],
        path: Path | None = None,
    ) -> Artifact:
        """Make an artifact unless the one on disk has the same fingerprint and is whole.

        Settings and inputs are those of `make_fingerprint`; `write` fills the draft's directory and
        gives the summary. `path`: its folder, where that is not below the run's.
        """
        fingerprint = make_fingerprint(kind, settings, inputs)
        path = path or kind.at(self.work)
        if not self.force and (reused := self.reuse(kind, fingerprint, path)):
            return reused
        existing = None
        with suppress(ArtifactError):
            existing = read_artifact_header(path)
        with write_artifact(path, kind, fingerprint, same_code=self.force) as writer:
            summary = write(writer)
            artifact = writer.commit(summary)
        changes = fingerprint_changes(existing.fingerprint, fingerprint) if existing else []
        replaced = {"replaced": "; ".join(changes)} if existing else {}
        self.say(
            artifact=kind.name,
            state="resumed" if writer.resumed else "made",
            seconds=artifact.origin["seconds"],
            **replaced,
            **_scalars(artifact.summary),
        )
        return artifact

    def reuse(
        self, kind: ArtifactType, fingerprint: Mapping[str, Any], path: Path | None = None
    ) -> Artifact | None:
        """Return the artifact on disk, and say so, where it is whole and has the fingerprint."""
        current = open_if_current(path or kind.at(self.work), kind, fingerprint)
        if current is not None:
            self.say(artifact=kind.name, state="reused", **_scalars(current.summary))
            self.note_changed_code(current)
        return current

    def note_changed_code(self, reused: Artifact) -> None:
        """Say on stderr which modules changed since an artifact, or a checkpoint, was made."""
        if changed := changed_code(reused):
            more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
            print(
                f"{self.name}: {reused.kind} reused, made before {', '.join(changed[:_NAMED])}"
                f"{more} changed; --force makes it again",
                file=sys.stderr,
            )

    def say(self, **facts: Any) -> None:
        """Print counts and ids, never texts, on one line: in words, or as JSON for machines.

        A run that nobody has asked for a log has a line a stage, and its warnings.
        """
        if writes_json():
            print(json.dumps({"job": self.name, **facts}), flush=True)
            return
        if is_brief():
            if "warning" in facts:
                facts = {"warning": facts["warning"]}
            elif "artifact" in facts and "state" in facts:
                facts = headline_facts(facts)
            else:
                return
        print(f"{self.name}: {_in_words(facts)}", flush=True)


def run_job(
    name: str,
    work: Callable[[Job], None],
    config: Path,
    overrides: Sequence[str] | None,
    *,
    force: bool = False,
    replace: bool = False,
) -> int:
    """Run a job on what `--config` and `--set` name; 0, or `STOPPED` where a signal ended it."""

    def run() -> None:
        loaded = config_of(config, overrides)
        work(Job(name, loaded, resolve_path(loaded.work, loaded.work), force, replace))
        if OF_RUN not in os.environ and not writes_json():  # on its own, for a person
            print(f"next: {_next_command(name, loaded, config, overrides)}", flush=True)

    return run_resumable(name, run)


def run_resumable(name: str, work: Callable[[], None]) -> int:
    """Run work that resumes where it was killed; 0, or `STOPPED` where a signal ended it."""
    raise_open_file_limit()
    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        work()
    except (Stopped, KeyboardInterrupt):
        print(f"{name}: stopped; run the same command again to go on", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        os._exit(1)  # a reader like `head` is gone: nothing can be said, not even at exit
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def job_command(name: str, work: Callable[[Job], None]) -> Callable[..., int]:
    """Make the function that runs a job, with the options that every job has as parameters."""

    def command(
        config: ConfigFile,
        overrides: Overrides = None,
        force: Force = False,
        replace: Replace = False,
        log: Log = None,
    ) -> int:
        set_log(log)
        return run_job(name, work, config, overrides, force=force, replace=replace)

    command.__doc__ = work.__doc__
    return command


def main_of(stage: str) -> Callable[..., int]:
    """Import a stage and make its `main`."""
    return job_main(stage, function_of(stage))


def job_main(name: str, work: Callable[[Job], None]) -> Callable[..., int]:
    """Make the `main` of a job: from a command line, the process's by default, to an exit code."""

    def main(argv: Sequence[str] | None = None) -> int:
        command = make_command(job_command(name, work), name)
        try:
            command(argv, prog_name=f"python -m {__package__}.{name}")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
        return 0

    return main


def _in_words(facts: Mapping[str, Any]) -> str:
    rest = dict(facts)
    head = ""
    if "artifact" in rest and "state" in rest:
        head = f"{rest.pop('artifact')} {rest.pop('state')}"
        if (seconds := rest.pop("seconds", None)) is not None:
            head += f" in {duration(seconds)}"
    words = ", ".join(f"{name.replace('_', ' ')} {_number(item)}" for name, item in rest.items())
    return f"{head}: {words}" if head and words else head or words


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _next_command(name: str, config: "Config", file: Path, overrides: Sequence[str] | None) -> str:
    if name == "check_data":  # before all stages, and of none
        return shlex.join(["medclip", "run", str(file)])
    stages = stages_of(config)
    after = stages[stages.index(name) + 1 :] if name in stages else ()
    if not after:
        return f"medclip show {shlex.quote(str(resolve_path(config.work, config.work)))}"
    # Settings of the command line may name columns and folders of patients: no log repeats them.
    words = shlex.join(["medclip", after[0], "--config", str(file)])
    return f"{words}, and the same --set" if overrides else words


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def headline_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Leave what an artifact is, and the first numbers that are not zero."""
    what = {name: facts[name] for name in ("artifact", "state", "seconds") if name in facts}
    numbers = {
        name: value
        for name, value in facts.items()
        if isinstance(value, int | float) and value and name not in what
    }
    return what | dict([*numbers.items()][:_FACTS])


def _scalars(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if isinstance(value, int | float | str)}


def refuse_other_model(work: Path, kind: ArtifactType, fingerprint: Mapping[str, Any]) -> None:
    """Refuse to train where a finished model of other settings or inputs would be replaced."""
    try:
        finished = read_artifact_header(kind.at(work))
    except ArtifactError:
        return
    if (finished.kind, finished.version) == (kind.name, kind.version):
        old, new = dict(finished.fingerprint), dict(fingerprint)
        inputs = [
            f"another {line.partition(':')[0]}"  # digests help nobody
            for line in fingerprint_changes(old.pop("inputs"), new.pop("inputs"))
        ]
        if changes := fingerprint_changes(old["settings"], new["settings"]) + inputs:
            refuse_replacing(work, "a finished model", changes)


def refuse_replacing(work: Path, what: str, changes: Collection[str]) -> None:
    """Say what would be replaced, by which changes, and how to go on; `ArtifactStale`."""
    raise ArtifactStale(
        f"{work} holds {what}, made with other settings or inputs ({'; '.join(changes)}), which "
        "this run would replace; give it a folder of its own (--set work=FOLDER), or add --replace"
    )
