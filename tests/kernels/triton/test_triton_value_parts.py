"""Values as sums of float8 values."""

import torch

from octavo.kernels.triton.value_parts import PARTS, split_rows


def joined(parts: torch.Tensor) -> torch.Tensor:
    first, second, third, _ = parts.float().unflatten(0, (-1, PARTS.value)).unbind(1)
    return first + second / 8 + third / 64


def test_parts_add_up_to_the_values(device: torch.device) -> None:
    exponents = torch.arange(-12, 15)[:, None]
    fractions = torch.arange(128) / 128
    x = ((1 + fractions) * 2.0**exponents).bfloat16()
    x = torch.cat((x, -x)).to(device)
    assert torch.equal(joined(split_rows(x)), x.float())


def test_errors_of_small_values(device: torch.device) -> None:
    x = torch.rand(40, 300, generator=torch.Generator().manual_seed(1)) * 2.0 ** -torch.arange(10, 50)[:, None]
    x = x.bfloat16().to(device)
    assert float((joined(split_rows(x)) - x.float()).abs().max()) < 2.0**-16
    assert torch.equal(joined(split_rows(torch.zeros_like(x))), torch.zeros_like(x).float())


def test_values_that_are_too_large(device: torch.device) -> None:
    x = torch.tensor([[57344.0, 58000.0, 1e9, -1e9, -65536.0, float("inf")]]).bfloat16().to(device)
    expected = torch.tensor([[57344.0, 57344.0, 57344.0, -57344.0, -57344.0, 57344.0]], device=device)
    assert torch.equal(joined(split_rows(x)), expected)


def test_nan_stays(device: torch.device) -> None:
    codes = torch.tensor([[0x7FC0, 0x7FFF, 0x7F81, -1, -64]], dtype=torch.int16)
    x = codes.view(torch.bfloat16).to(device)
    assert x.isnan().all() and joined(split_rows(x)).isnan().all()
