"""Stopping a run in good order: finish the step, save, leave.

`accelerate launch` starts the trainer as a child and, when it is told to stop, dies
without passing the word on. On Linux the kernel does so in its place, by SIGHUP.

One request may arrive several times: from the process group, from the launcher and from
the kernel. Only a person who presses Ctrl-C again means something else by it.
"""

import ctypes
import os
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import Any, Self

_PR_SET_PDEATHSIG = 1
_SAME_KEY_PRESS_S = 1.0
_LAUNCHED_BY = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")


class StopRequest:
    """Turns SIGTERM, SIGINT and the launcher's death into a request.

    SIGINT a second after the request ends the process at once.

    Attributes:
        requested: whether the run has been asked to stop.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._take(signal.SIGTERM)
        self._take(signal.SIGINT)
        if follow_launcher():
            self._take(signal.SIGHUP)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _take(self, number: signal.Signals) -> None:
        self._previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self._since = True, now
        elif number == signal.SIGINT and now - self._since > _SAME_KEY_PRESS_S:
            os._exit(128 + number)


def follow_launcher() -> bool:
    """Ask the kernel for SIGHUP when the launcher dies.

    Returns:
        Whether a launcher started us and was asked for. A run started by hand is left
        alone: it may outlive its shell.
    """
    if not sys.platform.startswith("linux") or not any(name in os.environ for name in _LAUNCHED_BY):
        return False
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0)
    if os.getppid() != parent:  # it died while we asked
        os.kill(os.getpid(), signal.SIGTERM)
    return True
