"""Tests of the compiled CPU kernels run once for each build that this processor runs."""

from collections.abc import Iterator

import pytest
from native_builds import built, load

from octavo.kernels import dispatch
from octavo.platforms.native import NativeKernels


@pytest.fixture(params=built())
def native(request: pytest.FixtureRequest) -> NativeKernels:
    """One build of the compiled kernels."""
    return load(request.param)


@pytest.fixture(autouse=True)
def _registrations_of_other_builds_end() -> Iterator[None]:
    """Other tests run the best build, whichever a test registers."""
    before = [(operation, operation.implementations.get("cpu")) for operation in dispatch._operations]
    yield
    for operation, implementation in before:
        if implementation is not None and operation.implementations["cpu"] is not implementation:
            operation.register("cpu")(implementation)
