"""Keys and values of 8 bits: close to unquantised ones, and independent of chunks, neighbours and preemption."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_requests import engine_request
from tiny_engine import VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.execution.kv_cache import allocate_cache
from octavo.hub.model_config import LayerType
from octavo.models.base import cache_specs
from octavo.quantization.cache_format import CacheFormat
from octavo.records import EngineOutput, EngineRequest, SamplingParams, is_quantized

FULL: LayerType = "full_attention"
SLIDING: LayerType = "sliding_attention"
MODELS: dict[str, tuple[tuple[LayerType, ...], int | None]] = {
    "LlamaForCausalLM": ((FULL, FULL), None),
    "Gemma3ForCausalLM": ((SLIDING, FULL, SLIDING), 6),
    "Qwen3ForCausalLM": ((FULL, SLIDING), 5),
    "DeepseekV2ForCausalLM": ((FULL,) * 4, None),
}
FORMATS = {
    "int8": CacheFormat("int8"),
    "fp8": CacheFormat("float8_e4m3fn"),
    "given scales": CacheFormat("float8_e4m3fn", has_given_scales=True),
    "given scales of heads": CacheFormat("float8_e4m3fn", has_given_scales=True, has_head_scales=True),
    "windows skipped": CacheFormat("int8", skips_windows=True),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "batched": {"num_blocks": 200},
    "chunks": {"num_blocks": 200, "max_num_batched_tokens": 9},
    "preemption and hits": {"num_blocks": 10, "max_num_batched_tokens": 17},
    "large blocks": {"block_size": 16, "num_blocks": 40},
}
PARAMS = SamplingParams(temperature=0, max_tokens=8, prompt_logprobs=VOCAB, logprobs=VOCAB)


def make_requests() -> list[EngineRequest]:
    random = torch.Generator().manual_seed(1)
    prompts = [torch.randint(VOCAB, (length,), generator=random).tolist() for length in (1, 30, 17, 33)]
    prompts += [[*prompts[1], 5, 6], [*prompts[3][:13], 7]]
    return [engine_request(str(index), prompt, PARAMS) for index, prompt in enumerate(prompts)]


def logprobs(outputs: list[EngineOutput]) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary after each token of the prompt but the last, ``[N, V]``."""
    rows = [entry for output in outputs for entry in output.prompt_logprobs or []]
    found = torch.empty(len(rows), VOCAB, dtype=torch.float64)
    for row, entry in zip(found, rows, strict=True):
        row[torch.tensor(entry.token_ids)] = torch.tensor(entry.logprobs, dtype=torch.float64)
    return found


@pytest.mark.usefixtures("hasty_admission")
@pytest.mark.sample(6)
@pytest.mark.parametrize("stored", FORMATS)
@pytest.mark.parametrize("architecture", MODELS)
def test_texts_do_not_depend_on_the_steps(architecture: str, stored: str) -> None:
    config = tiny_config(architecture, *MODELS[architecture])
    plain, model = tiny_model(config), tiny_model(config, cache=FORMATS[stored])
    assert any(is_quantized(spec) for spec in cache_specs(model).values())
    alone, exact = {}, {}
    for request in make_requests():
        alone |= TinyEngine(config, model, enable_prefix_caching=False).run([request])
        exact |= TinyEngine(config, plain, enable_prefix_caching=False).run([request])
    expected, found = (torch.cat([logprobs(outputs) for outputs in each.values()]) for each in (exact, alone))
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert 0 < divergence.mean() < (5e-3 if FORMATS[stored].dtype == "int8" else 6e-2)
    num_preemptions = 0
    for name, settings in SETTINGS.items():
        num_groups = len(TinyEngine(config, model).plan.groups)
        num_blocks = max(settings["num_blocks"] * num_groups, 13)
        engine = TinyEngine(config, model, **{**settings, "num_blocks": num_blocks})
        together = engine.run(make_requests())
        num_preemptions += engine.scheduler.stats.num_preemptions
        for request_id, outputs in alone.items():
            assert tokens(together[request_id]) == tokens(outputs), (name, request_id)
    assert num_preemptions > 0 or SLIDING in config.layer_types


@pytest.mark.parametrize("stored", ["int8", "fp8", "given scales"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV2ForCausalLM"])
def test_a_token_leaves_the_same_bytes_whatever_runs_beside_it(architecture: str, stored: str) -> None:
    """In the first layer, whose input is the token alone; deeper ones compute their input differently by the step."""
    config = tiny_config(architecture, *MODELS[architecture])
    model = tiny_model(config, cache=FORMATS[stored])
    prompt = make_requests()[3].prompt_token_ids.tolist()
    caches = []
    for budget in (256, 5):
        engine = TinyEngine(config, model, max_num_batched_tokens=budget, max_num_seqs=5)
        engine.run([engine_request("a", prompt, SamplingParams(temperature=0, max_tokens=1))])
        pool = engine.runner.forward.cache
        name = next(iter(cache_specs(model)))
        caches.append([tensor.clone().view(torch.uint8) for tensor in pool.layers[name]])
    assert all(part.any() for part in caches[0])
    assert all(torch.equal(*parts) for parts in zip(*caches, strict=True))


def test_layers_of_a_block_do_not_overlap() -> None:
    config = tiny_config("LlamaForCausalLM", (FULL,) * 3, None)
    engine = TinyEngine(config, tiny_model(config, cache=CacheFormat("int8")), num_blocks=3)
    pool = allocate_cache(replace(engine.plan, num_blocks=3), torch.device("cpu"))
    tensors = [tensor for layer in pool.layers.values() for tensor in layer]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [int(tensor.float().mean()) for tensor in tensors] == list(range(6))
    assert [tensor.shape for tensor in tensors[:2]] == [(2, 3, 2, 4, 8), (2, 3, 2, 4)]


@pytest.mark.parametrize(("layout", "num_groups"), [((FULL,) * 3, 1), ((FULL, SLIDING) * 2, 2)], ids=["one", "two"])
def test_layers_of_one_size_lie_apart(layout: tuple[LayerType, ...], num_groups: int) -> None:
    config = tiny_config("LlamaForCausalLM" if num_groups == 1 else "Gemma3ForCausalLM", layout, 8)
    engine = TinyEngine(config, tiny_model(config), num_blocks=3)
    pool = allocate_cache(replace(engine.plan, num_blocks=3), torch.device("cpu"))
    assert len(engine.plan.groups) == num_groups
    first = pool.layers[engine.plan.groups[0].layers[0]][0]
    assert first.transpose(0, 1).is_contiguous()  # all blocks of a layer, one after the other
    pool.blocks[1] = 255
    for (tensor,) in pool.layers.values():
        assert [bool(block.view(torch.uint8).any()) for block in tensor.transpose(0, 1).contiguous()] == [0, 1, 0]
    groups = {group.layers[0]: pool.layers[group.layers[0]][0].data_ptr() for group in engine.plan.groups}
    assert len(set(groups.values())) == 1  # a block belongs to one of them at a time
