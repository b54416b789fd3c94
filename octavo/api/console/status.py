"""``/console/status``: data for the page that is not in the metrics."""

import msgspec

from octavo import __version__
from octavo.api.frontend import Frontend
from octavo.api.request_body import BARE_PROMPT_LIMIT

# Tokens of an answer where neither the user nor the model's generation config names a limit, as in `octavo chat`: a
# small model that repeats itself ends soon, and the page can continue a cut answer. Reasoning takes more.
ANSWER_LIMIT = 512
REASONING_ANSWER_LIMIT = 8192


class DecisionEntry(msgspec.Struct):
    """A setting in force, and why."""

    name: str
    value: str
    reason: str


class SamplingDefaults(msgspec.Struct):
    """What applies to a chat request that names no value; fields as in the request."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


class ConsoleStatus(msgspec.Struct):
    """The server as the page describes it.

    Attributes:
        models: names that requests may use.
        device: a description; empty if the engine reports none.
        answer_limit: tokens of an answer that the page asks for unless its user names a limit.
        decode_limit: upper bound on tokens/s of one request, from reading the weights once per token; 0 if unknown.
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
    sampling: SamplingDefaults
    answer_limit: int


def console_status(frontend: Frontend) -> ConsoleStatus:
    """The server at this moment."""
    info = frontend.engine.info
    defaults = frontend.engine.input_processor.default_sampling_params()
    limit = defaults.max_tokens
    if limit in (None, BARE_PROMPT_LIMIT):
        limit = REASONING_ANSWER_LIMIT if frontend.formats().reasoning is not None else ANSWER_LIMIT
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
        sampling=msgspec.convert(defaults, SamplingDefaults, from_attributes=True),
        answer_limit=min(limit, max(1, info.max_model_len // 2)),
        decisions=[msgspec.convert(decision, DecisionEntry) for decision in info.decisions],
    )
