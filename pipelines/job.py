"""The frame of a job: --config, --set, reuse of what is valid, exit code.

Exit codes
    0   done, or everything was valid already
    1   a fault of ours, with its trace
    2   configuration
    3   too many rejects
    4   a stale, missing or mismatched artifact
    75  stopped by a signal; run the same command again to go on
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from medclip_dcl.artifact import (
    Artifact,
    ArtifactType,
    ArtifactWriter,
    fingerprint_changes,
    make_fingerprint,
    open_artifact,
    write_artifact,
)
from medclip_dcl.config import Config, load_config, resolve_path
from medclip_dcl.errors import ArtifactError, MedclipError

STOPPED = 75


class Stopped(BaseException):
    """A signal asked the job to stop; everything acknowledged is on disk."""


@dataclass(frozen=True)
class Job:
    """What a job is handed: its name, its configuration and the recipe's folder."""

    name: str
    config: Config
    work: Path

    def open(self, kind: ArtifactType, *, verify: bool = True) -> Artifact:
        """Open an artifact of an earlier job.

        Args:
            kind: its kind.
            verify: hash every file.

        Returns:
            The artifact.

        Raises:
            ArtifactError: it is missing, damaged or of another version.
        """
        return open_artifact(kind.at(self.work), kind, verify=verify)

    def make(
        self,
        kind: ArtifactType,
        settings: Mapping[str, Any],
        inputs: Mapping[str, Artifact | str],
        write: Callable[[ArtifactWriter], Mapping[str, Any]],
    ) -> Artifact:
        """Make an artifact unless the one on disk has the same recipe and is whole.

        Args:
            kind: its kind.
            settings: the settings that it depends on.
            inputs: the artifacts that it is made from, or digests of other inputs.
            write: fills the draft's directory and returns the summary.

        Returns:
            The artifact, new or reused.

        Raises:
            ArtifactError: another process is writing it.
        """
        fingerprint = make_fingerprint(kind, settings, inputs)
        path = kind.at(self.work)
        try:
            existing = open_artifact(path, kind)
        except ArtifactError:
            existing = None
        if existing is not None and existing.fingerprint == fingerprint:
            self.say(artifact=kind.name, state="reused", **_scalars(existing.summary))
            return existing
        with write_artifact(path, kind, fingerprint) as writer:
            summary = write(writer)
            artifact = writer.commit(summary)
        replaced = {} if existing is None else {"replaced": _differences(existing, fingerprint)}
        self.say(
            artifact=kind.name,
            state="resumed" if writer.resumed else "made",
            seconds=artifact.origin["seconds"],
            **replaced,
            **_scalars(artifact.summary),
        )
        return artifact

    def say(self, **facts: Any) -> None:
        """Print one line about the job: words on a terminal, JSON elsewhere.

        Args:
            facts: names and plain values; counts and ids, never texts.
        """
        if sys.stdout.isatty():
            words = ", ".join(f"{name} {value}" for name, value in facts.items())
            print(f"{self.name}: {words}", flush=True)
        else:
            print(json.dumps({"job": self.name, **facts}), flush=True)


def run_job(name: str, work: Callable[[Job], None], argv: Sequence[str] | None) -> int:
    """Run a job from its command line.

    Args:
        name: the job's name.
        work: does the job.
        argv: arguments; None: those of the process.

    Returns:
        The exit code, as the module's docstring lists them.
    """
    parser = argparse.ArgumentParser(prog=f"python -m pipelines.{name}")
    parser.add_argument("--config", type=Path, required=True, help="recipe, a YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args(argv)
    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        config = load_config(arguments.config, arguments.set)
        work(Job(name, config, resolve_path(config.work, config)))
    except (Stopped, KeyboardInterrupt):
        print(f"{name}: stopped; run the same command again to go on", file=sys.stderr)
        return STOPPED
    except MedclipError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os._exit(1)
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def _differences(existing: Artifact, fingerprint: Mapping[str, Any]) -> str:
    return "; ".join(fingerprint_changes(existing.fingerprint, fingerprint))


def _scalars(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if isinstance(value, int | float | str)}
