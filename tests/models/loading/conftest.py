"""Tests of loading look at the weights as they arrived, so GEMMs must not rearrange them."""

import pytest

from octavo.kernels import linear


@pytest.fixture(autouse=True)
def weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run GEMMs as the PyTorch reference, which reads the weights where they are."""
    monkeypatch.delitem(linear.bound, "cpu")
