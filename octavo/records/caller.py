"""Who is behind a request, as far as the engine's side needs to know."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Caller:
    """One request's origin.

    Attributes:
        client: among whom requests that wait are shared out fairly: all of one name together get one share.
        deadline: when the request is to be ended, on the clock of :func:`time.monotonic`.
        request_id: what log lines and traces call it.
        trace_headers: trace context that came with it.
    """

    client: str = ""
    deadline: float | None = None
    request_id: str = ""
    trace_headers: Mapping[str, str] = field(default_factory=dict)


NOBODY = Caller()

CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)
"""Set at the door for everything that is done for a request. Every protocol's route would have to pass it on otherwise,
although none has a use for it."""
