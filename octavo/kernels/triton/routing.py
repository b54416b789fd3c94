"""The choice of each token's experts; :mod:`octavo.kernels.triton.routing_kernel` has the kernels.

One launch computes logits, a second chooses. Up to 512 tokens the first computes parts of logits only, each by a
program of its own, and the second adds them up.

Routers are float32, but most checkpoints hold them in 16 bits. Those that lose nothing by it are multiplied in the type
of the tokens: sums are float32 all the same, at half the bytes and a sixth of the instructions.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
import triton

from octavo.kernels.deferred_choice import Chosen, DeferredChoice
from octavo.kernels.deferred_norm import DeferredNorm, rows_of
from octavo.kernels.routing import LogitsOp, RouterOp
from octavo.kernels.routing import choose_experts as reference
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch
from octavo.kernels.triton.routing_kernel import add_parts_kernel, choose_kernel, logits_kernel, normed_logits_kernel
from octavo.kernels.triton.stream_norm import norm_arguments
from octavo.records.experts import Routing

_PART_SIZE = 128
"""Least features of a part; a multiple of it if there would be more than ``_MAX_PARTS``."""

_MAX_PARTS = 32
_SMALL_BLOCK = 16
"""Tokens and experts of a program for up to so many tokens, where latency matters more than reuse."""

_SUM_BLOCK = 128
"""Logits of a program that adds up parts."""

MAX_SPLIT_TOKENS = 512
"""Tokens up to which each part has a program of its own."""

_MANY_TOKENS = 2048
"""Beyond so many, wide tiles have programs for all multiprocessors."""

_CHOSEN_AT_ONCE = 2
"""Of many tokens, so many share a program: one token's ends as soon as it has started."""


class LogitParts(NamedTuple):
    """How the sum over the features is divided, which depends on their number alone.

    Attributes:
        num_parts, size: parts and the features of one.
        block_k: features of a step.
    """

    num_parts: int
    size: int
    block_k: int


def choose_parts(num_features: int) -> LogitParts:
    """The parts of sums over so many features."""
    if num_features <= _PART_SIZE:
        block_k = max(MIN_DOT_SIZE, triton.next_power_of_2(num_features))
        return LogitParts(1, block_k, block_k)
    size = triton.cdiv(num_features, _PART_SIZE * _MAX_PARTS) * _PART_SIZE
    return LogitParts(triton.cdiv(num_features, size), size, _PART_SIZE)


RouterWeights = Mapping[torch.dtype, torch.Tensor]
"""Types of tokens → the weights to multiply them by, ``[E, hidden]`` of that type or float32."""


def router_weights(weight: torch.Tensor) -> RouterWeights:
    """Float32 weights, for tokens of each type; in that type if it holds them exactly."""
    weights = {torch.float32: weight}
    for dtype in (torch.bfloat16, torch.float16):
        narrow = weight.to(dtype)
        weights[dtype] = narrow if torch.equal(narrow.float(), weight) else weight
    return weights


def make_logits(weight: torch.Tensor, bias: torch.Tensor | None) -> LogitsOp:
    """A router's GEMM; see :func:`octavo.kernels.routing.make_logits`."""
    weights = router_weights(weight)
    return lambda x: router_logits(x, weights[x.dtype], bias)


def router_logits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A logit for each token and expert; see :data:`octavo.kernels.routing.LogitsOp`.

    Args:
        weight: ``[E, hidden]``, float32 or of the type of ``x``.
    """
    num_tokens, num_experts = len(x), len(weight)
    if num_tokens > MAX_SPLIT_TOKENS:
        return _whole_logits(x, weight, bias)
    logits = torch.empty(num_tokens, num_experts, dtype=torch.float32, device=x.device)
    if num_tokens:
        parts = _logits_by_part(x, weight)
        add_parts_kernel[(triton.cdiv(logits.numel(), _SUM_BLOCK),)](
            parts,
            bias,
            logits,
            logits.numel(),
            num_experts,
            NUM_PARTS=len(parts),
            BLOCK=_SUM_BLOCK,
            num_warps=4,
            **dependent_launch(x.device),
        )
    return logits


def make_router(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    correction: torch.Tensor | None,
    routing: Routing,
    *,
    deterministic: bool = False,
) -> RouterOp:
    """Logits and choice; see :func:`octavo.kernels.routing.make_router`."""
    if routing.score == "sparsemixer":
        logits = make_logits(weight, bias)
        return lambda x: reference.reference(logits(rows_of(x)), correction, routing)
    weights = router_weights(weight)
    return partial(
        _route, weights=weights, bias=bias, correction=correction, routing=routing, deterministic=deterministic
    )


def _route(
    x: torch.Tensor | DeferredNorm,
    weights: RouterWeights,
    bias: torch.Tensor | None,
    correction: torch.Tensor | None,
    routing: Routing,
    deterministic: bool,
) -> Chosen | DeferredChoice:
    if isinstance(x, DeferredNorm) and x.is_single and not deterministic:
        logits, places = _normed_logits(x, weights[x.dtype], routing.num_chosen)
        return DeferredChoice(logits, bias, correction, routing, places, _choose)
    x = rows_of(x)  # a norm of several rows adds up squares in another order
    weight = weights[x.dtype]
    if len(x) > MAX_SPLIT_TOKENS:
        return _choose(_whole_logits(x, weight, bias)[None], None, correction, routing)
    return _choose(_logits_by_part(x, weight), bias, correction, routing)


def choose_experts(
    logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's experts and their weights; see :func:`octavo.kernels.routing.choose_experts`."""
    if routing.score == "sparsemixer":
        return reference.reference(logits, correction, routing)
    return _choose(logits[None], None, correction, routing)


