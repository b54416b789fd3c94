"""GEMMs with packed integers in Triton against their plain twin."""

from typing import Any

import pytest
import torch
from product_case import random

from octavo.kernels import grouped
from octavo.kernels.float4 import TABLES
from octavo.kernels.grouped import GroupedTensors, pack_codes, pack_unit
from octavo.kernels.triton import grouped as triton_grouped
from octavo.kernels.triton import grouped_bytes, grouped_stream, unit_gemm
from octavo.kernels.triton.grouped import GroupedLinear, choose_parts
from octavo.kernels.triton.grouped_terms import kind_of

# Triton's interpreter multiplies no bfloat16.
DTYPES = [torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
KINDS: dict[str, dict[str, Any]] = {
    "4-bits": {},
    "4-bits-zeros": {"zeros": "integers"},
    "4-bits-offsets": {"zeros": "floats", "group": 32},
    "8-bits": {"bits": 8},
    "8-bits-offsets": {"bits": 8, "zeros": "floats", "group": 32},
    "8-bits-groups-of-16": {"bits": 8, "group": 16},
    "8-bits-zeros": {"bits": 8, "zeros": "integers", "group": 64},
    "one-group": {"group": 256},
    "mxfp4": {"group": 32, "scales": "exponents"},
    "nvfp4": {"group": 16, "table": "nvfp4"},
    "nf4": {"group": 64, "table": "nf4"},
    "fp4-groups-of-32": {"group": 32, "table": "fp4"},
    "iq4": {"group": 32, "table": "iq4"},
}


def make(device: torch.device, num_outputs: int, num_inputs: int, kind: str) -> GroupedTensors:
    """A random weight."""
    chosen = {"bits": 4, "zeros": "", "group": 128} | KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    largest, groups = 1 << chosen["bits"], (num_outputs, num_inputs // chosen["group"])
    codes = torch.randint(largest, (num_outputs, num_inputs), generator=generator, dtype=torch.uint8)
    scales = (0.5 + torch.rand(groups, generator=generator)) / largest / num_inputs**0.5
    zeros = offsets = None
    if chosen["zeros"] == "integers":
        # Those of 4 bits count eighths.
        zeros = torch.randint(129 if largest == 16 else largest, groups, generator=generator, dtype=torch.uint8)
    elif chosen["zeros"]:
        offsets = (scales * torch.randn(groups, generator=generator)).half()
    packed = pack_codes(codes, pack_unit(chosen["group"])) if chosen["bits"] == 4 else codes
    if "scales" in chosen:
        scales = torch.randint(122, 126, groups, generator=generator, dtype=torch.uint8)
    table = factors = None
    if "table" in chosen:
        table = torch.tensor(TABLES[chosen["table"]])
        packed = pack_codes(codes, max(chosen["group"], 32))
        if chosen["table"] == "nvfp4":
            # All float8 values are scales, subnormal and negative ones too.
            scales = torch.randint(256, groups, generator=generator, dtype=torch.uint8)
            scales = torch.where(scales % 128 == 127, 1, scales).to(torch.uint8).view(torch.float8_e4m3fn)
            factors = (0.5 + torch.rand(num_outputs, generator=generator)) / 1000 / num_inputs**0.5
    tensors = (packed, scales, zeros, offsets, table, factors)
    found = [None if tensor is None else tensor.to(device) for tensor in tensors]
    return GroupedTensors(*found[:3], chosen["bits"], *found[3:])


def expected(weight: GroupedTensors, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    exact = x.double() @ grouped.dequantize(weight, torch.float64).T
    return exact if bias is None else exact + bias.double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 20, 70])
def test_products(kind: str, dtype: torch.dtype, num_rows: int, device: torch.device) -> None:
    weight = make(device, 72, 512, kind)
    bias = random(device, 2, 72, dtype=dtype) if num_rows > 1 else None
    x = random(device, 1, num_rows, 512, dtype=dtype)
    y = GroupedLinear(weight, bias, deterministic=False)(x)
    assert y.dtype is dtype
    torch.testing.assert_close(y.double(), expected(weight, x, bias), rtol=1e-2, atol=3e-2)


@pytest.mark.parametrize("kind", ["nvfp4", "nf4"])
def test_codes_of_a_table_are_multiplied_as_its_values(kind: str, device: torch.device) -> None:
    """Rows with a single one show every value: of few rows as the kernel's sums, of many as dequantised ones."""
    weight = make(device, 48, 512, kind)
    codes = grouped.unpack_codes(weight.codes, weight.unit)
    scales = weight.scales.double() * (1 if weight.factors is None else weight.factors.double()[:, None])
    values = weight.table.double()[codes.int()] * scales.repeat_interleave(weight.group, 1)
    torch.testing.assert_close(grouped.dequantize(weight, torch.float64), values, rtol=1e-6, atol=0)
    units = torch.eye(512, dtype=torch.float16, device=device)
    op = GroupedLinear(weight, None, deterministic=True)
    for rows in (units[5:21], units):
        torch.testing.assert_close(op(rows).double(), rows.double() @ values.T, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["nvfp4", "nf4", "fp4-groups-of-32"])
def test_kernels_for_hopper_leave_tables_alone(kind: str, device: torch.device) -> None:
    weight = make(device, 64, 512, kind)
    assert kind_of(weight) is None and grouped_stream.choose_tile(weight, 1, 132) is None
    assert not unit_gemm.reads(weight) and not grouped_bytes.reads(weight)


def test_float8_values(device: torch.device) -> None:
    codes = random(device, 1, 40, 256, dtype=torch.float32).to(torch.float8_e4m3fn)
    weight = GroupedTensors(codes, torch.rand(40, 2, device=device) / 16, None, 8)
    for num_rows in (3, 65):
        x = random(device, 2, num_rows, 256, dtype=DTYPES[-1])
        y = GroupedLinear(weight, None, deterministic=False)(x)
        torch.testing.assert_close(y.double(), expected(weight, x, None), rtol=1e-2, atol=3e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter has NumPy's order; run on an NVIDIA H200")
@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_bits_do_not_depend_on_the_others(kind: str, device: torch.device) -> None:
    weight = make(device, 72, 1024, kind)
    x = random(device, 1, 100, 1024, dtype=torch.float16)
    op = GroupedLinear(weight, None, deterministic=True)
    assert choose_parts(72, 8, 4) > 1
    alone = torch.cat([op(x[row : row + 1]) for row in (0, 40, 99)])
    assert torch.equal(op(x)[[0, 40, 99]], alone), "whole sums"
    assert torch.equal(op(x[:41])[[0, 40]], alone[:2]), "sums in parts"


def test_values_are_those_of_the_twin(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        weight = make(device, 72, 256, kind)
        values = grouped.dequantize(weight, torch.float16)
        torch.testing.assert_close(triton_grouped.dequantize(weight, 64, torch.float16, first=8), values[8:])
        op = GroupedLinear(weight, None, deterministic=False, rows_dtype=torch.float16)
        index = torch.tensor([71, 3, 3, 40], device=device)
        assert op.has_rows
        torch.testing.assert_close(op.rows(index), values[index])
        twin, _ = grouped.grouped_linear.reference(
            weight.codes, weight, None, deterministic=False, rows_dtype=torch.float16
        )
        assert torch.equal(twin.rows(index), values[index])
    monkeypatch.setattr(triton_grouped, "_SCRATCH_ELEMENTS", 64 * 256)
    x = random(device, 1, 66, 256, dtype=torch.float16)
    parts = GroupedLinear(weight, None, deterministic=False)(x)
    torch.testing.assert_close(parts.double(), expected(weight, x, None), rtol=1e-2, atol=3e-2)


def test_the_operation(device: torch.device) -> None:
    weight = make(device, 64, 128, "4-bits-zeros")
    op, is_copied = triton_grouped.grouped_linear(weight.codes, weight, None, deterministic=False)
    twin, _ = grouped.grouped_linear.reference(weight.codes, weight, None, deterministic=False)
    assert not is_copied
    for dtype in (torch.float32, torch.float16):
        x = random(device, 1, 2, 3, 128, dtype=dtype)
        torch.testing.assert_close(op(x), twin(x), rtol=1e-2, atol=1e-2)
    x = random(device, 1, 6, 128, dtype=torch.float16)
    torch.testing.assert_close(op.gated(x, "silu"), twin.gated(x, "silu"), rtol=1e-2, atol=1e-2)
    assert op(x[:0]).shape == (0, 64)
