"""Pooling models, in float32, against Hugging Face."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from pooling_checkpoints import (
    COLBERTS,
    DENSE,
    HIDDEN,
    MAX_LENGTH,
    MODELS,
    VOCAB_SIZE,
    PoolingCheckpoint,
    change_config,
    rename_config,
    write_colbert,
    write_modules,
    write_pooling_checkpoint,
    write_reward_model,
    write_voyage,
)
from transformers import LlamaForSequenceClassification

from octavo import LLM, PoolingParams
from octavo.records import PoolingTask

TOLERANCE = 2e-5
LENGTHS = (1, 5, 8, 23, 40, 75, 75)

ENCODERS = (
    "bert",
    "bert-tanh-gelu",
    "bert-masked-lm",
    "roberta",
    "distilbert",
    "distilbert-masked-lm",
    "modernbert",
    "modernbert-masked-lm",
    "modernbert-biased",
    "nomic",
    "gte",
    "gte-without-segments",
    "jina",
    *(name for name in MODELS if name.startswith("library-") and not name.endswith(("classifier", "tokens"))),
)

CLASSIFIERS = [name for name in MODELS if name.endswith("classifier") and "-bidirectional" not in name]
BIDIRECTIONAL = [name for name in MODELS if name.endswith("-bidirectional")]

Start = Callable[..., LLM]


def _prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)


PROMPTS = [_prompt(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Octavo on a checkpoint, in float32, with small blocks and such settings as are given."""
    started: list[LLM] = []

    def start_on(source: PoolingCheckpoint, **settings: Any) -> LLM:
        defaults = {"dtype": "float32", "device": "cpu", "skip_tokenizer_init": True, "block_size": 4}
        sizes = {"max_num_seqs": 8, "num_gpu_blocks_override": 512, "num_threads": 1, "use_tqdm_on_load": False}
        started.append(LLM(str(source.folder), **(defaults | sizes | settings)))
        return started[-1]

    yield start_on
    for llm in started:
        llm.shutdown()


