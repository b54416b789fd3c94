"""The stand-in for vLLM's offline helper: the fixture ``vllm_runner`` makes an ``octavo.LLM``."""

from types import TracebackType
from typing import Any, Self

import pytest

from benchmarks.vllm_tests import rules
from octavo import LLM

_DEFAULTS = {"seed": 0, "max_model_len": 1024}
"""vLLM's helper sets these; what it sets besides concerns its own kernels or a GPU."""
_OF_THIS_MACHINE = {"dtype": "float32", "num_threads": 1, "kv_cache_memory_bytes": 384 << 20}


class Runner:
    """A model that is given back at the end of the ``with`` block.

    Args:
        model: the name that the test uses.
        options: settings, of which those that concern another model or a GPU are left out.

    Attributes:
        llm: the ``octavo.LLM``.

    Raises:
        pytest.skip.Exception: a rule says that Octavo or this machine cannot run it.
    """

    def __init__(self, model: str, **options: Any) -> None:
        stand_in = rules.stand_in(model)
        reason = stand_in.reason or rules.reason_for_options(options)
        if reason is not None:
            pytest.skip(reason)
        settings = rules.translate_options({**_DEFAULTS, **options}, stand_in.max_model_len)
        self.llm = LLM(stand_in.served, served_model_name=model, **settings | _OF_THIS_MACHINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.llm.shutdown()


@pytest.fixture(scope="session")
def vllm_runner() -> type[Runner]:
    """The class, as vLLM's fixture of this name gives it."""
    return Runner
