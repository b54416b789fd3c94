"""The runner on a GPU for decoders that answer with vectors."""

import torch

from octavo.execution.device_runner import DeviceRunner, eager_shapes
from octavo.execution.inputs import shape_of
from octavo.execution.pooling import PooledStep, PoolingState
from octavo.kernels import StepShape
from octavo.kernels.triton.compile import compile_together
from octavo.records import Step


class DevicePoolingRunner(DeviceRunner):
    """Queues steps, launch by launch: prompts keep the device busy without captured graphs."""

    pooling: PoolingState

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile what steps need, so that no request has to wait."""
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
        """``[tokens, hidden]`` of the step that device state describes."""
        inputs, num_tokens = self.inputs, shape.num_tokens
        inputs.fill(self.state, shape)
        hidden: torch.Tensor = self.model(
            inputs.token_ids[:num_tokens], inputs.positions[:num_tokens], self._attention(shape)
        )
        return hidden
