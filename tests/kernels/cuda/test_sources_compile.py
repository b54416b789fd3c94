"""The package's sources compile for every choice of constants that models make: on machines without a GPU too."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from gemm_shapes import MODEL_SHAPES

from octavo.kernels.cuda.attention import AttentionForm, attention_kernel
from octavo.kernels.cuda.attention import choose_tile as choose_attention_tile
from octavo.kernels.cuda.gemm import GemmForm, gemm_kernel
from octavo.kernels.cuda.gemm_tiles import SlicedTile, choose_tile
from octavo.kernels.cuda.grouped_gemm import grouped_gemm_kernel
from octavo.kernels.cuda.grouped_gemm_tiles import choose_tile as choose_grouped_tile
from octavo.kernels.cuda.kernel import CudaKernel, compile_kernel
from octavo.kernels.cuda.nvrtc import Nvrtc

FLOAT8 = torch.float8_e4m3fn
NUM_SMS = 132
MOST_SPILLED = {"gemm": 48, "sliced_gemm": 0, "grouped_gemm": 96}
"""Bytes of a thread: a few addresses that wait in memory for a tile's end. A tile of sums has hundreds."""


def forms(position: int, activation: str) -> Iterator[GemmForm]:
    """What the GEMM at this position in a layer computes: the first and third read norms, the others add.

    Of float8, those with a gate may round their outputs.
    """
    for is_joined in (False, True):
        is_normed, is_added = is_joined and position in (0, 2), is_joined and position in (1, 3)
        yield GemmForm(activation, torch.bfloat16, torch.bfloat16, is_normed=is_normed, is_added=is_added)
        if not is_joined or activation != "none":
            yield GemmForm(activation, FLOAT8, torch.bfloat16, is_rounded=is_joined)


def gemm_kernels() -> list[CudaKernel]:
    """The kernels of all models' GEMMs."""
    found: dict[CudaKernel, None] = {}
    for num_rows in range(8, 520, 8):
        for shapes in MODEL_SHAPES.values():
            for position, (num_weights, num_features, activation) in enumerate(shapes):
                for form in forms(position, activation):
                    tile = choose_tile(
                        num_rows,
                        num_weights,
                        num_features,
                        is_gated=activation != "none",
                        is_float8=form.dtype is FLOAT8,
                        num_sms=NUM_SMS,
                    )
                    if tile is not None and (not form.is_rounded or tile.can_meet(num_rows, num_weights, NUM_SMS)):
                        found.setdefault(gemm_kernel(tile, form))
    for activation in ("silu", "gelu_tanh"):
        many = choose_tile(8192, 24576, 4096, is_gated=True, is_float8=False, num_sms=NUM_SMS)
        assert isinstance(many, SlicedTile)
        found.setdefault(gemm_kernel(many, GemmForm(activation, torch.bfloat16, torch.bfloat16)))
    # Outputs of the other type change a few instructions of each kernel.
    first = next(iter(found))
    constants = tuple((name, 1 if name == "HALF" else value) for name, value in first.constants)
    return [*found, replace(first, constants=constants)]


def attention_kernels() -> list[CudaKernel]:
    """The kernels of attention for models' heads and numbers of rows."""
    found: dict[CudaKernel, None] = {}
    for head_dim in (64, 128):
        for group in (1, 2, 3, 4, 7, 8):
            form = AttentionForm(head_dim, group, group != 3, torch.float16 if group == 1 else torch.bfloat16)
            for num_programs in (4, 8, 16, 32, 64, 128, 256):
                for max_len in (1024, 40960):
                    tile = choose_attention_tile(form, num_programs, max_len, NUM_SMS)
                    if tile is not None:
                        found.setdefault(attention_kernel(form, tile))
    return list(found)


def grouped_kernels() -> list[CudaKernel]:
    """Those with packed weights."""
    found: dict[CudaKernel, None] = {}
    for num_rows in (32, 64, 128, 192, 256):
        for shapes in MODEL_SHAPES.values():
            for position, (num_weights, num_features, activation) in enumerate(shapes):
                is_gated = activation != "none"
                tile = choose_grouped_tile(num_rows, num_weights, num_features, is_gated=is_gated, num_sms=NUM_SMS)
                for form in forms(position, activation):
                    if tile is not None and form.dtype is not FLOAT8:
                        found.setdefault(grouped_gemm_kernel(tile, form))
    first = next(iter(found))
    constants = tuple((name, 1 if name == "HALF" else value) for name, value in first.constants)
    return [*found, replace(first, constants=constants)]


def described(kernel: CudaKernel) -> str:
    return f"{kernel.name}-" + "-".join(f"{name.lower()}{value}" for name, value in kernel.constants)


@pytest.mark.long
@pytest.mark.sample(4)
@pytest.mark.parametrize("kernel", [*gemm_kernels(), *grouped_kernels()], ids=described)
def test_gemm_compiles_well(kernel: CudaKernel, nvrtc: Nvrtc) -> None:
    """Sums stay in registers, and the tensor cores' instructions overlap."""
    log = compile_kernel(kernel, nvrtc).log
    spilled = re.search(r"(\d+) bytes spill stores", log)
    assert spilled is not None, log
    assert int(spilled[1]) <= MOST_SPILLED[kernel.name], log
    assert "serializ" not in log, log
    assert "warning" not in log, log
    assert kernel.shared_bytes <= 227 << 10


@pytest.mark.long
@pytest.mark.sample(4)
@pytest.mark.parametrize("kernel", attention_kernels(), ids=described)
def test_attention_compiles_well(kernel: CudaKernel, nvrtc: Nvrtc) -> None:
    """Sums stay in registers."""
    log = compile_kernel(kernel, nvrtc).log
    assert " 0 bytes spill stores" in log, log
    assert "warning" not in log, log
