"""Triton's kernels run on a GPU where there is one, elsewhere in Triton's interpreter (see tests/conftest.py)."""

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels' tensors live."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
