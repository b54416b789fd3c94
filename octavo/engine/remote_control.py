"""What an owner may do to an engine in another process, as methods."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError
from octavo.records import EngineStats
from octavo.telemetry.metrics import Metrics


class RemoteControl(ABC):
    """Calls of :class:`~octavo.engine.control.Control`, which says what they mean, from afar.

    Attributes:
        settings: the engine's.

    All of them raise:
        EngineDeadError: no engine is there, or it died before it answered.
        InvalidRequestError: the engine refused.
    """

    settings: EngineConfig

    @property
    @abstractmethod
    def stats(self) -> EngineStats:
        """The engine's latest figures."""

    @property
    @abstractmethod
    def metrics(self) -> Metrics:
        """Where operations are counted."""

    @abstractmethod
    async def call_engine(self, name: str, **arguments: Any) -> Any:
        """Run one of the engine's control functions."""

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        """Begin no step until :meth:`resume_generation`; returns when none is under way.

        Args:
            mode: what becomes of requests: ``abort``, ``wait`` for their ends, or ``keep`` for afterwards.
            clear_cache: forget cached prefixes.
        """
        await self.call_engine("pause", mode=mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        """End a pause."""
        await self.call_engine("resume")

    async def is_paused(self) -> bool:
        """Whether the engine begins no step."""
        return self.stats.is_paused

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Pause and give memory back: the cache's, and the weights'.

        Args:
            level: 0 only pauses; 1 moves weights to host memory; 2 drops them.
            mode: as of :meth:`pause_generation`.
        """
        with self.metrics.sleep.timed():
            await self.call_engine("sleep", level=level, mode=mode)

    async def release_kv_cache_memory(self) -> None:
        """Pause and give only the cache's memory back."""
        with self.metrics.sleep.timed():
            await self.call_engine("sleep", level=1, mode="keep", keep_weights=True)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take memory again and go on; or only some of ``weights``, ``kv_cache`` and ``scheduling``."""
        with self.metrics.sleep.timed():
            await self.call_engine("wake_up", tags=tags)

    async def is_sleeping(self) -> bool:
        """Whether memory was given back."""
        return self.stats.sleep_level > 0

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False if requests are running, unless these are to be computed again."""
        return bool(await self.call_engine("reset_prefix_cache", reset_running_requests=reset_running_requests))

    async def start_profile(self) -> None:
        """Begin to record what the engine does."""
        await self.call_engine("start_profile")

    async def stop_profile(self) -> str:
        """Write the record; returns the file."""
        return str(await self.call_engine("stop_profile"))

    async def abort_answers(self, names: list[str]) -> list[str]:
        """End answers by the ids that clients see, with what there is of them; returns those that were in flight."""
        found: list[str] = await self.call_engine("abort", request_ids=names)
        return found

    async def start_weight_update(self) -> None:
        """Announce new weights; the engine is paused."""
        with self.metrics.weight_update.timed():
            await self.call_engine("start_weight_update")

    async def update_weights(self, path: str | None = None) -> None:
        """Read weights from a folder below ``weight_update_dir``, or the model's own again."""
        with self.metrics.weight_update.timed():
            await self.call_engine("update_weights", path=path)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the update, and name what there is now."""
        with self.metrics.weight_update.timed():
            await self.call_engine("finish_weight_update", weight_version=weight_version)

    async def update_weight_version(self, new_version: str) -> None:
        """Name the weights."""
        await self.call_engine("set_weight_version", version=new_version)

    async def get_weight_version(self) -> str:
        """The weights' name; ``default`` for those that were loaded at the start."""
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
        """Call a function beside the model, in the engine's process, between two steps.

        Args:
            method: its name, ``package.module:function``, one of the setting ``allowed_functions``; it is called with
                a :class:`~octavo.execution.worker.Worker` and the arguments, and arguments and result are plain data.
            timeout: seconds to wait; None waits for as long as it takes.

        Raises:
            TimeoutError: it takes longer; it is not stopped.
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
