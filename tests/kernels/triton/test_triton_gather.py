"""Rows of tables in Triton, against plain indexing."""

import pytest
import torch

from octavo.kernels import basic
from octavo.kernels.triton import gather


@pytest.mark.parametrize("shape", [(7,), (7, 1), (50, 96), (9, 1, 128), (5, 5000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_takes_the_rows(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    table = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(100).to(device, dtype)
    index = torch.tensor([3, 0, shape[0] - 1, 3, 1], device=device)
    assert torch.equal(gather.gather_rows(table, index), basic.gather_rows.reference(table, index))
