"""Tests of the compiled CPU kernels run once for each build that this processor runs."""

import pytest
from native_builds import built, load

from octavo.platforms.native import NativeKernels


@pytest.fixture(params=built())
def native(request: pytest.FixtureRequest) -> NativeKernels:
    """One build of the compiled kernels."""
    return load(request.param)
