"""Runs a model of the transformers library once on the meta device, to see what its attention layers ask for.

Nothing is computed: tensors there have shapes and no values. So what the trace accepts does not wait for the device
either, and can be captured in graphs.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from octavo.errors import UnsupportedModelError
from octavo.hub.families.generic import not_served
from octavo.hub.model_config import ModelConfig
from octavo.models.generic.behaviour import Rotation, rotation_of
from octavo.models.generic.flow import Flow
from octavo.models.generic.library import NO_INTERFACE, empty_model
from octavo.models.generic.locality import NUM_TOKENS, TokenLocality
from octavo.models.generic.masks import Mask, read_mask
from octavo.models.generic.rebind import calls, original, rebind
from octavo.models.generic.rotary import fix_frequencies

TRACE = "octavo-trace"
ROTARY = "apply_rotary_pos_emb"
"""What the library's files call the function that rotates queries and keys."""

SINKS = "s_aux"
"""The interface's name of attention sinks, a logit per head."""
_HARMLESS = ("position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k")
_SOFTCAPS = ("softcap", "logits_soft_cap")


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What one call of attention gets.

    Attributes:
        name: the calling module's path, with a number where it calls more than once.
        module: the calling module's path.
        key_dim, value_dim: sizes of a head's key and value.
        window: number of tokens that a query attends to, itself included; None for all.
        rotation: what the caller's :data:`ROTARY` does to queries and keys just before, if nothing else happens to them
            there and kernels can do it: pairs that are neighbours are those of linear layers' outputs. Else None.
        sources: paths of the modules whose results are its queries and keys, before they are rotated if they are; None
            if there are none for both, or if anything else reads what they return.
    """

    name: str
    module: str
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    softcap: float | None
    window: int | None
    rotation: Rotation | None = None
    sources: tuple[str, str] | None = None


@dataclass(slots=True)
class Trace:
    """What a run of a model showed.

    Attributes:
        attention: its calls of attention, in order.
        shared_inputs: linear layers of one module that read the same tensor, by their paths, in order.
        joined_norms: modules without others inside that get sums of tensors which nothing else reads.
        last_readers: modules without others inside whose input nothing reads after them.
        input_sizes: last dimensions of what modules without others inside get.
        unread_firsts: modules without others inside that return several tensors, the first of which nothing reads.
        deferrable: modules without others inside that could as well run where a linear layer, or one of those, reads
            their result: they are the first to read it, and until it is read for the last time, nothing else reads or
            changes what the module gets.
    """

    attention: list[AttentionCall] = field(default_factory=list)
    shared_inputs: list[tuple[str, ...]] = field(default_factory=list)
    joined_norms: frozenset[str] = frozenset()
    last_readers: frozenset[str] = frozenset()
    unread_firsts: frozenset[str] = frozenset()
    input_sizes: Mapping[str, int] = field(default_factory=dict)
    deferrable: frozenset[str] = frozenset()


def trace(config: ModelConfig, max_positions: int) -> Trace:
    """Trace a model.

    Args:
        max_positions: maximum sequence length in tokens.

    Raises:
        UnsupportedModelError: the model does something that Octavo cannot; the message says what.
    """
    model = empty_model(config, TRACE, "meta")
    fix_frequencies(model.base_model, config, max_positions)
    flow = Flow(model.base_model)
    tracer = _Tracer(config.architecture, model.base_model, flow, is_encoder=config.is_encoder)
    positions = torch.empty(1, NUM_TOKENS, dtype=torch.int64, device="meta")
    token_ids, padding = torch.empty_like(positions), torch.ones_like(positions)
    locality = TokenLocality(positions, counts_tokens=not config.is_encoder)
    inputs: dict[str, Any] = {"input_ids": token_ids, "attention_mask": padding, "position_ids": positions}
    inputs |= {"token_type_ids": token_ids} if config.is_encoder and takes(model, "token_type_ids") else {}
    inputs |= {} if config.is_encoder else {"use_cache": False}
    try:
        with torch.inference_mode(), torch.device("meta"), tracer, flow, locality:
            model.base_model(**inputs)
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever code of many authors does without values
        raise not_served(config.architecture, _reason(error)) from error
    if locality.complaint:
        raise not_served(config.architecture, locality.complaint)
    if not tracer.calls:
        raise not_served(config.architecture, "it does not call the library's attention interface")
    return Trace(
        tracer.found(),
        flow.shared_inputs(),
        flow.joined_norms(),
        flow.last_readers(),
        flow.unread_firsts(),
        flow.input_sizes(),
        flow.deferrable(),
    )


def takes(model: nn.Module, name: str) -> bool:
    """Whether a model's forward pass has an argument of a name."""
    return name in inspect.signature(type(model).forward).parameters


def _reason(error: Exception) -> str:
    """Why a model does not run without values."""
    if error.args == (TRACE,):
        return NO_INTERFACE
    if repr(Mask.__name__) in str(error):
        return "it computes with attention masks, which are not made here"
    line = str(error).strip().partition("\n")[0][:120]
    return f"it needs values of tensors on the host, or does not run ({type(error).__name__}: {line})"


@dataclass(slots=True)
class _Rotated:
    """Queries and keys that were rotated last, in the usual way."""

    module: str
    inputs: tuple[torch.Tensor, torch.Tensor]
    results: tuple[torch.Tensor, torch.Tensor]
    rotation: Rotation


