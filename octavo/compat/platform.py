"""vLLM's ``current_platform``: which device there is."""

import torch

from octavo.platforms import device_name, has_cuda


class CurrentPlatform:
    """The device that ``device="auto"`` takes."""

    @property
    def device_type(self) -> str:
        """``cuda`` or ``cpu``."""
        return "cuda" if has_cuda() else "cpu"

    @property
    def device_name(self) -> str:
        """The same, under its other name."""
        return self.device_type

    def is_cuda(self) -> bool:
        """Whether it is an NVIDIA GPU."""
        return self.device_type == "cuda"

    def is_cuda_alike(self) -> bool:
        """Whether torch calls it ``cuda``."""
        return self.device_type == "cuda"

    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.device_type == "cpu"

    def is_rocm(self) -> bool:
        """False: AMD's GPUs are not supported."""
        return False

    def is_xpu(self) -> bool:
        """False: Intel's GPUs are not supported."""
        return False

    def is_tpu(self) -> bool:
        """False: Google's TPUs are not supported."""
        return False

    def get_device_name(self, device_id: int = 0) -> str:
        """The device's name, as its maker calls it."""
        return device_name(device_id) if self.device_type == "cuda" else "cpu"

    def seed_everything(self, seed: int | None = None) -> None:
        """Seed torch; Octavo's own draws depend on the engine's and the requests' seeds only."""
        if seed is not None:
            torch.manual_seed(seed)


current_platform = CurrentPlatform()
