"""Beam search: parameters and results, with vLLM's names."""

import math
from dataclasses import dataclass, field

import msgspec

from octavo.errors import InvalidRequestError
from octavo.records.logprobs import SampleLogprobs
from octavo.records.prompts import TokensPrompt
from octavo.records.sampling_params import MAX_TOKENS_LIMIT
from octavo.records.structured import StructuredOutputsParams

MAX_BEAM_WIDTH = 256
MAX_LENGTH_PENALTY = 100.0


class BeamSearchParams(msgspec.Struct, omit_defaults=True):
    """Parameters of one search.

    Attributes:
        beam_width: number of texts that are kept in each step, and returned.
        max_tokens: maximum number of tokens to generate.
        ignore_eos: treat end-of-sequence tokens as any other.
        temperature: accepted for compatibility; texts are compared by the model's own log-probabilities.
        length_penalty: a text's score is the sum of its log-probabilities divided by its number of generated tokens to
            this power; above 0 favours long texts, 0 compares sums.
        include_stop_str_in_output: include the end-of-sequence token in the text.
        skip_special_tokens: leave special tokens out of the text.
        structured_outputs, watermarking, allowed_token_ids: rejected with an error.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True
    watermarking: bool | None = None
    allowed_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        self.verify()

    def verify(self) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: names the first field that is out of range or not supported.
        """
        for name, value, limit in (
            ("beam_width", self.beam_width, MAX_BEAM_WIDTH),
            ("max_tokens", self.max_tokens, MAX_TOKENS_LIMIT),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise InvalidRequestError(f"{name} must be a whole number between 1 and {limit}, got {value!r}.", name)
        penalty = self.length_penalty
        is_number = isinstance(penalty, int | float) and not isinstance(penalty, bool)
        if not is_number or not math.isfinite(penalty) or abs(penalty) > MAX_LENGTH_PENALTY:
            raise InvalidRequestError(
                f"length_penalty must be between {-MAX_LENGTH_PENALTY:g} and {MAX_LENGTH_PENALTY:g}, got {penalty!r}.",
                "length_penalty",
            )
        for name in ("structured_outputs", "watermarking", "allowed_token_ids"):
            if getattr(self, name):
                raise InvalidRequestError(f"{name} does not go with beam search.", name)


@dataclass(slots=True)
class BeamSearchSequence:
    """One of the best texts.

    Attributes:
        tokens: prompt and generated tokens, an end-of-sequence token included.
        logprobs: per generated token, token id → :class:`Logprob`: the token first, then the most likely ones.
        lora_request: always None.
        cum_logprob: sum over the generated tokens.
        text: all tokens as text, including the prompt's; None without a tokenizer.
        finish_reason: ``stop`` or ``length``.
        stop_reason: the token that ended the text, if any.
    """

    orig_prompt: TokensPrompt
    tokens: list[int]
    logprobs: SampleLogprobs = field(default_factory=list)
    lora_request: None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best texts for one prompt, the best first."""

    sequences: list[BeamSearchSequence]
