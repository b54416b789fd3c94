"""An engine whose answers are short, and the settings of a server that has every route."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from test_admin_control import ControlledEngine

from octavo.inputs.pooling import PoolingProcessor
from octavo.inputs.processor import InputProcessor
from octavo.outputs.pooling import Pooled
from octavo.records import EngineInfo, PoolingOutput, PoolingRequestOutput, PoolingSpec, PreparedRequest

EVERYTHING = {"enable_admin_endpoints": True, "enable_tokenizer_info_endpoint": True}
NUM_NUMBERS = 4


class ShortEngine(ControlledEngine):
    """Has room for few tokens, so that no answer is long."""

    def __init__(self, pooling: PoolingSpec | None = None) -> None:
        super().__init__()
        self.info = EngineInfo(512, 257, 100, 16, 8, True, pooling=pooling)
        self.input_processor = InputProcessor(
            self.info, self.tokenizer, eos_token_ids=[256], default_params={}, max_logprobs=20, seed=0
        )
        self.pooling_processor = PoolingProcessor(self.info, self.tokenizer)

    async def call_engine(self, name: str, **arguments: Any) -> Any:
        return {} if name == "weight_checksums" else True

    async def pool(self, prepared: Sequence[PreparedRequest]) -> list[Pooled]:
        await asyncio.sleep(0)
        return [_ones(request) for request in prepared]


def _ones(request: PreparedRequest) -> Pooled:
    pooling = request.children[0].pooling
    assert pooling is not None
    shape: tuple[int, ...] = (NUM_NUMBERS,)
    if pooling.task.startswith("token_"):
        shape = (len(request.prompt_token_ids), NUM_NUMBERS)
    vector = np.ones(() if pooling.query is not None else shape, np.float32)
    return PoolingRequestOutput(request.request_id, PoolingOutput(vector), request.prompt_token_ids, 0, True)
