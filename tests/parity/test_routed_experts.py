"""The experts that answers tell of (routing replay) are those that Hugging Face's routers choose."""

import asyncio
import base64
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_checkpoints import Checkpoint
from transformers import PreTrainedModel

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "e2e")]
from server_process import ServerProcess

from octavo import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from octavo.errors import ConfigError
from octavo.records import RequestOutput

PARAMS = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, detokenize=False)
PROMPTS = [
    [(7 * index + start) % 200 for index in range(length)] for start, length in ((3, 40), (3, 21), (90, 1), (5, 33))
]
SETTINGS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks": {"max_num_batched_tokens": 8, "max_num_seqs": 4},
    "ahead": {"async_scheduling": True},
    "uncached": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("name", ["qwen2-moe", "deepseek-v3", "gpt-oss"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_answers_tell_of_each_tokens_experts(
    name: str, settings: dict[str, Any], checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]
) -> None:
    source = checkpoint(name)
    llm = start(source, enable_return_routed_experts=True, **settings)
    for _ in range(2):  # the second time from the prefix cache
        for output in _generate(llm, PARAMS):
            _assert_routed(source.model, output)


@pytest.mark.usefixtures("hasty_admission")
@pytest.mark.parametrize("is_ahead", [False, True])
def test_requests_that_are_preempted(
    is_ahead: bool, checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]
) -> None:
    source = checkpoint("qwen2-moe")
    small = {"num_gpu_blocks_override": 31, "max_model_len": 107, "max_num_batched_tokens": 16}
    llm = start(source, enable_return_routed_experts=True, async_scheduling=is_ahead, **small)
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, detokenize=False)
    prompts = [[(5 * index + length) % 200 for index in range(length)] for length in (1, 5, 8, 23, 40, 75)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs if output.metrics is not None) > 0
    for output in outputs:
        _assert_routed(source.model, output)


def test_completions_of_one_prompt(checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]) -> None:
    source = checkpoint("qwen3-moe")
    llm = start(source, enable_return_routed_experts=True)
    for output in _generate(llm, SamplingParams(n=3, seed=1, max_tokens=5, ignore_eos=True, detokenize=False)):
        assert len({tuple(completion.token_ids) for completion in output.outputs}) > 1
        _assert_routed(source.model, output)


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a machine without a GPU")
def test_a_model_divided_over_two_processes(
    checkpoint: Callable[[str], Checkpoint], start_two: Callable[..., LLM]
) -> None:
    source = checkpoint("qwen3-moe")
    for output in _generate(start_two(source, enable_return_routed_experts=True), PARAMS):
        _assert_routed(source.model, output)


def test_an_engine_in_a_process_of_its_own(checkpoint: Callable[[str], Checkpoint]) -> None:
    source = checkpoint("qwen3-moe")

    async def generate() -> RequestOutput:
        settings = {"dtype": "float32", "skip_tokenizer_init": True, "num_gpu_blocks_override": 64}
        llm = AsyncLLM.from_engine_args(model=str(source.folder), enable_return_routed_experts=True, **settings)
        await llm.start()
        try:
            params = PARAMS.clone()
            params.output_kind = RequestOutputKind.FINAL_ONLY
            (output,) = [output async for output in llm.generate(PROMPTS[1], params, request_id="1")]
        finally:
            await llm.shutdown()
        return output

    _assert_routed(source.model, asyncio.run(generate()))


def test_a_server_tells_of_them_too(checkpoint: Callable[[str], Checkpoint]) -> None:
    source = checkpoint("qwen3-moe")
    flags = ("--skip-tokenizer-init", "--enable-return-routed-experts", "--max-model-len", "256")
    server = ServerProcess(*flags, model=str(source.folder))
    prompt = PROMPTS[1]
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    try:
        server.wait_until_healthy()
        answers = [
            server.http.post("/v1/completions", json={**body, "routed_experts_prompt_start": first}).json()
            for first in (0, 5, 99)
        ]
    finally:
        server.stop()
    found = [answer["choices"][0] for answer in answers]
    token_ids = [*prompt, *found[0]["token_ids"]][:-1]
    expected = _chosen(source.model, token_ids)
    for first, choice in zip((0, 5, len(prompt)), found, strict=True):
        experts = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
        assert len(experts) == len(token_ids) - first
        for layer, chosen in expected.items():
            assert np.array_equal(np.sort(experts[:, layer], 1), chosen[first:].numpy())


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("llama", {}, "mixtures of experts"),
        ("mixtral-window", {}, "windows in all layers"),
        ("mixtral", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative_config"),
        ("mixtral", {"runner": "pooling"}, "pooling model"),
    ],
)
def test_what_cannot_be_captured_is_an_error(
    name: str,
    settings: dict[str, Any],
    named: str,
    checkpoint: Callable[[str], Checkpoint],
    start: Callable[..., LLM],
) -> None:
    with pytest.raises(ConfigError, match=f"^enable_return_routed_experts .*{named}"):
        start(checkpoint(name), enable_return_routed_experts=True, **settings)


def _generate(llm: LLM, params: SamplingParams) -> list[RequestOutput]:
    return llm.generate(PROMPTS, params, use_tqdm=False)


def _assert_routed(model: PreTrainedModel, output: RequestOutput) -> None:
    assert output.prompt_token_ids is not None
    for completion in output.outputs:
        token_ids = [*output.prompt_token_ids, *completion.token_ids][:-1]
        expected, found = _chosen(model, token_ids), completion.routed_experts
        assert found is not None
        assert found.shape[:2] == (len(token_ids), model.config.num_hidden_layers)
        for layer in range(found.shape[1]):
            own = torch.from_numpy(found[:, layer].copy()).sort(1).values
            if layer in expected:
                assert torch.equal(own, expected[layer])
            else:
                assert (own == -1).all()


@torch.inference_mode()
def _chosen(model: PreTrainedModel, token_ids: list[int]) -> dict[int, torch.Tensor]:
    """Each layer's experts of each token, ``[T, K]`` in rising order."""
    found: dict[int, torch.Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            layer = int(name.split(".")[2])

            def note(module: torch.nn.Module, args: Any, kwargs: Any, layer: int = layer) -> None:
                (chosen,) = (arg for arg in (*args, *kwargs.values()) if arg.dtype is torch.int64)
                found[layer] = chosen.to(torch.int16).sort(1).values

            hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
    model(torch.tensor([token_ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found
