"""The runner that keeps everything on the device, with its kernels: the same tokens as the plain runner's."""

import gc
import random
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_requests import engine_request
from numpy.typing import NDArray
from tiny_engine import MAX_LEN, VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.execution import graphs
from octavo.execution.build import make_draws
from octavo.execution.forward import ForwardPass
from octavo.execution.graphs import decode_sizes, ladder
from octavo.execution.runner import ModelRunner
from octavo.execution.sampling_tail import SamplingTail
from octavo.execution.sizes import DeviceSizes
from octavo.hub.model_config import LayerType, ModelConfig
from octavo.kernels import StepShape
from octavo.kernels.dispatch import ReadyKernels
from octavo.kernels.triton.attention import TritonAttention
from octavo.kernels.triton.step import TritonStepKernels
from octavo.models.base import CausalLM
from octavo.platforms.cpu import CpuRuntime
from octavo.records import CacheGroup, CapturedRouting, EngineOutput, EngineRequest, Full, Latent, SamplingParams
from octavo.sampling.device_sampler import DeviceSampler
from octavo.sampling.grammar.constraint import Constraint

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="runs where Triton's interpreter is on: without a GPU; tests/gpu does it with one"
)

DEVICE = torch.device("cpu")
LAYERS: tuple[LayerType, ...] = ("full_attention", "sliding_attention")


class DeviceEngine(TinyEngine):
    """The same engine with the parts of a GPU's runner."""

    runner: ModelRunner

    def make_runner(self, config: ModelConfig, model: CausalLM) -> ModelRunner:
        backend = TritonAttention(DEVICE, self.plan.max_num_seqs, MAX_LEN, deterministic=False)
        sizes = DeviceSizes(self.plan, captures=True)
        forward = ForwardPass(model, self.plan, DEVICE, backend, TritonStepKernels(), sizes.max_tokens)
        draws = make_draws(forward, self.plan, TritonStepKernels())
        tail = SamplingTail(forward, draws, self.plan, config.vocab_size, draw_on_device=DeviceSampler)
        return ModelRunner(forward, tail, sizes)


def make_requests() -> list[EngineRequest]:
    source = random.Random(2)
    greedy = {"temperature": 0.0, "max_tokens": 3}
    wishes: list[dict[str, Any]] = [
        greedy,
        greedy | {"presence_penalty": 1.0, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0.8, "top_k": 9, "max_tokens": 3},
        {"temperature": 0.8, "top_p": 0.7, "min_p": 0.02, "max_tokens": 3},
        {"temperature": 1.0, "max_tokens": 3},
    ]
    prompts = [[source.randrange(VOCAB) for _ in range(length)] for length in (1, 12, 7, 3, 8)]
    return [
        engine_request(str(index), prompt, SamplingParams(**wish), seed=index)
        for index, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True))
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_steps_ahead": 1, "max_num_batched_tokens": 9}, id="chunks, a step ahead"),
        pytest.param({"num_blocks": 16, "enable_prefix_caching": False}, id="preempted"),
    ],
)
@pytest.mark.usefixtures("hasty_admission")
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Gemma3ForCausalLM", "DeepseekV32ForCausalLM"])
def test_tokens_and_logprobs_equal_the_plain_runners(architecture: str, settings: dict[str, Any]) -> None:
    config = tiny_config(architecture, LAYERS, 5)
    model = tiny_model(config)
    requests = make_requests()
    expected = TinyEngine(config, model).run(requests)
    found = DeviceEngine(config, model, **settings).run(requests)
    for request_id, outputs in expected.items():
        assert tokens(found[request_id]) == tokens(outputs), request_id
        for kind in ("logprobs", "prompt_logprobs"):
            wanted = [entry for output in outputs for entry in getattr(output, kind) or []]
            got = [entry for output in found[request_id] for entry in getattr(output, kind) or []]
            assert [entry.token_ids for entry in got] == [entry.token_ids for entry in wanted]
            values = [value for entry in wanted for value in entry.logprobs]
            assert [value for entry in got for value in entry.logprobs] == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "DeepseekV32ForCausalLM"])
