"""Values as sums of float8 values."""

import torch

from octavo.kernels.triton.value_parts import PARTS, split_rows


STEPS = 2.0 ** torch.tensor([10, 6, -9, -14])[:, None]


def joined(parts: torch.Tensor) -> torch.Tensor:
    return (parts.float().unflatten(0, (-1, PARTS.value)) * STEPS.to(parts.device)).sum(1)


def test_parts_add_up_to_the_values(device: torch.device) -> None:
    exponents = torch.arange(-15, 18)[:, None]
    fractions = torch.arange(128) / 128
    x = ((1 + fractions) * 2.0**exponents).bfloat16()
    x = torch.cat((x, -x)).to(device)
    assert torch.equal(joined(split_rows(x)), x.float())


def test_errors_of_small_values(device: torch.device) -> None:
    x = torch.rand(40, 300, generator=torch.Generator().manual_seed(1)) * 2.0 ** -torch.arange(10, 50)[:, None]
    x = x.bfloat16().to(device)
    assert float((joined(split_rows(x)) - x.float()).abs().max()) <= 2.0**-24
    assert torch.equal(joined(split_rows(torch.zeros_like(x))), torch.zeros_like(x).float())


def test_too_large_values_stay_numbers(device: torch.device) -> None:
    x = torch.tensor([[1e6, -1e9, 458752.0]]).bfloat16().to(device)
    assert joined(split_rows(x)).isfinite().all()
