"""GEMMs of heads for a few tokens; see :mod:`octavo.kernels.head_linear`.

A program owns a slice of one head's weight, which it loads before it waits for the vectors. So that one token keeps the
whole device busy, a slice may have few outputs; then its warps divide the inputs among them. More tokens than a
decoding step has go to the library, as do types that tensor cores do not multiply exactly.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.attention import RopeTables
from octavo.kernels.head_linear import HeadLinear, PlainHeadLinear
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch, num_multiprocessors
from octavo.kernels.triton.rotate import load_rotated, load_turns

_MAX_TOKENS = 64
"""Maximum number of tokens, of which two tiles read the weight twice."""
_NUM_WARPS = 4


class HeadTile(NamedTuple):
    """A program's work: tokens times outputs of one head, and into how many parts its warps divide the inputs."""

    num_tokens: int
    num_outputs: int
    num_splits: int


def choose_tile(num_tokens: int, weight: torch.Size, num_multiprocessors: int) -> HeadTile:
    """The tile for a weight ``[H, out, in]``.

    A thread holds 64 of the slice's weights, or 128 where there are still two programs per multiprocessor then.
    """
    _, outputs, inputs = weight
    block = max(triton.next_power_of_2(inputs), MIN_DOT_SIZE)
    is_large = weight.numel() >= 2 * num_multiprocessors * 16384
    num_outputs = min((16384 if is_large else 8192) // block, triton.next_power_of_2(outputs))
    num_outputs = max(num_outputs, MIN_DOT_SIZE)
    is_split = num_outputs < MIN_DOT_SIZE * _NUM_WARPS
    return HeadTile(
        MIN_DOT_SIZE if num_tokens <= MIN_DOT_SIZE else 2 * MIN_DOT_SIZE,
        num_outputs,
        min(block // MIN_DOT_SIZE, _NUM_WARPS) if is_split else 1,
    )


class TritonHeadLinear(PlainHeadLinear):
    """By a kernel for up to ``_MAX_TOKENS`` tokens of 16-bit values, otherwise by the library."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if not _is_small(x):
            return super().__call__(x, out)
        self._launch(x, out, None, None, is_interleaved=False)
        return out

    def with_rotation(
        self, x: torch.Tensor, rotary: torch.Tensor, rope: RopeTables, out: torch.Tensor, *, is_interleaved: bool
    ) -> torch.Tensor:
        """See :meth:`HeadLinear.with_rotation`; one launch for few tokens."""
        if not _is_small(x):
            return super().with_rotation(x, rotary, rope, out, is_interleaved=is_interleaved)
        self._launch(x, out, rotary, rope, is_interleaved=is_interleaved)
        return out

    def _launch(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rotary: torch.Tensor | None,
        rope: RopeTables | None,
        *,
        is_interleaved: bool,
    ) -> None:
        num_heads, outputs, inputs = self._weight.shape
        tile = choose_tile(len(x), self._weight.shape, num_multiprocessors(x.device))
        num_parts = triton.cdiv(outputs, tile.num_outputs) + (rotary is not None)
        assert x.stride(2) == out.stride(2) == 1
        _head_linear_kernel[(num_heads * num_parts, triton.cdiv(len(x), tile.num_tokens))](
            x, self._weight, out, len(x), *x.stride()[:2], *self._weight.stride(), *out.stride()[:2],
            **_rotation_arguments(rotary, rope),
            INPUTS=inputs, OUTPUTS=outputs, TOKENS=tile.num_tokens, BLOCK_OUT=tile.num_outputs,
            SPLITS=tile.num_splits, PER_SPLIT=max(triton.next_power_of_2(inputs), MIN_DOT_SIZE) // tile.num_splits,
            IS_INTERLEAVED=is_interleaved, num_warps=_NUM_WARPS, **dependent_launch(x.device),
        )  # fmt: skip


def head_linear(weight: torch.Tensor) -> HeadLinear:
    """The form for this device; see :func:`octavo.kernels.head_linear.head_linear`."""
    return TritonHeadLinear(weight)


def _is_small(x: torch.Tensor) -> bool:
    return 0 < len(x) <= _MAX_TOKENS and x.element_size() == 2


def _rotation_arguments(rotary: torch.Tensor | None, rope: RopeTables | None) -> dict[str, Any]:
    """Keyword arguments of the kernel for what stands behind the GEMMs' results; None for nothing."""
    if rotary is None or rope is None:
        names = ("rotary", "cos", "sin", "rotary_stride", "rotary_head_stride", "cos_stride", "sin_stride")
        return dict.fromkeys(names, None) | {"ROPE": 0, "ROTARY": 0, "BLOCK_ROPE": 1}
    cos, sin = rope
    assert rotary.stride(2) == cos.stride(2) == sin.stride(2) == 1
    return {
        "rotary": rotary,
        "cos": cos,
        "sin": sin,
        "rotary_stride": rotary.stride(0),
        "rotary_head_stride": rotary.stride(1),
        "cos_stride": cos.stride(0),
        "sin_stride": sin.stride(0),
        "ROPE": rotary.shape[2],
        "ROTARY": cos.shape[2],
        "BLOCK_ROPE": triton.next_power_of_2(rotary.shape[2]),
    }


@triton.jit(do_not_specialize=["num_tokens"])
def _head_linear_kernel(
    x,  # [T, H, INPUTS]
    weight,  # [H, OUTPUTS, INPUTS]
    out,  # [T, H, OUTPUTS + ROPE]
    num_tokens,
    x_stride,
    x_head_stride,
    weight_head_stride,
    weight_out_stride,
    weight_in_stride,
    out_stride,
    out_head_stride,
    rotary,  # [T, H, ROPE], or None
    cos,  # [T, ROTARY]
    sin,
    rotary_stride,
    rotary_head_stride,
    cos_stride,
    sin_stride,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROPE: tl.constexpr,
    ROTARY: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
    SPLITS: tl.constexpr,
    PER_SPLIT: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program computes a slice of one head's outputs for ``TOKENS`` tokens; grid (heads · slices, tiles of tokens).

    With ``ROPE``, one more program per head and tile rotates.
    """
    num_slices: tl.constexpr = (OUTPUTS + BLOCK_OUT - 1) // BLOCK_OUT
    num_parts: tl.constexpr = num_slices + (1 if ROPE else 0)
    head, part = tl.program_id(0) // num_parts, tl.program_id(0) % num_parts
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    is_token = tokens[:, None] < num_tokens
    out_at = out + head * out_head_stride + tokens[:, None] * out_stride
    if part < num_slices:
        columns = part * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
        splits = tl.arange(0, SPLITS)[:, None, None] * PER_SPLIT
        inputs, outputs = splits + tl.arange(0, PER_SPLIT)[None, :, None], columns[None, :, :]
        weights_at = weight + head * weight_head_stride + inputs * weight_in_stride + outputs * weight_out_stride
        weights = tl.load(weights_at, (inputs < INPUTS) & (outputs < OUTPUTS), other=0.0)
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        inputs = splits + tl.arange(0, PER_SPLIT)[None, None, :]
        x_at = x + head * x_head_stride + tokens[None, :, None] * x_stride + inputs
        vectors = tl.load(x_at, is_token[None, :, :] & (inputs < INPUTS), other=0.0)
        if SPLITS > 1:  # a batched GEMM, of which each warp has a member
            results = tl.sum(tl.dot(vectors, weights), 0)
        else:
            vectors = tl.reshape(vectors, (TOKENS, PER_SPLIT))
            results = tl.dot(vectors, tl.reshape(weights, (PER_SPLIT, BLOCK_OUT)))
        tl.store(out_at + columns, results.to(out.dtype.element_ty), is_token & (columns < OUTPUTS))
    elif ROPE:
        rope_dims = tl.arange(0, BLOCK_ROPE)[None, :]
        rows = tl.minimum(tokens, num_tokens - 1)[:, None]
        cosine, sine = load_turns(cos + rows * cos_stride, sin + rows * sin_stride, rope_dims, ROTARY)
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        rotary_at = rotary + head * rotary_head_stride + tokens[:, None] * rotary_stride
        mask = is_token & (rope_dims < ROPE)
        rotated = load_rotated(rotary_at, rope_dims, mask, cosine, sine, ROPE, ROTARY, IS_INTERLEAVED, False)
        tl.store(out_at + OUTPUTS + rope_dims, rotated, mask)
