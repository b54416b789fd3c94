"""What an owner may do to an engine in its own process, as methods."""

from typing import Any

from octavo.config import EngineConfig
from octavo.engine.control import Control
from octavo.engine.core import EngineCore
from octavo.errors import InvalidRequestError
from octavo.records import StepOutputs


class LocalControl:
    """Calls of :class:`~octavo.engine.control.Control` between calls that run requests.

    All of them raise:
        InvalidRequestError: the engine refused.
    """

    _engine: EngineCore
    _control: Control

    def _take_control(self, settings: EngineConfig) -> None:
        """Set up what the methods need.

        Raises:
            ConfigError: a setting is wrong.
        """
        self._control = Control(self._engine, settings, _ignore, _do_nothing)

    def sleep(self, level: int = 1) -> None:
        """Give memory back: 1 moves weights to host memory and drops the cache, 2 drops both, 0 only pauses."""
        self._call("sleep", level=level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Take memory again, all of it or some of ``weights``, ``kv_cache`` and ``scheduling``."""
        self._call("wake_up", tags=tags)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes."""
        return bool(self._call("reset_prefix_cache", reset_running_requests=reset_running_requests))

    def start_profile(self) -> None:
        """Begin to record what host and device do, if ``profiler_config`` says where to."""
        self._call("start_profile")

    def stop_profile(self) -> str:
        """Write the record; returns the file."""
        return str(self._call("stop_profile"))

    def update_weights(self, path: str | None = None, weight_version: str | None = None) -> None:
        """Read weights from a folder below ``weight_update_dir``, or the model's own again."""
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
        """The weights' name; ``default`` for those that were loaded at the start."""
        return str(self._call("weight_version"))

    def _call(self, name: str, **arguments: Any) -> Any:
        replies: list[tuple[Any, str | None]] = []
        self._control.call(name, arguments, lambda value, error: replies.append((value, error)))
        # The last requests may have ended while a step that begun before was under way.
        while not replies:
            self._engine.step()
            self._control.advance()
        ((value, error),) = replies
        if error is not None:
            raise InvalidRequestError(error)
        return value


def _ignore(outputs: StepOutputs) -> None:
    """Nobody waits for outputs of requests between calls."""


def _do_nothing() -> None:
    pass
