"""Value-by-value operations of the compiled kernels: PyTorch's bits, whatever the layout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_builds import threads

from octavo.platforms.combine import combined
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels
from octavo.platforms.recording import Recording

aten = torch.ops.aten


def random(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


LAYOUTS: dict[str, Callable[[torch.dtype], tuple[torch.Tensor, Any]]] = {
    "numbers": lambda dtype: (random(0, 3, 48, dtype=dtype), 6.9375),
    "inexact number": lambda dtype: (random(0, 3, 50, dtype=dtype), 0.3),
    "whole number": lambda dtype: (random(0, 3, 50, dtype=dtype), 3),
    "same shape": lambda dtype: (random(0, 2, 20_000, dtype=dtype), random(1, 2, 20_000, dtype=dtype)),
    "column": lambda dtype: (random(0, 3, 96, dtype=dtype)[:, :64], random(1, 3, 1, dtype=dtype)),
    "heads": lambda dtype: (random(0, 3, 4, 12, dtype=dtype), random(1, 4, 12, dtype=dtype)),
    "one for all heads": lambda dtype: (random(0, 3, 4, 1, 6, dtype=dtype), random(1, 3, 1, 1, 6, dtype=dtype)),
    "repeated": lambda dtype: (random(0, 3, 1, 12, dtype=dtype).expand(-1, 4, -1), random(1, 3, 4, 1, dtype=dtype)),
    "every second": lambda dtype: (random(0, 3, 40, dtype=dtype)[:, ::2], random(1, 20, dtype=dtype)),
    "empty": lambda dtype: (random(0, 0, 8, dtype=dtype), random(1, 8, dtype=dtype)),
}


@pytest.mark.parametrize("dtype", TYPE_NUMBERS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "function",
    [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.add_.Tensor, aten.mul_.Tensor],
)
def test_sums_and_products(native: NativeKernels, dtype: torch.dtype, layout: str, function: Any) -> None:
    x, y = LAYOUTS[layout](dtype)
    is_in_place = function in (aten.add_.Tensor, aten.mul_.Tensor)
    if is_in_place and layout == "repeated":
        assert combined(native, function, (x, y)) is None, "several results would share their memory"
        return
    expected = function(x.clone(), y)
    with threads(native, 2):
        result = combined(native, function, (x, y))
    assert result is not None
    assert torch.equal(result, expected)
    assert (result is x) == is_in_place
    assert is_in_place or result.stride() == expected.stride()


def test_the_larger_operand_may_come_second(native: NativeKernels) -> None:
    x, y = random(0, 12, dtype=torch.bfloat16), random(1, 3, 12, dtype=torch.bfloat16)
    result = combined(native, aten.mul.Tensor, (x, y))
    assert result is not None
    assert torch.equal(result, x * y)


@pytest.mark.parametrize("dtype", TYPE_NUMBERS)
@pytest.mark.parametrize("function", [aten.relu.default, aten.neg.default, aten.square.default])
def test_functions_of_one_value(native: NativeKernels, dtype: torch.dtype, function: Any) -> None:
    x = random(0, 3, 50, dtype=dtype)[:, 1:]
    x[1, 7] = torch.nan
    result = combined(native, function, (x,))
    assert result is not None
    torch.testing.assert_close(result, function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPE_NUMBERS)
@pytest.mark.parametrize("to_dtype", TYPE_NUMBERS)
def test_copies_to_other_types_and_layouts(native: NativeKernels, dtype: torch.dtype, to_dtype: torch.dtype) -> None:
    x = random(0, 5, 3, 40, dtype=dtype)[:, :, 3:].transpose(0, 1)
    for source in (x, x[:, :1], x[..., ::2][..., :1]):
        to = torch.zeros(3, 40, 5, dtype=to_dtype).transpose(1, 2)[..., 3:]
        assert combined(native, aten.copy_.default, (to, source)) is to
        assert torch.equal(to, source.to(to_dtype).expand(to.shape))


def test_a_clone_has_the_layout_of_pytorchs(native: NativeKernels) -> None:
    x = random(0, 5, 3, 4, dtype=torch.float32)
    for source in (x, x[:, :2], x.transpose(0, 2), x[:1].expand(5, 3, 4)):
        result, expected = combined(native, aten.clone.default, (source,)), source.clone()
        assert result is not None and result.stride() == expected.stride()
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", TYPE_NUMBERS)
@pytest.mark.parametrize("bounds", [(-0.7, 0.7), (None, 0.3), (0.1,)])
def test_bounds(native: NativeKernels, dtype: torch.dtype, bounds: tuple[float | None, ...]) -> None:
    x = random(0, 3, 50, dtype=dtype)
    x[1, 7] = torch.nan
    expected = aten.clamp.default(x, *bounds)
    for function in (aten.clamp.default, aten.clamp_.default):
        result = combined(native, function, (x, *bounds))
        assert result is not None
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_parts_are_joined(native: NativeKernels, dim: int) -> None:
    rows = random(0, 4, 6, 30, dtype=torch.float16)
    parts = [rows[:, :2, :7], rows[:, 2:4, 7:14], rows[:, 4:, ::4][..., :7]]
    result = combined(native, aten.cat.default, (parts, dim))
    assert result is not None
    assert torch.equal(result, torch.cat(parts, dim))


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_parts_are_stacked(native: NativeKernels, dim: int) -> None:
    parts = random(0, 3, 6, 30, dtype=torch.float16)[:, :, :20].unbind()
    result = combined(native, aten.stack.default, (parts, dim))
    assert result is not None
    assert torch.equal(result, torch.stack(parts, dim))


def test_what_has_other_types_or_layouts_is_left_to_pytorch(native: NativeKernels) -> None:
    x = random(0, 4, 6, dtype=torch.bfloat16)
    assert combined(native, aten.add.Tensor, (x, x.float())) is None
    assert combined(native, aten.add.Tensor, (x.t(), x.t())) is None, "PyTorch's result has the operands' order"
    assert combined(native, aten.mul.Tensor, (torch.arange(4), 2)) is None
    assert combined(native, aten.add.Tensor, (x[:1].expand(4, 6), x.t().contiguous().t())) is None
    assert combined(native, aten.add_.Tensor, (x[:1], x)) is None
    assert combined(native, aten.copy_.default, (x, torch.arange(6))) is None
    assert combined(native, aten.cat.default, ([x, x.float()],)) is None
    assert combined(native, aten.mul.Tensor, (x.view(1, 1, 1, 4, 6), 2.0)) is None


def test_a_recording_contains_them(native: NativeKernels) -> None:
    x, weight = random(0, 3, 8, dtype=torch.bfloat16), random(1, 8, dtype=torch.bfloat16)

    def work() -> torch.Tensor:
        return torch.cat((x[:, :4], (x * weight).mul_(0.3)[:, 4:]), -1).clamp_(-0.5, 0.5)

    with Recording(native) as recording:
        result = work()
    assert not recording.others
    x.copy_(random(2, 3, 8, dtype=torch.bfloat16))
    recording.replay()
    assert torch.equal(result, work())


def test_a_recording_contains_conversions_and_copies_that_look_like_views(native: NativeKernels) -> None:
    x, factors = random(0, 3, 4, 6, dtype=torch.bfloat16), random(1, 4, 1, dtype=torch.float32)

    def work() -> torch.Tensor:
        flat = (x.float() - 0.5)[..., :5].reshape(3, 20)  # a copy: no view has this shape
        turned = x.transpose(0, 2).contiguous() * factors  # of two types
        return torch.cat((flat, turned.to(torch.bfloat16).view(3, -1).to(flat.dtype)), -1)

    with torch.inference_mode(), Recording(native) as recording:
        result = work()
    assert not recording.others
    x.copy_(random(2, 3, 4, 6, dtype=torch.bfloat16))
    recording.replay()
    assert torch.equal(result, work())


def test_a_copy_of_other_types_is_no_part_of_a_recording(native: NativeKernels) -> None:
    x = torch.arange(4)
    with torch.inference_mode(), Recording(native) as recording:
        x.float()
    assert recording.others == {"aten.to.dtype"}
