"""A pooling model, in this process, behind what the routers see of an engine."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_bert import SETTINGS

from octavo import LLM
from octavo.config import ModelSettings
from octavo.inputs.pooling import PoolingProcessor
from octavo.outputs.pooling import Pooled
from octavo.records import PreparedRequest
from octavo.telemetry.metrics import Metrics


class PoolingEngine:
    """``batches`` holds how many requests each call ran side by side."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.llm = LLM(str(folder), **(SETTINGS | settings))
        self.model_name = "tiny"
        self.info = self.llm._engine.info
        self.metrics = Metrics(self.model_name)
        self.tokenizer = self.llm._frontend.tokenizer
        self.model_settings = ModelSettings(model=str(folder))
        self.input_processor = self.llm._inputs
        self.pooling_processor = PoolingProcessor(self.info, self.tokenizer)
        self.chat_renderer = self.llm._frontend.chat_renderer
        self.is_healthy = True
        self.fault: str | None = None
        self.calls: list[Any] = []
        self.batches: list[int] = []
        self._lock = asyncio.Lock()

    async def pool(self, prepared: Sequence[PreparedRequest]) -> list[Pooled]:
        """Run requests in a thread."""
        self.batches.append(len(prepared))
        async with self._lock:
            return await asyncio.to_thread(self.llm._pool, list(prepared), False)
