"""The GPU's runner for vectors, in Triton's interpreter: the same vectors as the plain one's."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from engine_requests import engine_request
from tiny_engine import MAX_LEN, VOCAB, TinyEngine, tiny_config, tiny_model

from octavo.execution.draws import SingleDraws
from octavo.execution.forward import ForwardPass
from octavo.execution.pooling_tail import PoolingTail
from octavo.execution.runner import ModelRunner
from octavo.execution.sizes import DeviceSizes, HostSizes, StepSizes
from octavo.hub.model_config import LayerType, ModelConfig
from octavo.kernels import AttentionBackend, StepKernels
from octavo.kernels.cpu.attention import CpuAttention
from octavo.kernels.triton.attention import TritonAttention
from octavo.kernels.triton.step import TritonStepKernels
from octavo.layers.pooling import Pooler
from octavo.models.base import CausalLM
from octavo.records import EngineRequest, PoolingRequest, PoolingSpec, SamplingParams
from octavo.records.pooling import SequencePooling

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="runs where Triton's interpreter is on: on machines without a GPU, such as CI's"
)

DEVICE = torch.device("cpu")
LAYERS: tuple[LayerType, ...] = ("full_attention", "sliding_attention")


class PoolingEngine(TinyEngine):
    """The step loop over a runner for vectors."""

    def __init__(
        self, config: ModelConfig, model: CausalLM, pooling: SequencePooling, *, is_device: bool, **settings: Any
    ) -> None:
        self._pooling, self._is_device = pooling, is_device
        super().__init__(config, model, **settings)

    def make_runner(self, config: ModelConfig, model: CausalLM) -> ModelRunner:
        spec = PoolingSpec(["embed", "token_embed"], self._pooling, False, config.hidden_size, normalize=True)
        sizes: StepSizes = HostSizes(self.plan, DEVICE)
        backend: AttentionBackend = CpuAttention()
        kernels = StepKernels()
        if self._is_device:
            sizes = DeviceSizes(self.plan, captures=False)
            backend = TritonAttention(DEVICE, self.plan.max_num_seqs, MAX_LEN, deterministic=False)
            kernels = TritonStepKernels()
        forward = ForwardPass(model, self.plan, DEVICE, backend, kernels, sizes.max_tokens)
        draws = SingleDraws(forward.state, forward.inputs, kernels)
        return ModelRunner(forward, PoolingTail(draws, Pooler(spec), DEVICE), sizes)

    def vectors(self, requests: list[EngineRequest]) -> dict[str, np.ndarray]:
        """Each request's answer; it is the only output."""
        found = {}
        for request_id, outputs in self.run(requests).items():
            (output,) = outputs
            assert output.pooled is not None
            assert (output.finish_reason, output.new_token_ids) == ("stop", [])
            found[request_id] = output.pooled.array()
        return found


def make_requests() -> list[EngineRequest]:
    source = random.Random(2)
    prompts = [[source.randrange(VOCAB) for _ in range(length)] for length in (1, 12, 7, 3, 8)]
    return [
        engine_request(
            str(index),
            prompt,
            SamplingParams(skip_reading_prefix_cache=True),
            pooling=PoolingRequest("token_embed" if index == 2 else "embed"),
        )
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("settings", [{"num_steps_ahead": 1, "max_num_batched_tokens": 9}, {"num_blocks": 16}])
@pytest.mark.parametrize("pooling", ["LAST", "MEAN"])
def test_vectors_equal_the_plain_runners(pooling: SequencePooling, settings: dict[str, Any]) -> None:
    config = tiny_config("Qwen3ForCausalLM", LAYERS, 5)
    model = tiny_model(config)
    expected = PoolingEngine(config, model, pooling, is_device=False).vectors(make_requests())
    found = PoolingEngine(config, model, pooling, is_device=True, **settings).vectors(make_requests())
    for request_id, vector in expected.items():
        assert np.allclose(found[request_id], vector, atol=1e-5), request_id
