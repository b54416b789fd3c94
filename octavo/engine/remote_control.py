"""The control functions of an engine in another process, as methods of ``AsyncLLM``."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError
from octavo.records import EngineStats
from octavo.telemetry.metrics import Metrics


class RemoteControl(ABC):
    """Methods that call :class:`~octavo.engine.control.Control` in the engine process.

    All of them raise:
        EngineDeadError: no engine is connected, or it died before it answered.
        InvalidRequestError: the engine rejected the call.
    """

    settings: EngineConfig

    @property
    @abstractmethod
    def stats(self) -> EngineStats:
        """The engine's latest statistics."""

    @property
    @abstractmethod
    def metrics(self) -> Metrics:
        """The metrics that count these operations."""

    @abstractmethod
    async def call_engine(self, name: str, **arguments: Any) -> Any:
        """Run one of the engine's control functions."""

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        """Start no step until :meth:`resume_generation`; returns when no step is in flight.

        Args:
            mode: for current requests: ``abort`` them, ``wait`` until they end, or ``keep`` them for afterwards.
        """
        await self.call_engine("pause", mode=mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        """End a pause."""
        await self.call_engine("resume")

    async def is_paused(self) -> bool:
        """Whether the engine is paused."""
        return self.stats.is_paused

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Pause and release the memory of the cache and the weights.

        Args:
            level: 0 only pauses; 1 moves weights to host memory; 2 drops them.
            mode: see :meth:`pause_generation`.
        """
        with self.metrics.sleep.timed():
            await self.call_engine("sleep", level=level, mode=mode)

    async def release_kv_cache_memory(self) -> None:
        """Pause and release only the cache's memory."""
        with self.metrics.sleep.timed():
            await self.call_engine("sleep", level=1, mode="keep", keep_weights=True)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake up and continue, or wake only some of ``weights``, ``kv_cache`` and ``scheduling``."""
        with self.metrics.sleep.timed():
            await self.call_engine("wake_up", tags=tags)

    async def is_sleeping(self) -> bool:
        """Whether memory is released."""
        return self.stats.sleep_level > 0

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear the prefix cache; False while requests run, unless ``reset_running_requests`` recomputes them."""
        return bool(await self.call_engine("reset_prefix_cache", reset_running_requests=reset_running_requests))

    async def start_profile(self) -> None:
        """Start recording a profile of the engine."""
        await self.call_engine("start_profile")

    async def stop_profile(self) -> str:
        """Stop recording and write the profile; returns the file."""
        return str(await self.call_engine("stop_profile"))

    async def abort_answers(self, names: list[str]) -> list[str]:
        """End answers early, by the ids that clients see; returns those that were in flight."""
        found: list[str] = await self.call_engine("abort", request_ids=names)
        return found

    async def start_weight_update(self) -> None:
        """Start a weight update; the engine must be paused."""
        with self.metrics.weight_update.timed():
            await self.call_engine("start_weight_update")

    async def update_weights(self, path: str | None = None) -> None:
        """Load weights from a folder below ``weight_update_dir``, or reload the model's own."""
        with self.metrics.weight_update.timed():
            await self.call_engine("update_weights", path=path)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Finish the update, and set the weights' version."""
        with self.metrics.weight_update.timed():
            await self.call_engine("finish_weight_update", weight_version=weight_version)

    async def update_weight_version(self, new_version: str) -> None:
        """Set the weights' version."""
        await self.call_engine("set_weight_version", version=new_version)

    async def get_weight_version(self) -> str:
        """The weights' version; ``default`` for those loaded at startup."""
        return str(await self.call_engine("weight_version"))

    async def compute_weight_checksums(self) -> dict[str, str]:
        """A checksum of each tensor of the model."""
        found: dict[str, str] = await self.call_engine("weight_checksums")
        return found

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109 (vLLM's name)
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function with the worker, in the engine process, between two steps.

        Args:
            method: its name, ``package.module:function``, which ``allowed_functions`` must contain; it is called with a
                :class:`~octavo.execution.worker.Worker` and the arguments. Arguments and result are plain data.
            timeout: seconds to wait; None waits without limit.

        Raises:
            TimeoutError: the function takes longer; it is not stopped.
        """
        if not isinstance(method, str):
            raise InvalidRequestError(
                "The engine runs in another process: name the function, as 'package.module:function'.", "method"
            )
        async with asyncio.timeout(timeout):
            found: list[Any] = await self.call_engine(
                "collective_rpc", method=method, args=list(args), kwargs=kwargs or {}
            )
        return found