def test_captured_steps_draw_the_same_tokens(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's graphs call the captured work again, on the memory of the capture, as a GPU's do."""
    config = tiny_config(architecture, LAYERS, 5)
    model = tiny_model(config)
    requests = make_requests()
    expected = TinyEngine(config, model).run(requests)
    engine = DeviceEngine(config, model, num_steps_ahead=1, max_num_seqs=4, max_num_batched_tokens=32)
    assert engine.runner.capture() == len(ladder(4, 32))
    replayed = []
    for captured in (*engine.runner._graphs._decodes, *engine.runner._graphs._mixed):
        replay, shape = captured.forward.replay, captured.shape
        monkeypatch.setattr(captured.forward, "replay", lambda run=replay, shape=shape: (run(), replayed.append(shape)))
    found = engine.run(requests)
    assert {id: tokens(outputs) for id, outputs in found.items()} == {
        id: tokens(outputs) for id, outputs in expected.items()
    }
    assert {shape.has_chunks for shape in replayed} == {False, True}


def test_few_layers_are_rehearsed_before_all() -> None:
    config = tiny_config("LlamaForCausalLM", ("full_attention",) * 3, None)
    model = tiny_model(config)
    engine = DeviceEngine(config, model, max_num_seqs=2, max_num_batched_tokens=32)
    runs: list[int] = []
    for index, layer in enumerate(engine.runner.forward.model.model.layers):
        layer.register_forward_hook(lambda *_, index=index: runs.append(index))
    engine.runner.rehearse(lambda: nullcontext(ReadyKernels()))
    num_sizes = len(engine.runner.sizes.single) + len(engine.runner.sizes.captured)
    assert runs == [0, 1] * num_sizes + [0, 1, 2] * num_sizes


def test_steps_whose_kernels_are_not_compiled_are_captured_last() -> None:
    config = tiny_config("LlamaForCausalLM", ("full_attention",), None)
    engine = DeviceEngine(config, tiny_model(config), max_num_seqs=2, max_num_batched_tokens=32)
    captured: list[StepShape] = []
    largest, *others = engine.runner.sizes.captured

    class Kernels:
        """Of the largest size; ready some time after all others were captured."""

        num_asked = 0

        def are_ready(self) -> bool:
            self.num_asked += captured == others
            return self.num_asked > 2

    engine.runner._rehearsed[largest] = Kernels()
    run = engine.runner._compute_drawing
    engine.runner._compute_drawing = lambda shape: (captured.append(shape), run(shape))[1]  # type: ignore[method-assign]
    assert engine.runner.capture() == len(captured)
    assert captured == [*others, largest]


def test_the_host_leaves_alone_what_it_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up steps between real ones, a step ahead: no buffer is written again that a copy may still be reading."""
    sent: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to_device(_: CpuRuntime, host: torch.Tensor) -> torch.Tensor:
        sent.append((host, host.clone()))
        return host.clone()

    config = tiny_config("Qwen3ForCausalLM", LAYERS, 5)
    model = tiny_model(config)
    requests = make_requests()[1:4]
    expected = {name: tokens(outputs) for name, outputs in TinyEngine(config, model).run(requests).items()}
    monkeypatch.setattr(CpuRuntime, "to_device", to_device)
    engine = DeviceEngine(config, model, num_steps_ahead=1, max_num_seqs=2, max_num_batched_tokens=9)
    for is_first in (True, False):
        assert {name: tokens(outputs) for name, outputs in engine.run(requests).items()} == expected
        if is_first:
            engine.runner.warm_up()
    assert len(sent) > 20
    assert all(torch.equal(host, copy) for host, copy in sent)


def test_a_request_whose_values_are_not_numbers_ends_alone() -> None:
    config = tiny_config("LlamaForCausalLM", ("full_attention",), None)
    poison = VOCAB - 1
    params = SamplingParams(temperature=0, max_tokens=3)
    good = [engine_request(str(index), [index, 1, 2, 3, index], params) for index in range(2)]
    clean = TinyEngine(config, tiny_model(config)).run(good)
    engine = DeviceEngine(config, tiny_model(config, poison), num_blocks=30, num_steps_ahead=1)
    bad = engine_request("bad", [4, 5, poison, 6, 7], params)
    for _ in range(2):
        outputs = engine.run([good[0], bad, good[1]])
        assert outputs["bad"][-1].finish_reason == "error"
        for request in good:
            assert tokens(outputs[request.request_id]) == tokens(clean[request.request_id])


class Alternating:
    """Even tokens and odd ones in turn."""

    is_finished = False

    def __init__(self) -> None:
        self._parity = 0

    def accept(self, token_id: int) -> bool:
        is_allowed = token_id % 2 == self._parity
        self._parity = 1 - self._parity
        return is_allowed

    def rollback(self, num_tokens: int) -> None:
        self._parity ^= num_tokens % 2

    def fill(self, mask: NDArray[np.int32]) -> None:
        mask[:] = np.uint32(0xAAAAAAAA if self._parity else 0x55555555).view(np.int32)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_steps_ahead": 1, "max_num_batched_tokens": 9}, id="chunks, a step ahead"),
        pytest.param({"num_blocks": 16, "enable_prefix_caching": False}, id="preempted"),
    ],
)
@pytest.mark.usefixtures("hasty_admission")
def test_masks_bind_their_own_requests(settings: dict[str, Any]) -> None:
    config = tiny_config("Qwen3ForCausalLM", LAYERS, 5)
    model = tiny_model(config)
    requests = make_requests()
    bound = {request.request_id for request in requests[1:4]}

    def run(engine: TinyEngine) -> dict[str, list[int]]:
        found = engine.run(requests, {request_id: [Constraint(Alternating())] for request_id in bound})
        return {request_id: tokens(outputs) for request_id, outputs in found.items()}

    free = {request_id: tokens(outputs) for request_id, outputs in TinyEngine(config, model).run(requests).items()}
    expected = run(TinyEngine(config, model))
    assert run(TinyEngine(config, model, **settings)) == expected
    assert run(DeviceEngine(config, model, **settings)) == expected
    for request_id, found in expected.items():
        if request_id in bound:
            assert [token % 2 for token in found] == [index % 2 for index in range(len(found))]
            assert found != free[request_id]
        else:
            assert found == free[request_id]


