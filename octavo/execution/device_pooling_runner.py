"""The GPU runner for decoder models with a pooler: a step in, vectors out."""

import torch

from octavo.execution.device_runner import DeviceRunner, eager_shapes
from octavo.execution.inputs import shape_of
from octavo.execution.pooling import PooledStep, PoolingState
from octavo.kernels import StepShape
from octavo.kernels.triton.compile import compile_together
from octavo.records import Step


class DevicePoolingRunner(DeviceRunner):
    """Queues steps as single launches: prompts keep the device busy without captured graphs."""

    pooling: PoolingState

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile all kernels that steps use, so that no request waits for a compilation."""
        shapes = eager_shapes(self.plan)
        with compile_together(self.device):
            for shape in shapes:
                self._hidden(shape)
        for shape in shapes:
            self._hidden(shape)

    @torch.inference_mode()
    def execute(self, step: Step) -> PooledStep:  # type: ignore[override]
        """Queue one step."""
        self._take_changes(step)
        self.pooling.take_changes(step)
        shape = shape_of(step)
        with self.prompt_vectors.put_in_place(step):
            hidden = self._hidden(shape)
        self.inputs.append(self.state, shape.num_rows)
        return self.pooling.run(step, hidden[: shape.num_tokens])

    def _hidden(self, shape: StepShape) -> torch.Tensor:
        """Hidden states ``[tokens, hidden]`` of the step described by device state."""
        inputs, num_tokens = self.inputs, shape.num_tokens
        inputs.fill(self.state, shape)
        hidden: torch.Tensor = self.model(
            inputs.token_ids[:num_tokens], inputs.positions[:num_tokens], self._attention(shape)
        )
        return hidden
