"""The control functions of an engine in the same process, as methods of ``LLM`` and ``LLMEngine``."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from octavo.config import EngineConfig
from octavo.engine.control import Control
from octavo.engine.core import EngineCore
from octavo.errors import InvalidRequestError
from octavo.execution.executor import Executor
from octavo.execution.worker import Worker
from octavo.records import StepOutputs

T = TypeVar("T")


class LocalControl:
    """Methods that call :class:`~octavo.engine.control.Control` between steps.

    All of them raise:
        InvalidRequestError: the engine rejected the call.
    """

    _engine: EngineCore
    _control: Control
    _held: list[StepOutputs]

    def _take_control(self, settings: EngineConfig) -> None:
        """Set up what the methods need.

        Outputs that arrive while a method runs are kept in ``_held`` for the loop that runs requests.
        """
        self._held = []
        self._control = Control(self._engine, settings, self._held.append, lambda: None)

    def collective_rpc(
        self,
        method: str | Callable[..., T],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[T]:
        """Call a function with each worker between two steps.

        Args:
            method: called with a :class:`~octavo.execution.worker.Worker` and the arguments, or the name of one of the
                worker's methods; only the latter reaches workers in other processes.
            timeout: accepted for compatibility, without effect.

        Returns:
            Its result, once per device.
        """
        results: list[T] = []
        errors: list[BaseException] = []

        def call(executor: Executor) -> None:
            try:
                results.extend(executor.call_all(method, *args, **(kwargs or {})))
            except BaseException as error:
                errors.append(error)

        if isinstance(method, str) and (method.startswith("_") or not callable(getattr(Worker, method, None))):
            raise InvalidRequestError(f"The worker has no method {method!r}.", "method")
        self._call("between_steps", work=call)
        if errors:
            raise errors[0]
        return results

    def apply_model(self, func: Callable[[nn.Module], T]) -> list[T]:
        """Call a function with the model; see :meth:`collective_rpc`."""
        return self.collective_rpc(lambda worker: func(worker.model))

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Release memory: 1 moves weights to host memory and drops the cache, 2 drops both, 0 only pauses.

        Args:
            mode: what happens to unfinished requests: ``abort`` ends them, ``wait`` finishes them first, ``keep``
                continues them afterwards.
        """
        self._call("sleep", level=level, mode=mode)

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Wake up, all or some of ``weights``, ``kv_cache`` and ``scheduling``.

        Returns:
            Whether the engine is fully awake.
        """
        self._call("wake_up", tags=tags)
        return not self._engine.is_paused

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear the prefix cache; returns whether it was cleared."""
        return bool(self._call("reset_prefix_cache", reset_running_requests=reset_running_requests))

    def start_profile(self) -> None:
        """Start recording a profile; needs ``profiler_config``."""
        self._call("start_profile")

    def stop_profile(self) -> str:
        """Stop recording and write the profile; returns the file."""
        return str(self._call("stop_profile"))

    def update_weights(self, path: str | None = None, weight_version: str | None = None) -> None:
        """Load weights from a folder below ``weight_update_dir``, or reload the model's own."""
        was_paused = self._engine.is_paused
        self._call("pause", mode="keep")
        self._call("start_weight_update")
        name = None
        try:
            self._call("update_weights", path=path)
            name = weight_version
        finally:
            self._call("finish_weight_update", weight_version=name)
            if not was_paused:
                self._call("resume")

    def get_weight_version(self) -> str:
        """The weights' version; ``default`` for those loaded at startup."""
        return str(self._call("weight_version"))

    def _call(self, name: str, **arguments: Any) -> Any:
        replies: list[tuple[Any, str | None]] = []
        self._control.call(name, arguments, lambda value, error: replies.append((value, error)))
        # Steps started earlier may still be in flight, even without requests.
        while not replies:
            if outputs := self._engine.step():
                self._held.append(outputs)
            self._control.advance()
        ((value, error),) = replies
        if error is not None:
            raise InvalidRequestError(error)
        return value
