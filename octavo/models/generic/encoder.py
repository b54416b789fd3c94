"""An encoder of the transformers library, put together from its modules and Octavo's attention and GEMMs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from octavo.hub.encoder_config import EncoderFields
from octavo.hub.families.generic import not_served
from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionSpec
from octavo.kernels.packed_attention import PackedPlan, packed_attention
from octavo.layers.build import Build
from octavo.layers.weights import collect_slots
from octavo.models.generic.attention import joined_heads
from octavo.models.generic.division import Division, division_of
from octavo.models.generic.library import empty_model
from octavo.models.generic.memory import allocate
from octavo.models.generic.names import CheckpointConversion
from octavo.models.generic.replace import replace_layers
from octavo.models.generic.rotary import fix_frequencies
from octavo.models.generic.trace import AttentionCall, takes, trace
from octavo.models.loading.checkpoint import Checkpoint
from octavo.models.pooled import EncoderBase

ATTENTION = "octavo-encoder"
"""The name under which the interface knows it. It has no mask function, so no masks are made."""

_CALLS = "octavo_calls"
_PROBE = 7
"""Tokens of the run that shows where positions begin."""


class GenericEncoder(EncoderBase):
    """The library's layers under ``model``.

    Attributes:
        conversion: how checkpoints' names and tensors become the library's.

    Raises:
        UnsupportedModelError: the model does something that Octavo cannot; the message says what.
        ConfigError: it cannot be divided over so many devices.
    """

    checkpoint_names: ClassVar[Mapping[str, str]] = {"model.": ""}

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        super().__init__()
        own = config.own_as(EncoderFields)
        self.weight_prefix = own.prefix
        self._first_position = own.position_offset
        traced = trace(config, max_positions)
        _check_positions(config, own.position_offset)
        whole = empty_model(config, ATTENTION, "cpu")
        self._takes_segments = takes(whole, "token_type_ids") and own.type_vocab_size > 0
        self._last_segment = own.type_vocab_size - 1
        division = division_of(whole.config, config.architecture, traced, build.tensor_parallel)
        self.conversion = CheckpointConversion(whole)
        fix_frequencies(whole, config, max_positions)
        replace_layers(whole, build, traced, division)
        self.model = allocate(whole, whole._keep_in_fp32_modules_strict)
        self._calls = _EncoderCalls(traced.attention, division)
        for call in traced.attention:
            object.__setattr__(whole.get_submodule(call.module), _CALLS, self._calls)  # not a submodule

    def convert_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """See :class:`octavo.models.loading.load.ReadsConverted`; heads for other tasks are left alone."""
        from octavo.models.loading.converted import ConvertedCheckpoint

        parts = {self.weight_prefix.removesuffix("."), *(name for name, _ in self.model.named_children())}
        heads = {name.partition(".")[0] for name in checkpoint.shapes()} - parts
        self.unused_weights = tuple(f"{head}." for head in sorted(heads))
        return ConvertedCheckpoint(checkpoint, self.conversion, collect_slots(self))

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor, plan: PackedPlan
    ) -> torch.Tensor:
        inputs = {"input_ids": token_ids[None], "position_ids": positions[None] + self._first_position}
        if self._takes_segments:
            inputs["token_type_ids"] = segments[None].clamp(max=self._last_segment)
        self._calls.begin(plan)
        hidden: torch.Tensor = self.model(**inputs).last_hidden_state[0]
        return hidden


class _EncoderCalls:
    """The calls of attention of a model, in the order in which a step makes them."""

    def __init__(self, calls: Sequence[AttentionCall], division: Division) -> None:
        self._calls = [(_spec(call, division), call.value_dim, call.window) for call in calls]
        self._plan: PackedPlan | None = None
        self._next = 0

    def begin(self, plan: PackedPlan) -> None:
        """Start a step."""
        self._plan, self._next = plan, 0

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The next call of the step, ``[1, H, T, D] → [1, T, H, D]``."""
        assert self._plan is not None, "a step runs"
        spec, value_dim, window = self._calls[self._next]
        self._next += 1
        joined = joined_heads(query, key, value, spec.head_dim, value.dtype)
        attended = packed_attention(joined, self._plan, spec, window)
        return attended.view(1, len(attended), -1, spec.head_dim)[..., :value_dim]


def _spec(call: AttentionCall, division: Division) -> AttentionSpec:
    return AttentionSpec(*division.heads(call), max(call.key_dim, call.value_dim), call.scale, call.softcap)


def _check_positions(config: ModelConfig, first: int) -> None:
    """Check the number that the library gives to a text's first token, where it has a table of positions.

    Token ids have values here, and whatever layers compute from them has none.
    """
    whole = empty_model(config, ATTENTION, "cpu")
    looked_up: list[torch.Tensor] = []

    def note(module: nn.Embedding, inputs: torch.Tensor) -> torch.Tensor:
        looked_up.append(inputs)
        return torch.empty(*inputs.shape, module.embedding_dim, device="meta")

    for module in whole.modules():
        if type(module) is nn.Embedding:
            vars(module)["forward"] = lambda ids, module=module: note(module, ids)
    padding = getattr(whole.config, "pad_token_id", None) or 0
    with torch.device("cpu"), torch.inference_mode():
        with suppress(Exception):  # behind the embeddings nothing has values; the trace tells more
            whole(input_ids=torch.full((1, _PROBE), 0 if padding else 1))
        counted = torch.arange(_PROBE)
        rows = [ids[0] for ids in looked_up if ids.dim() == 2 and not ids.is_meta]
        found = {int(row[0]) for row in rows if torch.equal(row - row[0], counted)}
    if found - {first}:
        raise not_served(config.architecture, f"its positions begin at {found.pop()}, where {first} was expected")


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    calls: _EncoderCalls = getattr(module, _CALLS)
    return calls.attend(query, key, value), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
