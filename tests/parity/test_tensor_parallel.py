"""Models divided over two processes write what they write in one."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import worker_host
from pooling_checkpoints import write_pooling_checkpoint
from safetensors.torch import load_file, save_file
from tiny import generic
from tiny_checkpoints import CONFIGS, Checkpoint

sys.path.append(str(Path(__file__).parents[1]))
from tiny_llama import write_model

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError, ModelNotFoundError
from octavo.records import StructuredOutputsParams
from octavo.telemetry.reader import Counter

Start = Callable[..., LLM]
PROMPTS = [[5, 6, 7, 8, 9], list(range(20, 90)), [3] * 17]
GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=3, prompt_logprobs=2, ignore_eos=True, detokenize=False)

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="runs on a machine without a GPU; tests/gpu/test_tensor_parallel_on_gpu.py divides models over GPUs",
)


def _outputs(llm: LLM, params: SamplingParams = GREEDY) -> list[tuple[list[int], list[Any]]]:
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    return [
        (list(answer.outputs[0].token_ids), [*(answer.prompt_logprobs or []), *(answer.outputs[0].logprobs or [])])
        for answer in answers
    ]


def _assert_equal(found: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    for (tokens, logprobs), (expected_tokens, expected_logprobs) in zip(found, expected, strict=True):
        assert tokens == expected_tokens
        for entries, wanted in zip(logprobs, expected_logprobs, strict=True):
            if wanted is not None:
                values = {token: entry.logprob for token, entry in wanted.items()}
                assert {token: entry.logprob for token, entry in entries.items()} == pytest.approx(
                    values, abs=tolerance
                )


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in generic.UNDIVIDED])
def test_two_processes_write_what_one_does(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Start, start_two: Start
) -> None:
    source = checkpoint(name)
    _assert_equal(_outputs(start_two(source)), _outputs(start(source)))


@pytest.mark.parametrize("name", ["mamba2", "mamba2-biased"])
def test_states_of_two_processes(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Start, start_two: Start
) -> None:
    """Groups of a layer are divided, or computed whole where there is one; with drafts, and states from the cache."""
    source, drafts = checkpoint(name), {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    expected = _outputs(start(source))
    two = start_two(source, **drafts)
    for _ in range(2):
        _assert_equal(_outputs(two), expected)
    sampled = SamplingParams(temperature=0.8, seed=1, n=3, max_tokens=8, ignore_eos=True, detokenize=False)
    texts = [
        [list(completion.token_ids) for completion in answer.outputs]
        for llm in (start(source), two)
        for answer in llm.generate([{"prompt_token_ids": PROMPTS[1]}], sampled)
    ]
    assert texts[0] == texts[1]
    hits = {metric.name: metric for metric in two.get_metrics()}["vllm:prefix_cache_hits"]
    assert isinstance(hits, Counter) and hits.value > 0


SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.9, seed=4, max_tokens=24, ignore_eos=True, presence_penalty=0.4, logit_bias={7: 2.0}
)
BOUND = SamplingParams(
    temperature=0.7, seed=4, max_tokens=24, structured_outputs=StructuredOutputsParams(regex="(ab|c){2,30}")
)
REPEATING = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, min_tokens=3, stop_token_ids=[9])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer."""
    return write_model(tmp_path_factory.mktemp("tiny"))


def _checkpoint(folder: Path) -> Any:
    return SimpleNamespace(folder=folder)


@pytest.mark.usefixtures("shared_trials")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"async_scheduling": True},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"kv_cache_dtype": "int8_per_token_head"},
    ],
    ids=["plain", "ahead", "ngram", "quantised cache"],
)
def test_all_ranks_draw_the_same(settings: dict[str, Any], folder: Path, start: Start, start_two: Start) -> None:
    """A rank that drew another token would compute what follows from it."""
    common = {"skip_tokenizer_init": False, **settings}
    prompts = ["tea for two and two for tea", "a", "cabbage"]
    params = [SAMPLED, BOUND, REPEATING]
    found = []
    for starts in (start, start_two):
        llm = starts(_checkpoint(folder), **common)
        answers = [llm.generate(prompts, params) for _ in range(2)]
        found.append([[list(answer.outputs[0].token_ids) for answer in each] for each in answers])
    one, two = found
    assert one == two
    assert len(one[0][0]) == 24


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "modernbert", "nomic", "gte", "jina", "llama-bidirectional", "qwen3"]
)
def test_vectors_of_two_processes(name: str, start: Start, start_two: Start, tmp_path: Path) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    settings = {"runner": "pooling"} if name == "qwen3" else {}
    one, two = (starts(source, max_model_len=None, **settings) for starts in (start, start_two))
    expected, found = (llm.encode(PROMPTS, pooling_task="embed", use_tqdm=False) for llm in (one, two))
    for output, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(output.outputs.data, wanted.outputs.data, rtol=0, atol=1e-5)


