"""GEMMs of heads for a few tokens; see :mod:`octavo.kernels.head_linear`.

A program owns a slice of one head's weight, which it loads before it waits for the vectors. So that one token keeps the
whole device busy, a slice may have few outputs; then its warps divide the inputs among them. More tokens than a
decoding step has go to the library, as do types that tensor cores do not multiply exactly.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from octavo.kernels.head_linear import HeadLinear, PlainHeadLinear
from octavo.kernels.triton.launch import MIN_DOT_SIZE, dependent_launch, num_multiprocessors

_MAX_TOKENS = 64
"""Maximum number of tokens, of which two tiles read the weight twice."""
NUM_WARPS = 4


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
    is_split = num_outputs < MIN_DOT_SIZE * NUM_WARPS
    return HeadTile(
        MIN_DOT_SIZE if num_tokens <= MIN_DOT_SIZE else 2 * MIN_DOT_SIZE,
        num_outputs,
        min(block // MIN_DOT_SIZE, NUM_WARPS) if is_split else 1,
    )


def is_small(x: torch.Tensor) -> bool:
    """Whether there are kernels for so many vectors of this type."""
    return 0 < len(x) <= _MAX_TOKENS and x.element_size() == 2


class TritonHeadLinear(PlainHeadLinear):
    """By a kernel for up to ``_MAX_TOKENS`` tokens of 16-bit values, otherwise by the library."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if not is_small(x):
            return super().__call__(x, out)
        tile = choose_tile(len(x), self.weight.shape, num_multiprocessors(x.device))
        num_heads, outputs, _ = self.weight.shape
        num_slices = triton.cdiv(outputs, tile.num_outputs)
        _head_linear_kernel[(num_heads * num_slices, triton.cdiv(len(x), tile.num_tokens))](
            *self.arguments(x, out), **self.constants(tile), num_warps=NUM_WARPS, **dependent_launch(x.device)
        )
        return out

    def arguments(self, x: torch.Tensor, out: torch.Tensor) -> tuple[Any, ...]:
        """Arguments of :func:`multiply_slice` up to the constants."""
        assert x.stride(2) == out.stride(2) == 1
        return x, self.weight, out, len(x), *x.stride()[:2], *self.weight.stride(), *out.stride()[:2]

    def constants(self, tile: HeadTile) -> dict[str, int]:
        """Constants of :func:`multiply_slice`."""
        _, outputs, inputs = self.weight.shape
        return {
            "INPUTS": inputs,
            "OUTPUTS": outputs,
            "TOKENS": tile.num_tokens,
            "BLOCK_OUT": tile.num_outputs,
            "SPLITS": tile.num_splits,
            "PER_SPLIT": max(triton.next_power_of_2(inputs), MIN_DOT_SIZE) // tile.num_splits,
        }


def head_linear(weight: torch.Tensor) -> HeadLinear:
    """The form for this device; see :func:`octavo.kernels.head_linear.head_linear`."""
    return TritonHeadLinear(weight)


@triton.jit
def multiply_slice(
    head,
    slice_index,
    token_tile,
    x,  # [T, H, INPUTS]
    weight,  # [H, OUTPUTS, INPUTS]
    out,  # [T, H, OUTPUTS]
    num_tokens,
    x_stride,
    x_head_stride,
    weight_head_stride,
    weight_out_stride,
    weight_in_stride,
    out_stride,
    out_head_stride,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    SPLITS: tl.constexpr,
    PER_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute ``BLOCK_OUT`` outputs of one head for ``TOKENS`` tokens."""
    outputs = slice_index * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, None, :]
    splits = tl.arange(0, SPLITS)[:, None, None] * PER_SPLIT
    inputs = splits + tl.arange(0, PER_SPLIT)[None, :, None]
    weights_at = weight + head * weight_head_stride + inputs * weight_in_stride + outputs * weight_out_stride
    weights = tl.load(weights_at, (inputs < INPUTS) & (outputs < OUTPUTS), other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tokens = token_tile * TOKENS + tl.arange(0, TOKENS)
    inputs = splits + tl.arange(0, PER_SPLIT)[None, None, :]
    x_at = x + head * x_head_stride + tokens[None, :, None] * x_stride + inputs
    vectors = tl.load(x_at, (tokens[None, :, None] < num_tokens) & (inputs < INPUTS), other=0.0)
    if SPLITS > 1:  # a batched GEMM, of which each warp has a member
        results = tl.sum(tl.dot(vectors, weights), 0)
    else:
        results = tl.dot(tl.reshape(vectors, (TOKENS, PER_SPLIT)), tl.reshape(weights, (PER_SPLIT, BLOCK_OUT)))
    columns = slice_index * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    out_at = out + head * out_head_stride + tokens[:, None] * out_stride + columns
    tl.store(out_at, results.to(out.dtype.element_ty), (tokens[:, None] < num_tokens) & (columns < OUTPUTS))


@triton.jit(do_not_specialize=["num_tokens"])
def _head_linear_kernel(
    x,
    weight,
    out,
    num_tokens,
    x_stride,
    x_head_stride,
    weight_head_stride,
    weight_out_stride,
    weight_in_stride,
    out_stride,
    out_head_stride,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    SPLITS: tl.constexpr,
    PER_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program multiplies a tile of tokens by a slice of one head's weight; grid (heads · slices, tiles)."""
    num_slices: tl.constexpr = (OUTPUTS + BLOCK_OUT - 1) // BLOCK_OUT
    multiply_slice(
        tl.program_id(0) // num_slices, tl.program_id(0) % num_slices, tl.program_id(1), x, weight, out, num_tokens,
        x_stride, x_head_stride, weight_head_stride, weight_out_stride, weight_in_stride, out_stride, out_head_stride,
        INPUTS, OUTPUTS, TOKENS, BLOCK_OUT, SPLITS, PER_SPLIT, PDL,
    )  # fmt: skip
