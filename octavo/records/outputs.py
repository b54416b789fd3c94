"""Results of text generation, with vLLM's names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.records.logprobs import PromptLogprobs, SampleLogprobs


@dataclass(slots=True)
class RequestStateStats:
    """Times and counts of one request; times in seconds on the epoch clock.

    Attributes:
        is_corrupted: exists for compatibility; a request with NaN logits ends with an error.
    """

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    is_corrupted: bool = False


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: index among the ``n`` completions.
        text: generated text (whole, or the new part with ``RequestOutputKind.DELTA``).
        token_ids: generated token ids (all, or the new ones).
        cumulative_logprob: sum over the sampled tokens, if logprobs were requested.
        logprobs: per generated token, token id → :class:`Logprob`.
        finish_reason: ``stop``, ``length``, ``repetition``, ``abort``, ``error`` or None while running.
        stop_reason: the stop string or stop token id; None for end of sequence.
        routed_experts: ``[tokens, layers, experts per token]`` int16, with ``enable_return_routed_experts`` once the
            completion has ended: the experts of all tokens of the prompt (but for its first
            ``routed_experts_prompt_start``) and of the text but the last, −1 in layers without experts.
        lora_request, sampling_mask, spec_decode_metrics, weight_versions: always None; they exist for
            code written for vLLM.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    routed_experts: NDArray[np.int16] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: None = None
    sampling_mask: None = None
    spec_decode_metrics: None = None
    weight_versions: None = None

    def finished(self) -> bool:
        """Whether the completion has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its completions.

    Attributes:
        prompt: the text, if the prompt was given as text.
        prompt_logprobs: None for the first position, then token id → :class:`Logprob`.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        error: why the request failed, if it did.
        is_refused: whether the error is the request's fault.

    Fields without a description are always None; they exist for code written for vLLM.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    lora_request: None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    num_cache_creation_tokens: int | None = None
    prompt_token_id_logprobs: None = field(default=None, kw_only=True)
    kv_transfer_params: dict[str, Any] | None = field(default=None, kw_only=True)
    ec_transfer_params: dict[str, Any] | None = field(default=None, kw_only=True)
    error: str | None = field(default=None, kw_only=True)
    is_refused: bool = field(default=False, kw_only=True)
