"""Chooses the executor."""

from octavo.config import EngineConfig
from octavo.execution.executor import Executor, InProcessExecutor
from octavo.execution.worker import Worker
from octavo.hub import ModelSource
from octavo.hub.model_config import ModelConfig
from octavo.platforms import Platform, runtime_of
from octavo.records import Plan
from octavo.telemetry.phases import PhaseTimer


def make_executor(
    settings: EngineConfig,
    source: ModelSource,
    config: ModelConfig,
    plan: Plan,
    platform: Platform,
    phases: PhaseTimer,
    folder: str | None = None,
    *,
    owns_process: bool = False,
) -> Executor:
    """The executor that the settings ask for; it has loaded nothing yet.

    Args:
        plan: to load the model by.
        folder: updated weights to start with; None for the model's own.
        owns_process: nothing but the engine runs in this process.

    Raises:
        OctavoError: a worker cannot start.
    """
    size = settings.device.tensor_parallel_size
    worker = Worker(settings, source, config, plan, platform, phases, folder, size=size, owns_process=owns_process)
    if size == 1:
        return InProcessExecutor(worker)
    with phases.phase("workers"):
        if settings.device.distributed_executor_backend == "ray":
            from octavo.execution.ray_peers import start_actors

            return start_actors(worker, settings, plan, folder, size, has_gpus=not runtime_of(platform.device).is_host)
        from octavo.execution.peer_process import start_processes

        return start_processes(worker, settings, plan, folder, size)
