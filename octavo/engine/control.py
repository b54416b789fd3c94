"""Control functions of a running engine: pause, sleep, weight updates, profiles, ``collective_rpc``.

``local_control.py`` offers them as methods in the same process, ``remote_control.py`` from another process; their
arguments are described there.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.state import AS_CONFIGURED, EngineState
from octavo.errors import InvalidRequestError, OctavoError
from octavo.execution.executor import Executor
from octavo.execution.profiling import StepProfiler
from octavo.records import StepOutputs

logger = logging.getLogger(__name__)

SendReply = Callable[[Any, str | None], None]
Job = Generator[None, None, Any]

PAUSE_MODES = ("abort", "wait", "keep")
WAKE_TAGS = ("weights", "kv_cache", "scheduling")
_ENGINE_ID = re.compile(r"(?P<request>(?:\d+_)?(?P<answer>.+)-\d+-[0-9a-f]{8}|.+?)(?:#\d+)?", re.DOTALL)


class Control:
    """Runs control functions between steps.

    Some have to wait until no step is in flight, or until requests are done. These are generators that yield while
    they wait; :meth:`advance` resumes the oldest of them. The others complete at once.

    Args:
        deliver: takes outputs of requests that a function ended.
        announce: lets frontends know the engine's figures, before something that takes long.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(
        self,
        core: EngineCore,
        settings: EngineConfig,
        deliver: Callable[[StepOutputs], None],
        announce: Callable[[], None],
        state: EngineState = AS_CONFIGURED,
    ) -> None:
        self._core = core
        self._deliver, self._announce = deliver, announce
        self._profiler = StepProfiler(settings.logging.profiler_config)
        self._allowed = frozenset(settings.model.allowed_functions or ())
        folder = settings.load.weight_update_dir
        self._weights_folder = None if folder is None else Path(folder).resolve()
        self._weight_version = state.weight_version
        self._is_updating, self._is_paused = state.is_updating, state.is_paused
        self._is_resumed = False
        self._jobs: deque[tuple[Job, SendReply]] = deque()

    @property
    def state(self) -> EngineState:
        """The state to restore after a restart: the one asked for, not a running function's intermediate one."""
        return EngineState(
            self._core.weights,
            self._weight_version,
            self._is_updating,
            self._is_paused,
            self._core.sleep_level,
            self._core.plan.num_blocks,
        )

    def call(self, name: str, arguments: dict[str, Any], reply: SendReply) -> None:
        """Run a function, or start it if it has to wait."""
        function = _FUNCTIONS.get(name)
        if function is None:
            reply(None, f"The engine has no function {name!r}.")
            return
        try:
            result = function(self, **arguments)
        except OctavoError as error:
            reply(None, str(error))
            return
        if isinstance(result, Generator):
            self._jobs.append((result, reply))
            self.advance()
        else:
            reply(result, None)

    def advance(self) -> None:
        """Resume waiting functions."""
        while self._jobs:
            job, reply = self._jobs[0]
            try:
                next(job)
                return
            except StopIteration as end:
                outcome: tuple[Any, str | None] = (end.value, None)
            except OctavoError as error:
                outcome = (None, str(error))
            self._jobs.popleft()
            reply(*outcome)

    def _pause(self, mode: str = "abort", clear_cache: bool = True) -> Job:
        """Start no step until :meth:`_resume`; new requests wait. Kept ones lose their blocks with ``clear_cache``."""
        if mode not in PAUSE_MODES:
            raise InvalidRequestError(f"mode is one of {', '.join(PAUSE_MODES)}, not {mode!r}.", "mode")
        core = self._core
        self._is_resumed = False
        if mode == "wait" and not core.is_paused:
            awaited = core.grammars_awaited
            while not (self._is_resumed or awaited.isdisjoint(core.grammars_awaited)):
                yield
            core.scheduler.close()
            while not (core.scheduler.is_done_before_close or self._is_resumed):
                yield
            core.scheduler.open()
        core.is_paused = self._is_paused = not self._is_resumed
        if mode == "abort":
            self._deliver(StepOutputs(others=core.abort(core.request_ids)))
        while not (core.is_quiet or self._is_resumed):
            yield
        if self._is_resumed:
            raise InvalidRequestError("The engine was told to resume before it had paused.")
        if clear_cache:
            core.scheduler.preempt_all(device_is_new=core.sleep_level > 0)
        self._announce()
        return True

    def _resume(self) -> bool:
        if self._core.sleep_level:
            raise InvalidRequestError("The engine is asleep; wake it up first.")
        if self._core.fault:
            raise InvalidRequestError(self._core.fault)
        self._is_resumed = True
        self._core.is_paused = self._is_paused = False
        self._announce()
        return True

    def _sleep(self, level: int = 1, mode: str = "abort", keep_weights: bool = False) -> Job:
        """Pause, and release memory; ``keep_weights`` keeps level 1's on the device."""
        if not 0 <= level <= 2:
            raise InvalidRequestError(f"level is 0, 1 or 2, not {level}.", "level")
        yield from self._pause(mode, clear_cache=level > 0)
        if level:
            self._core.sleep(level, keeps_weights=keep_weights)
            logger.info("Entered sleep level %d", level)
        self._announce()
        return True

    def _wake_up(self, tags: list[str] | None = None) -> bool:
        """Restore memory, all or in parts; requests run again once everything is restored."""
        unknown = sorted(set(tags or ()) - set(WAKE_TAGS))
        if unknown:
            raise InvalidRequestError(f"tags are among {', '.join(WAKE_TAGS)}, not {unknown[0]!r}.", "tags")
        wanted = tags or WAKE_TAGS
        if "scheduling" in wanted and "kv_cache" not in wanted and self._core.sleep_level:
            raise InvalidRequestError("The cache is released; wake up 'kv_cache' before 'scheduling'.", "tags")
        if self._core.sleep_level or self._core.fault:
            self._core.wake_up(weights="weights" in wanted, cache="kv_cache" in wanted)
            logger.info("Woke up: %s", ", ".join(wanted))
        if not self._core.sleep_level and (tags is None or "scheduling" in wanted):
            self._resume()
        self._announce()
        return True

    def _reset_prefix_cache(self, reset_running_requests: bool = False) -> Job:
        """Clear the prefix cache; False while requests run, unless ``reset_running_requests`` recomputes them."""
        core = self._core
        if not reset_running_requests:
            return core.reset_prefix_cache()
        while not core.is_quiet:
            core.is_paused = True
            yield
        core.scheduler.preempt_all(device_is_new=core.sleep_level > 0)
        core.is_paused = self._is_paused
        return True

    def _abort(self, request_ids: list[str]) -> list[str]:
        """End requests by the ids that clients see; returns the ids that were found."""
        wanted = set(request_ids)
        found: dict[str, list[str]] = {}
        for request_id in self._core.request_ids:
            match = _ENGINE_ID.fullmatch(request_id)
            for name in match.group("request", "answer") if match else ():
                if name in wanted:
                    found.setdefault(name, []).append(request_id)
        ended = self._core.abort([request_id for ids in found.values() for request_id in ids])
        self._deliver(StepOutputs(others=ended))
        return list(found)

    def _start_profile(self) -> bool:
        self._profiler.start()
        return True

    def _start_weight_update(self) -> bool:
        self._check_paused()
        self._is_updating = True
        return True

    def _update_weights(self, path: str | None = None) -> Job:
        """Load weights from a folder below ``weight_update_dir``, or reload the model's own."""
        if not self._is_updating:
            raise InvalidRequestError("Start the weight update first.")
        self._check_paused()
        folder = None if path is None else self._update_folder(path)
        while not self._core.is_quiet:
            yield
            self._check_paused()
        self._announce()
        self._core.load_weights(folder)
        return True

    def _finish_weight_update(self, weight_version: str | None = None) -> bool:
        if not self._is_updating:
            raise InvalidRequestError("No weight update was started.")
        self._is_updating = False
        if weight_version is not None:
            self._weight_version = weight_version
        return True

    def _set_weight_version(self, version: str) -> bool:
        self._weight_version = version
        return True

    def _collective_rpc(self, method: str, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Job:
        """Call a function of ``allowed_functions`` with each worker, between two steps; returns its results."""
        if method not in self._allowed:
            raise InvalidRequestError(
                f"collective_rpc does not run {method!r} across processes: the operator allows functions with "
                "allowed_functions, as 'package.module:function'.",
                "method",
            )
        return self._between_steps(lambda executor: executor.call_all("call_function", method, args, kwargs or {}))

    def _between_steps(self, work: Callable[[Executor], Any]) -> Job:
        """Call a function with the executor when no step is in flight; not for other processes."""
        core = self._core
        while not core.is_quiet:
            core.is_paused = True
            yield
        core.is_paused = self._is_paused
        return work(core.executor)

    def _check_paused(self) -> None:
        if not self._core.is_paused:
            raise InvalidRequestError("Pause the engine before its weights are updated.")

    def _update_folder(self, path: str) -> Path:
        if self._weights_folder is None:
            raise InvalidRequestError(
                "Start the server with --weight-update-dir to read weights from elsewhere.", "path"
            )
        try:
            folder = (self._weights_folder / path).resolve()
            is_there = folder.is_relative_to(self._weights_folder) and folder.is_dir()
        except (OSError, ValueError):
            is_there = False
        if not is_there:
            raise InvalidRequestError(f"There is no folder {path!r} below the server's --weight-update-dir.", "path")
        return folder


# Unbound functions: bound methods in an instance would be a reference cycle, which keeps the engine's memory until the
# garbage collector runs.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abort": Control._abort,
    "between_steps": Control._between_steps,
    "collective_rpc": Control._collective_rpc,
    "finish_weight_update": Control._finish_weight_update,
    "pause": Control._pause,
    "reset_prefix_cache": Control._reset_prefix_cache,
    "resume": Control._resume,
    "set_weight_version": Control._set_weight_version,
    "sleep": Control._sleep,
    "start_profile": Control._start_profile,
    "start_weight_update": Control._start_weight_update,
    "stop_profile": lambda control: control._profiler.stop(),
    "update_weights": Control._update_weights,
    "wake_up": Control._wake_up,
    "weight_checksums": lambda control: control._core.executor.weight_checksums(),
    "weight_version": lambda control: control._weight_version,
}
