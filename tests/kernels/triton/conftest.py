"""Triton's kernels are tested on a GPU where there is one, elsewhere in Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read once, when a kernel is defined; nothing else in these tests' process uses Triton.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels' tensors live."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