def _rms(errors: torch.Tensor) -> float:
    return errors.square().mean().sqrt().item()


def test_float8_divided_is_as_near_to_the_unquantised_model(
    checkpoint: Callable[[str], Checkpoint], start: Start, start_two: Start
) -> None:
    """Row-parallel layers round each rank's part of an activation with a scale of its own, so bits differ."""
    source = checkpoint("llama")
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, detokenize=False)

    def logprobs(llm: LLM) -> torch.Tensor:
        (answer,) = llm.generate([{"prompt_token_ids": PROMPTS[1]}], params)
        rows = [entries for entries in answer.prompt_logprobs or [] if entries is not None]
        return torch.tensor([[row[token].logprob for token in sorted(row)] for row in rows])

    exact = logprobs(start(source))
    one, two = logprobs(start(source, quantization="fp8")), logprobs(start_two(source, quantization="fp8"))
    assert 0 < _rms(two - exact) < 1.2 * _rms(one - exact)
    assert _rms(two - one) < _rms(one - exact)


def test_owners_reach_all_ranks(folder: Path, start: Start, start_two: Start, tmp_path: Path) -> None:
    torch.manual_seed(5)
    changed = {
        name: tensor + 0.1 * torch.randn_like(tensor)
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    for name, tensors in {"new": changed, "broken": {"one": torch.ones(1)}}.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    common = {"weight_update_dir": str(tmp_path)}
    one, two = start(_checkpoint(folder), **common), start_two(_checkpoint(folder), **common)
    before = _outputs(one)
    one.update_weights("new")
    after = _outputs(one)
    assert before[0][0] != after[0][0]
    _assert_equal(_outputs(two), before)
    old_sums = two.collective_rpc("weight_checksums")
    two.update_weights("new")
    _assert_equal(_outputs(two), after)
    new_sums = two.collective_rpc("weight_checksums")
    assert [len(sums) for sums in new_sums] == [len(sums) for sums in old_sums] and len(new_sums) == 2
    for old, new in zip(old_sums, new_sums, strict=True):
        names = [name for name in old if name.startswith("model.layers.0.mlp.down_proj.")]
        assert names and all(old[name] != new[name] for name in names)
    for level in (1, 2):
        two.sleep(level)
        two.wake_up()
        _assert_equal(_outputs(two), after)
    with pytest.raises(InvalidRequestError, match="do not fit"):
        two.update_weights("broken")
    _assert_equal(_outputs(two), after)
    with pytest.raises(InvalidRequestError, match="several processes, which no function reaches"):
        two.apply_model(lambda model: None)
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        two.collective_rpc("get_model")
    assert two.collective_rpc("has_weights") == [True, True]
    counts = two.collective_rpc("call_function", args=("running_functions:count", [], {"factor": 2}))
    (whole,) = one.collective_rpc("call_function", args=("running_functions:count", [], {"factor": 2}))
    assert counts[0] == counts[1] and whole / 2 < counts[0] < whole
    for name, words in {"fail": "a bug", "model": "Encoding objects"}.items():
        with pytest.raises(InvalidRequestError, match=words):
            two.collective_rpc("call_function", args=(f"running_functions:{name}", [], {}))
    _assert_equal(_outputs(two), after)


def test_a_rank_that_cannot_start_says_why(folder: Path, start_two: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    make = worker_host.HostedPeer.__init__

    def with_another_model(peer: worker_host.HostedPeer, launch: Any) -> None:
        settings = msgspec.structs.replace(
            launch.settings, model=msgspec.structs.replace(launch.settings.model, model=str(folder / "missing"))
        )
        make(peer, msgspec.structs.replace(launch, settings=settings))

    monkeypatch.setattr(worker_host.HostedPeer, "__init__", with_another_model)
    with pytest.raises(ModelNotFoundError, match="missing"):
        start_two(_checkpoint(folder))
