"""What the layers of the service know of one request, in one typed place."""

from dataclasses import dataclass, field

from starlette.types import Scope


@dataclass
class RequestState:
    """Facts that travel with a request; the log line is written from them.

    Attributes:
        request_id: under which the log knows the request.
        key_id: first digits of the hash of its API key; empty without one.
        code: code of the error that it was answered with; empty without one.
        deadline: time on the monotonic clock after which nobody waits, seconds.
        timings: stage -> milliseconds spent in it.
        image: content of a large file that was taken out of the form.
    """

    request_id: str
    key_id: str = ""
    code: str = ""
    deadline: float = float("inf")
    timings: dict[str, float] = field(default_factory=dict)
    image: memoryview = field(default_factory=lambda: memoryview(b""))


def state_of(scope: Scope) -> RequestState:
    """Give the state that the outermost layer made for a request."""
    state: RequestState = scope["state"]["request"]
    return state
