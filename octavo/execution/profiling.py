"""Records profiles of steps while the engine serves."""

import logging
import time
from pathlib import Path

import torch

from octavo.errors import ConfigError, InvalidRequestError

logger = logging.getLogger(__name__)


class StepProfiler:
    """Records host and device activity between :meth:`start` and :meth:`stop`.

    Args:
        settings: ``profiler_config``, with the output folder under ``torch_profiler_dir``; None disables profiling.

    Raises:
        ConfigError: the settings have another form.
    """

    def __init__(self, settings: dict[str, object] | None) -> None:
        self._folder: Path | None = None
        self._profile: torch.profiler.profile | None = None
        if settings is None:
            return
        unknown = set(settings) - {"profiler", "torch_profiler_dir"}
        folder = settings.get("torch_profiler_dir")
        if unknown or settings.get("profiler", "torch") != "torch" or not isinstance(folder, str):
            raise ConfigError('profiler_config looks like {"torch_profiler_dir": "FOLDER"}.')
        self._folder = Path(folder)

    def start(self) -> None:
        """Start recording.

        Raises:
            InvalidRequestError: profiles are not allowed, or one is being taken.
        """
        if self._folder is None:
            raise InvalidRequestError("Profiles are off; start the server with --profiler-config.")
        if self._profile is not None:
            raise InvalidRequestError("A profile is being taken already.")
        self._profile = torch.profiler.profile()  # of all devices that there are
        self._profile.start()

    def stop(self) -> str:
        """Stop, and write a trace for Chrome's and Perfetto's viewers; returns its path.

        Raises:
            InvalidRequestError: no profile is being taken, or it cannot be written.
        """
        if self._profile is None or self._folder is None:
            raise InvalidRequestError("No profile is being taken.")
        profile, self._profile = self._profile, None
        profile.stop()
        path = self._folder / f"octavo-{time.time_ns()}.json.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise InvalidRequestError(f"The profile could not be written: {error}.") from None
        logger.info("Wrote a profile to %s", path)
        return str(path)