def test_a_runner_that_nobody_holds_is_gone_at_once() -> None:
    config = tiny_config("LlamaForCausalLM", ("full_attention",), None)
    engine = DeviceEngine(config, tiny_model(config))
    engine.run([engine_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=2))])
    cache = weakref.ref(engine.runner.forward.cache.blocks)
    gc.disable()
    try:
        del engine
        assert cache() is None
    finally:
        gc.enable()


def test_steps_that_are_not_captured_come_in_few_sizes() -> None:
    config = tiny_config("LlamaForCausalLM", ("full_attention",), None)
    engine = DeviceEngine(config, tiny_model(config))
    common = engine.runner.sizes.rounded
    most_rows, most_tokens = engine.plan.max_num_seqs, engine.plan.max_num_batched_tokens
    sizes = set()
    for num_rows in range(1, most_rows + 1):
        for num_tokens in range(num_rows + 1, most_tokens + 1):
            shape = common(StepShape(num_rows, num_tokens, num_tokens, True, True, False))
            assert num_rows <= shape.num_rows <= most_rows
            assert max(num_tokens, shape.num_rows) <= shape.num_tokens <= most_tokens
            sizes.add((shape.num_rows, shape.num_tokens))
        decode = common(StepShape(num_rows, num_rows, 1, True, False, False))
        assert decode.num_tokens == decode.num_rows
    assert len(sizes) <= len(decode_sizes(most_rows)) * (1 + most_tokens // 128)


def test_captured_sizes_cover_every_batch_with_little_padding() -> None:
    for most in (1, 5, 64, 256, 1000):
        sizes = decode_sizes(most)
        assert sizes[-1] == most
        for batch in range(1, most + 1):
            fitting = next(size for size in sizes if size >= batch)
            assert fitting - batch <= max(8, batch / 4)
    shapes = ladder(256, 2048)
    assert [shape.num_tokens for shape in shapes] == sorted((shape.num_tokens for shape in shapes), reverse=True)
    assert all(shape.num_rows <= min(256, shape.num_tokens) for shape in shapes)
    assert all(shape.num_tokens <= 100 for shape in ladder(8, 100))
    full = [shape.num_tokens for shape in shapes if shape.has_chunks and shape.has_decodes and shape.num_rows == 256]
    for num_tokens in range(257, 1025):
        assert min(size for size in full if size >= num_tokens) - num_tokens < 128


@pytest.mark.parametrize(
    ("spec", "bound"),
    [(Full(2, 64, "bfloat16"), None), (Latent(64, "int8"), None), (Full(2, 64, "int8"), 1 << 15)],
    ids=["plain", "latent", "quantised"],
)
def test_captured_chunks_over_a_quantised_cache_have_a_bound(spec: Full | Latent, bound: int | None) -> None:
    """Its keys are expanded in a buffer of a fixed size, by as many launches as the capture has."""
    config = tiny_config("LlamaForCausalLM", ("full_attention",), None)
    plan = replace(TinyEngine(config, tiny_model(config)).plan, groups=(CacheGroup(("0",), spec, 16),))
    sizes = DeviceSizes(plan, captures=True)
    mixed = [shape for shape in sizes.captured if shape.has_chunks and shape.has_decodes]
    assert {shape.num_cached_tokens for shape in mixed} == {bound}
    for num_cached in (0, 100, 1 << 15, (1 << 15) + 1, 1 << 20):
        step = StepShape(2, 20, 19, True, True, num_cached == 0, num_cached_tokens=num_cached)
        assert graphs._fits(step, mixed[-1]) == (bound is None or num_cached <= bound)


def test_captured_steps_keep_the_experts_of_tokens() -> None:
    config = tiny_config("Qwen3MoeForCausalLM", LAYERS, 5)
    model = tiny_model(config)
    routing = CapturedRouting(0, num_layers=2, num_chosen=2)
    expected = _experts(TinyEngine(config, model, routing=routing).run(make_requests()))
    sizes = {"num_steps_ahead": 1, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    engine = DeviceEngine(config, model, routing=routing, **sizes)
    engine.runner.capture()
    found = _experts(engine.run(make_requests()))
    assert found.keys() == expected.keys()
    for request_id, experts in found.items():
        assert np.array_equal(experts, expected[request_id])
    assert found["1"].shape == (12 + 3 - 1, 2, 2)


def _experts(outputs: dict[str, list[EngineOutput]]) -> dict[str, NDArray[np.int16]]:
    """Each request's tokens' experts, in rising order."""
    parts = {name: [each.routed.array() for each in own if each.routed is not None] for name, own in outputs.items()}
    return {name: np.sort(np.concatenate(arrays)) for name, arrays in parts.items()}