class _Tracer:
    """Takes the calls of attention of one model while it is entered."""

    current: "_Tracer | None" = None

    def __init__(self, architecture: str, base: nn.Module, flow: Flow, *, is_encoder: bool) -> None:
        self._architecture = architecture
        self._flow = flow
        self._is_encoder = is_encoder
        self._paths = {module: name for name, module in base.named_modules()}
        self._rotating = [module for module in base.modules() if calls(module, ROTARY)]
        self._rotated: _Rotated | None = None
        self._count: Counter[str] = Counter()
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._unrotated: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.calls: list[AttentionCall] = []

    def found(self) -> list[AttentionCall]:
        """The calls, once the run has ended."""
        if self._is_encoder or len({id(key) for key in self._keys}) < len(self._keys):
            # A key that later layers read, too, must be normed and rotated where it is made. Encoders' attention does
            # neither.
            return [replace(call, rotation=None) for call in self.calls]
        calls = zip(self.calls, self._unrotated, self._values, strict=True)
        found = [replace(call, sources=self._sources(*unrotated, value)) for call, unrotated, value in calls]
        left = {call.module for call in found if not self._can_rotate(call)}
        return [replace(call, rotation=None, sources=None) if call.module in left else call for call in found]

    def _sources(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[str, str] | None:
        of_query, of_key, of_value = map(self._flow.leaf_behind, (query, key, value))
        return None if of_query is None or of_key is None or of_value in (of_query, of_key) else (of_query, of_key)

    def _can_rotate(self, call: AttentionCall) -> bool:
        """Whether a call's rotation, if there is one, can be left to kernels."""
        if call.rotation is None or not call.rotation.is_interleaved:
            return True
        return call.sources is not None and all(map(self._flow.is_linear, call.sources))

    def __enter__(self) -> "_Tracer":
        _Tracer.current = self
        for module in self._rotating:
            rebind(module, ROTARY, partial(self._rotate, self._paths[module], original(module, ROTARY)))
        return self

    def __exit__(self, *exception: Any) -> None:
        _Tracer.current = None

    def _rotate(self, path: str, function: Callable[..., Any], *tensors: Any, **options: Any) -> Any:
        if len(tensors) == 4 and not options:
            query, key, cos, _ = tensors
            is_one_row = cos.dim() == 3 and len(cos) == 1
            rotation = rotation_of(function, query.shape[-1], cos.shape[-1]) if is_one_row else None
            if rotation is not None:
                if self._rotated is not None:
                    self._flow.note_reads(self._rotated.inputs)
                with self._flow.paused():  # its inputs count as read if no attention gets its results
                    rotated = function(*tensors)
                self._rotated = _Rotated(path, (query, key), rotated, rotation)
                return rotated
        return function(*tensors, **options)

    def add(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, options: Any
    ) -> None:
        """Take a call, or reject the model."""
        path = self._paths[module]
        is_free = options.get("is_causal", getattr(module, "is_causal", True)) is False
        is_bidirectional = mask.is_bidirectional if isinstance(mask, Mask) else self._is_encoder and is_free
        self._check(query, key, value, mask, options, is_bidirectional or is_free)
        window = mask.window if isinstance(mask, Mask) else None
        if isinstance(mask, Mask) and mask.complaint:
            raise not_served(self._architecture, mask.complaint)
        self._keys.append(key)
        self._values.append(value)
        rotated, self._rotated = self._rotated, None
        if rotated is not None and not (rotated.module == path and self._are_rotated(rotated, query, key)):
            self._flow.note_reads(rotated.inputs)
            rotated = None
        self._unrotated.append((query, key) if rotated is None else rotated.inputs)
        count, self._count[path] = self._count[path], self._count[path] + 1
        scale = options.get("scaling")
        self.calls.append(
            AttentionCall(
                name=f"{path}.{count}" if count else path,
                module=path,
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                scale=key.shape[3] ** -0.5 if scale is None else float(scale),
                softcap=next((options[name] for name in _SOFTCAPS if options.get(name) is not None), None),
                window=window,
                rotation=None if rotated is None else rotated.rotation,
            )
        )

    def _are_rotated(self, rotated: _Rotated, query: torch.Tensor, key: torch.Tensor) -> bool:
        """Whether queries and keys are what has been rotated, or that and the rest of the same heads."""
        return all(
            heads is part or self._flow.is_completed(heads, part, source)
            for heads, part, source in zip((query, key), rotated.results, rotated.inputs, strict=True)
        )

    def _check(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        options: Any,
        is_bidirectional: bool,
    ) -> None:
        unusual = [name for name, option in options.items() if _asks_for_more(name, option, query.shape[1])]
        reasons = {
            "its keys are not those of its tokens": key.shape[2] != query.shape[2] or value.shape[2] != query.shape[2],
            "its key/value heads do not divide its heads": query.shape[1] % key.shape[1] != 0,
            "it builds attention masks of its own": mask is not None and not isinstance(mask, Mask),
            "its tokens attend to later ones": not self._is_encoder and is_bidirectional,
            "its tokens do not attend to later ones": self._is_encoder and not is_bidirectional,
            f"its attention takes {', '.join(unusual)}, which is not supported": bool(unusual),
        }
        for reason, applies in reasons.items():
            if applies:
                raise not_served(self._architecture, reason)


def _asks_for_more(name: str, option: Any, num_heads: int) -> bool:
    """Whether an option changes what attention computes in a way that is not supported: biases, chosen keys."""
    if not isinstance(option, torch.Tensor) or name in _HARMLESS:
        return False
    return name != SINKS or tuple(option.shape) != (num_heads,)


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """The library's attention interface, ``[1, H, T, D] → [1, T, H, D]``."""
    assert _Tracer.current is not None, "a model that is traced"
    _Tracer.current.add(module, query, key, value, attention_mask, options)
    size = 1, query.shape[2], query.shape[1], value.shape[3]
    return torch.empty(size, dtype=query.dtype, device=query.device), None


ALL_ATTENTION_FUNCTIONS.register(TRACE, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(TRACE, read_mask)
