"""A limit on the work of a test that does not depend on what else the machine does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within_cpu_seconds(limit: float) -> Iterator[None]:
    """Fail if the body, or the function decorated, takes more of the processor's time."""
    start = time.process_time()
    yield
    taken = time.process_time() - start
    assert taken < limit, f"took {taken:.1f} s of the processor's time"