def _whole_logits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    logits = torch.empty(len(x), len(weight), dtype=torch.float32, device=x.device)
    _launch_logits(x, weight, bias, logits, is_split=False)
    return logits


def _logits_by_part(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``[parts, T, E]``, whose sums in order are the logits without a bias."""
    shape = (choose_parts(x.shape[1]).num_parts, len(x), len(weight))
    logits = torch.empty(shape, dtype=torch.float32, device=x.device)
    _launch_logits(x, weight, None, logits, is_split=True)
    return logits


def _normed_logits(norm: DeferredNorm, weight: torch.Tensor, num_chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`_logits_by_part` of one token, of whose norm the kernel computes rows and sum as well.

    Returns:
        Also the places of the choice, see :class:`DeferredChoice`.
    """
    x, num_experts = norm.x, len(weight)
    parts = choose_parts(x.shape[1])
    logits = torch.empty(parts.num_parts, 1, num_experts, dtype=torch.float32, device=x.device)
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    places = torch.empty(num_chosen, dtype=torch.int32, device=x.device)
    residual, scale, eps, total = norm_arguments(norm)
    normed_logits_kernel[triton.cdiv(num_experts, _SMALL_BLOCK), parts.num_parts](
        x,
        residual,
        scale,
        eps,
        total,
        normed,
        weight,
        logits,
        places,
        num_experts,
        SIZE=x.shape[1],
        BLOCK=triton.next_power_of_2(x.shape[1]),
        BLOCK_T=_SMALL_BLOCK,
        BLOCK_E=_SMALL_BLOCK,
        BLOCK_K=parts.block_k,
        PART_SIZE=parts.size,
        NUM_CHOSEN=num_chosen,
        CHOSEN_BINS=triton.next_power_of_2(num_chosen),
        num_warps=4,
        **dependent_launch(x.device),
    )
    norm.settle(norm.total, normed)
    return logits, places


def _launch_logits(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, logits: torch.Tensor, *, is_split: bool
) -> None:
    num_tokens, num_experts = len(x), len(weight)
    if not num_tokens:
        return
    block_t, block_e, num_warps = _choose_tile(num_tokens, num_experts, is_wide=weight.dtype == torch.float32)
    parts = choose_parts(x.shape[1])
    tiles = (triton.cdiv(num_tokens, block_t), triton.cdiv(num_experts, block_e))
    logits_kernel[(*tiles, parts.num_parts if is_split else 1)](
        x,
        weight,
        bias,
        logits,
        num_tokens,
        num_experts,
        x.shape[1],
        x.stride(0),
        BLOCK_T=block_t,
        BLOCK_E=block_e,
        BLOCK_K=parts.block_k,
        PART_SIZE=parts.size,
        NUM_PARTS=parts.num_parts,
        IS_SPLIT=is_split,
        num_warps=num_warps,
        num_stages=3,
        **dependent_launch(x.device),
    )


def _choose_tile(num_tokens: int, num_experts: int, *, is_wide: bool) -> tuple[int, int, int]:
    """Tokens, experts and warps of a program; tuned on an H200.

    Tiles of 64 tokens would run on other tensor-core instructions, whose sums have other bits.

    Args:
        is_wide: whether weights are float32.
    """
    if num_tokens <= _SMALL_BLOCK:
        return _SMALL_BLOCK, _SMALL_BLOCK, 4
    if num_experts <= 32:
        return 32, _SMALL_BLOCK, 4
    if is_wide:
        return 32, 64, 8
    if num_tokens <= MAX_SPLIT_TOKENS:
        return 32, 64, 4
    return (16, 64, 4) if num_tokens <= _MANY_TOKENS else (32, 128, 4)


def _choose(
    parts: torch.Tensor, bias: torch.Tensor | None, correction: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """The choice by ``[parts, T, E]``."""
    num_parts, num_tokens, num_experts = parts.shape
    chosen = torch.empty(num_tokens, routing.num_chosen, dtype=torch.int64, device=parts.device)
    weights = torch.empty(num_tokens, routing.num_chosen, dtype=torch.float32, device=parts.device)
    if num_tokens:
        at_once = _CHOSEN_AT_ONCE if num_tokens > _MANY_TOKENS else 1
        choose_kernel[(triton.cdiv(num_tokens, at_once),)](
            parts,
            bias,
            correction,
            chosen,
            weights,
            num_tokens,
            routing.scale,
            NUM_PARTS=num_parts,
            NUM_EXPERTS=num_experts,
            NUM_BINS=triton.next_power_of_2(num_experts),
            NUM_CHOSEN=routing.num_chosen,
            CHOSEN_BINS=triton.next_power_of_2(routing.num_chosen),
            NUM_GROUPS=routing.num_groups,
            GROUP_BINS=triton.next_power_of_2(routing.num_groups),
            NUM_OPEN=routing.num_open_groups,
            NUM_RANKED=routing.num_ranked,
            SCORE=routing.score,
            RENORMALISES=routing.renormalises,
            AT_ONCE=at_once,
            num_warps=1 if num_experts <= 128 else 4,
            **dependent_launch(parts.device),
        )
    return chosen, weights
