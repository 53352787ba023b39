"""Every exception that this project raises on purpose, as one tree.

A message names the value, the rule it breaks and the remedy. It carries ids and
counts, never report text, pixels, prompts or names of uploaded files.
"""

import os
import resource
import stat
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class MedclipError(Exception):
    """Base of the tree; `exit_code` is what a job returns when it ends with one."""

    exit_code = 1


class JobFailed(MedclipError):
    """A job failed that another command had started; its exit code is passed on."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ConfigError(MedclipError):
    """A setting is unknown, malformed or out of range."""

    exit_code = 2


class ArtifactError(MedclipError):
    """An artifact on disk cannot be used."""

    exit_code = 4


class ArtifactMissing(ArtifactError):
    """An earlier stage has not been run, or wrote elsewhere."""


class ArtifactCorrupt(ArtifactError):
    """The bytes on disk differ from what was committed."""


class ArtifactUnreadable(ArtifactError):
    """A file or folder may not be read by the user that this process runs as."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            status = file.stat()
            mode = (
                f"mode {stat.S_IMODE(status.st_mode):o}, uid {status.st_uid}, gid {status.st_gid}"
            )
        except OSError:
            mode = "in a folder that may not be entered"
        super().__init__(
            f"{file} ({mode}) cannot be read by uid {os.geteuid()}, gid {os.getegid()}; "
            "run chmod -R a+rX on the artifact's folder, or g+rX and chgrp"
        )


class TooManyOpenFiles(ArtifactError):
    """The process has as many files open as its limit allows."""

    def __init__(self, path: Path) -> None:
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        super().__init__(
            f"{path} cannot be opened: this process may open {limit} files (hard limit {most}) and "
            "has as many open; raise the limit (ulimit -n, LimitNOFILE) and start it again"
        )


class ArtifactStale(ArtifactError):
    """The artifact was made from other inputs or settings than those asked for."""


class ArtifactUnwritable(ArtifactError, OSError):
    """The disk is full, or fails, or may not be written to."""


class StudyError(MedclipError):
    """A source of studies cannot be read as a whole, or too much of it was rejected."""

    exit_code = 3


class _CodedError(MedclipError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ImageError(_CodedError):
    """One image is refused.

    `code` is the rule that refused it, from `medclip_dcl.data.limits.REASONS`.
    """


class ReportError(MedclipError):
    """One report or sentence is refused."""


class ScoreError(MedclipError):
    """A likelihood or an eta is missing, or not a valid number."""

    exit_code = 4


class CheckpointError(MedclipError):
    """Weights cannot be loaded, or do not fit the model that was asked for."""

    exit_code = 4


class LaunchError(MedclipError):
    """Processes that were started together lost each other, or share no folder."""


class HubError(MedclipError):
    """A model hub cannot be reached, or refuses."""


class TrainingError(MedclipError):
    """Training cannot go on."""


class ObjectiveError(MedclipError, ValueError):
    """A loss is asked of tensors or settings that do not fit together."""


class MetricError(MedclipError):
    """A metric is asked of arrays that do not fit together."""


class QueryError(MedclipError):
    """A question put to a model or an index is malformed."""


class EngineError(MedclipError):
    """The vector engine does not answer, or lacks the index."""


class ServiceError(_CodedError):
    """The service cannot be reached, or refuses a request of the client.

    `code` is what the service says went wrong; `unreachable`, `certificate`, `no_answer` or
    `no_url` where it said nothing. `status` is that of its answer, 0 where there was none.
    """

    def __init__(self, code: str, message: str, status: int = 0) -> None:
        super().__init__(code, message)
        self.status = status


def print_fault(error: BaseException) -> None:
    """Print the type of an exception and where it arose, not its message, which may quote the data.

    With `PYTHONDEVMODE=1` all of it is printed.
    """
    if sys.flags.dev_mode:
        traceback.print_exception(error)
        return
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    lines.append(
        f"{type(error).__name__}: a fault of the program; its message may quote the data and is "
        "left out, PYTHONDEVMODE=1 prints it"
    )
    print(*lines, sep="\n", file=sys.stderr)


def withhold_messages() -> None:
    """Let this process end with `print_fault` instead of a trace, and its threads as well."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda hook: print_fault(hook.exc_value or RuntimeError())


def _print_uncaught(kind: type[BaseException], error: BaseException, *_trace: object) -> None:
    if isinstance(error, Exception):
        print_fault(error)
    else:  # a stop
        sys.__excepthook__(kind, error, error.__traceback__)


@contextmanager
def ending_with_fault() -> Iterator[None]:
    """End a process of `multiprocessing`, which has no hook, as `withhold_messages` does."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (the last that sees it)
        print_fault(error)
        raise SystemExit(1) from None
