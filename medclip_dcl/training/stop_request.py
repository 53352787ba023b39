"""Requests to stop: signals, and the death of the launcher."""

import ctypes
import os
import signal
import sys
import time
from types import FrameType
from typing import Any, Self

_PR_SET_PDEATHSIG = 1
_SAME_KEY_PRESS_S = 1.0
_LAUNCHED_BY = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")


class StopRequest:
    """Request made of SIGTERM, SIGINT or the launcher's death, for a `with` block.

    A second SIGINT, a second after the first, ends the process at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._take(signal.SIGTERM)
        self._take(signal.SIGINT)
        if _follow_launcher():
            self._take(signal.SIGHUP)
        return self

    def __exit__(self, *_error: object) -> None:
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


def _follow_launcher() -> bool:
    # Ask the kernel for SIGHUP when the launcher dies. A run started by hand is left alone: it
    # may outlive its shell.
    if not sys.platform.startswith("linux") or not any(name in os.environ for name in _LAUNCHED_BY):
        return False
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0)
    if os.getppid() != parent:  # it died while we asked
        os.kill(os.getpid(), signal.SIGTERM)
    return True
