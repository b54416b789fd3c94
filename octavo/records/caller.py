"""The caller of a request, for fair scheduling, deadlines and logs."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Caller:
    """One request's origin.

    Attributes:
        client: waiting requests take turns by client; all requests with the same name get one share.
        deadline: when to end the request, on the clock of :func:`time.monotonic`.
        request_id: its id in log lines and traces.
        trace_headers: its trace context.
    """

    client: str = ""
    deadline: float | None = None
    request_id: str = ""
    trace_headers: Mapping[str, str] = field(default_factory=dict)


NOBODY = Caller()

CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)
"""A context variable set when a request arrives. Otherwise every protocol's route would have to pass it on, although
none uses it."""