@torch.inference_mode()
def _states(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    """``[tokens, hidden]`` behind the last layer."""
    backbone = getattr(model, "base_model", model)
    return backbone(torch.tensor([prompt])).last_hidden_state[0]


@torch.inference_mode()
def _logits(model: torch.nn.Module, prompt: list[int], segments: list[int] | None = None) -> torch.Tensor:
    kinds = {} if segments is None else {"token_type_ids": torch.tensor([segments])}
    return model(torch.tensor([prompt]), **kinds).logits[0]


def _pool(states: torch.Tensor, how: str) -> torch.Tensor:
    return {"CLS": states[0], "LAST": states[-1], "MEAN": states.mean(0)}[how]


def _assert_vectors(llm: LLM, expected: list[torch.Tensor], task: PoolingTask, **params: Any) -> None:
    found = llm.encode(PROMPTS, PoolingParams(**params), pooling_task=task, use_tqdm=False)
    for output, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(output.outputs.data, wanted, rtol=0, atol=TOLERANCE)


# A sample has each encoder once, and each way of pooling.
@pytest.mark.sample(len(ENCODERS))
@pytest.mark.parametrize("how", ["CLS", "MEAN", "LAST"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str, how: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    llm = start(source, pooler_config={"seq_pooling_type": how}, max_num_batched_tokens=100)
    states = [_pool(_states(source.model, prompt), how) for prompt in PROMPTS]
    _assert_vectors(llm, [F.normalize(state, dim=0) for state in states], "embed")
    _assert_vectors(llm, states, "embed", use_activation=False)


@pytest.mark.parametrize("how", ["CLS", "MEAN", "LAST"])
@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied", "qwen3-model"])
def test_decoders_in_chunks_and_from_the_cache(name: str, how: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    settings: dict[str, Any] = {"runner": "pooling", "pooler_config": {"seq_pooling_type": how}}
    llm = start(source, max_num_batched_tokens=9, **settings)
    expected = [F.normalize(_pool(_states(source.model, prompt), how), dim=0) for prompt in PROMPTS]
    for _ in range(2):  # the second time prompts are in the cache
        _assert_vectors(llm, expected, "embed")
    again = llm.embed([PROMPTS[5]], use_tqdm=False)[0]
    assert again.num_cached_tokens == (72 if how == "LAST" else 0)
    tokens = [F.normalize(_states(source.model, prompt), dim=1) for prompt in PROMPTS]
    _assert_vectors(llm, tokens, "token_embed")


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_decoders_in_both_directions(name: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    llm = start(source, pooler_config={"seq_pooling_type": "MEAN"}, max_num_batched_tokens=256)
    expected = [F.normalize(_states(source.model, prompt).mean(0), dim=0) for prompt in PROMPTS]
    _assert_vectors(llm, expected, "embed")


@pytest.mark.parametrize(("named", "how"), [("avg", "MEAN"), ("cls", "CLS"), ("last", "LAST")])
def test_the_pooling_that_a_bidirectional_llama_names(named: str, how: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("llama-bidirectional", tmp_path)
    change_config(tmp_path, architectures=["LlamaBidirectionalModel"], pooling=named, is_causal=None)
    expected = [F.normalize(_pool(_states(source.model, prompt), how), dim=0) for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "embed")


def test_a_reranker_of_a_bidirectional_llama(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("llama-bidirectional-classifier", tmp_path)
    change_config(
        tmp_path,
        architectures=["LlamaBidirectionalForSequenceClassification"],
        pooling="avg",
        temperature=0.5,
        is_causal=None,
    )
    assert isinstance(source.model, LlamaForSequenceClassification)
    weight = source.model.score.weight.detach()
    expected = [_states(source.model, prompt).mean(0) @ weight.T / 0.5 for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "classify", use_activation=False)


def test_token_vectors_of_voyage(tmp_path: Path, start: Start) -> None:
    source = write_voyage(tmp_path)
    assert source.dense is not None
    expected = [F.normalize(_states(source.model, prompt) @ source.dense.T, dim=1) for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "token_embed")


@pytest.mark.parametrize("with_dense", [False, True])
@pytest.mark.parametrize(("name", "mode", "how"), [("bert", "mean_tokens", "MEAN"), ("qwen3", "lasttoken", "LAST")])
def test_sentence_transformers_modules(
    name: str, mode: str, how: str, with_dense: bool, tmp_path: Path, start: Start
) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    dense = write_modules(tmp_path, mode, with_dense=with_dense)
    states = torch.stack([_pool(_states(source.model, prompt), how) for prompt in PROMPTS])
    if dense is not None:
        states = torch.tanh(states @ dense.T)
    llm = start(source)
    assert len(llm.embed([PROMPTS[0]], use_tqdm=False)[0].outputs.embedding) == (DENSE if with_dense else HIDDEN)
    _assert_vectors(llm, list(F.normalize(states, dim=1)), "embed")


def test_embeddings_are_as_long_as_the_modules_leave_them(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("bert", tmp_path)
    write_modules(tmp_path, "cls_token", normalize=False)
    _assert_vectors(start(source), [_states(source.model, prompt)[0] for prompt in PROMPTS], "embed")


def test_cut_embeddings_are_normed_after_the_cut(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("qwen3", tmp_path)
    change_config(tmp_path, matryoshka_dimensions=[8, 16])
    states = [_states(source.model, prompt)[-1] for prompt in PROMPTS]
    llm = start(source, runner="pooling")
    _assert_vectors(llm, [F.normalize(state[:16], dim=0) for state in states], "embed", dimensions=16)


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name.endswith("classifier") and "-bidirectional" not in name]
)
def test_classifiers(name: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    llm = start(source, max_num_batched_tokens=100)
    logits = [_logits(source.model, prompt) for prompt in PROMPTS]
    _assert_vectors(llm, logits, "classify", use_activation=False)
    found = llm.classify(PROMPTS, use_tqdm=False)
    for output, wanted in zip(found, logits, strict=True):
        expected = wanted.softmax(0) if len(wanted) > 1 else wanted.sigmoid()
        assert output.outputs.probs == pytest.approx(expected.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("-tokens")])
def test_classes_of_tokens(name: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    expected = [_logits(source.model, prompt).softmax(1) for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "token_classify")


def test_rewards_of_tokens(tmp_path: Path, start: Start) -> None:
    source, score = write_reward_model(tmp_path, "Qwen2ForRewardModel", 1)
    expected = [score(_states(source.model, prompt)) for prompt in PROMPTS]
    _assert_vectors(start(source, max_num_batched_tokens=20), expected, "token_classify")


@pytest.mark.parametrize("classes", [[0, 1], [1]])
def test_rewards_of_steps(classes: list[int], tmp_path: Path, start: Start) -> None:
    source, score = write_reward_model(tmp_path, "Qwen2ForProcessRewardModel", 2)
    tag = PROMPTS[-1][40]
    pooler_config = {"pooling_type": "STEP", "step_tag_id": tag, "returned_token_ids": classes}
    llm = start(source, max_num_batched_tokens=20, pooler_config=pooler_config)
    expected = []
    for prompt in PROMPTS:
        rewards = score(_states(source.model, prompt))[:, classes].softmax(1)
        expected.append(rewards[torch.tensor(prompt) == tag])
    assert any(map(len, expected))
    assert not all(map(len, expected))
    _assert_vectors(llm, expected, "token_classify")


def test_logits_are_shifted_and_scaled(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("bert-cross-encoder", tmp_path)
    llm = start(source, pooler_config={"logit_mean": 0.5, "logit_sigma": 2.0})
    expected = [((_logits(source.model, prompt) - 0.5) / 2).sigmoid() for prompt in PROMPTS]
    _assert_vectors(llm, expected, "classify")


def test_sparse_vectors_of_splade(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("bert-masked-lm", tmp_path)
    llm = start(source, hf_overrides={"architectures": ["BertSpladeSparseEmbeddingModel"]})
    with patch("octavo.layers.pooling.MAX_SCORE_ELEMENTS", 11 * VOCAB_SIZE):
        expected = [_logits(source.model, prompt).relu().log1p().amax(0) for prompt in PROMPTS]
        _assert_vectors(llm, expected, "embed")


@pytest.mark.parametrize("name", COLBERTS)
def test_token_vectors_of_colbert(name: str, tmp_path: Path, start: Start) -> None:
    source = write_colbert(name, tmp_path)
    assert source.dense is not None
    expected = [F.normalize(_states(source.model, prompt) @ source.dense.T, dim=1) for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "token_embed")


def test_the_configuration_that_nomic_publishes(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("nomic", tmp_path)
    rename_config(
        tmp_path,
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        intermediate_size="n_inner",
        max_position_embeddings="max_trained_positions",
        layer_norm_eps="layer_norm_epsilon",
    )
    published = {"activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "prenorm": False}
    change_config(tmp_path, rope_parameters=None, n_positions=8192, **published)
    expected = [F.normalize(_states(source.model, prompt)[0], dim=0) for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "embed")


@pytest.mark.parametrize("architecture", ["NewModel", "GteNewModel"])
def test_the_configuration_that_gte_publishes(architecture: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("gte-ntk", tmp_path)
    change_config(tmp_path, architectures=[architecture], model_type="new", rope_parameters=None, rope_theta=20000)
    change_config(tmp_path, rope_scaling={"type": "ntk", "factor": 8.0}, pack_qkv=True, layer_norm_type="layer_norm")
    expected = [F.normalize(_states(source.model, prompt)[0], dim=0) for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "embed")


def test_the_configuration_that_jina_publishes(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("jina", tmp_path)
    published = {"position_embedding_type": "rotary", "rotary_emb_base": 20000.0, "lora_adaptations": None}
    change_config(tmp_path, architectures=["XLMRobertaModel"], rope_parameters=None, **published)
    expected = [F.normalize(_states(source.model, prompt)[0], dim=0) for prompt in PROMPTS]
    _assert_vectors(start(source), expected, "embed")


PAIRS = ("bert-cross-encoder", "xlm-roberta-cross-encoder", "nomic-classifier")


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_have_their_segments(name: str, tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint(name, tmp_path)
    has_segments = not name.startswith("xlm")
    llm = start(source)
    processor = llm._pooling_processor()
    requests = []
    for index, prompt in enumerate(PROMPTS):
        request = processor.resolve(PoolingParams(use_activation=False), "classify")
        request.segment_start = len(prompt) // 2 if has_segments else None
        requests.append(processor.prepare(str(index), None, prompt, request))
    for prompt, output in zip(PROMPTS, llm._pool(requests, False), strict=True):
        start_of_second = len(prompt) // 2
        segments = [int(position >= start_of_second) for position in range(len(prompt))] if has_segments else None
        expected = _logits(source.model, prompt, segments)
        torch.testing.assert_close(output.outputs.data, expected, rtol=0, atol=TOLERANCE)


def test_the_longest_text_fits_and_no_longer_one(tmp_path: Path, start: Start) -> None:
    source = write_pooling_checkpoint("roberta", tmp_path)
    llm = start(source)
    prompt = _prompt(MAX_LENGTH, 9)
    (found,) = llm.embed([prompt], use_tqdm=False)
    expected = F.normalize(_states(source.model, prompt)[0], dim=0)
    torch.testing.assert_close(torch.tensor(found.outputs.embedding), expected, rtol=0, atol=TOLERANCE)
    with pytest.raises(ValueError, match=f"The input has {MAX_LENGTH + 1} tokens; the model takes at most"):
        llm.embed([[*prompt, 3]], use_tqdm=False)
