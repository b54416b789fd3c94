"""``/console/status``: what the page cannot read off the metrics."""

import msgspec

from octavo import __version__
from octavo.api.frontend import Frontend


class DecisionEntry(msgspec.Struct):
    """A setting in force, and why."""

    name: str
    value: str
    reason: str


class ConsoleStatus(msgspec.Struct):
    """The server as the page describes it.

    Attributes:
        models: names that requests may use.
        is_healthy: whether requests are served.
        device: in words; empty if the engine does not tell.
        cache_tokens: tokens that the cache's blocks hold.
        decode_limit: tokens a second that reading the weights once a token allows one request; 0 if unknown.
    """

    version: str
    models: list[str]
    root: str
    is_healthy: bool
    device: str
    max_model_len: int
    max_num_seqs: int
    cache_tokens: int
    decode_limit: float
    decisions: list[DecisionEntry]


def console_status(frontend: Frontend) -> ConsoleStatus:
    """The server at this moment."""
    info = frontend.engine.info
    return ConsoleStatus(
        version=__version__,
        models=frontend.model_names,
        root=frontend.engine.model_name,
        is_healthy=frontend.engine.is_healthy,
        device=info.device,
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_num_seqs,
        cache_tokens=info.num_blocks * info.block_size,
        decode_limit=info.decode_limit,
        decisions=[msgspec.convert(decision, DecisionEntry) for decision in info.decisions],
    )
