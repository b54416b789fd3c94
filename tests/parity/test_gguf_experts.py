"""GGUF files of mixtures of experts, written from tiny models as llama.cpp's converters write them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import pytest
import tiny_checkpoints
import torch
from gguf_files import assert_same_model, write_gguf
from tiny.experts import CONFIGS
from tiny.sizes import rope, sizes
from tiny_checkpoints import Checkpoint, write_checkpoint
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    Dots1Config,
    Ernie4_5_MoeConfig,
    GptOssConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from octavo import LLM, SamplingParams
from octavo.layers.experts import Experts
from octavo.platforms.cpu import CpuPlatform
from octavo.platforms.native import native_kernels

_KEYS = {
    "block_count": ("num_hidden_layers",),
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.key_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "moe_k"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "leading_dense_block_count": ("first_k_dense_replace", "moe_layer_start_index"),
    "interleave_moe_layer_step": ("moe_layer_interval",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
}
"""GGUF's keys, and what configurations call them."""


@dataclass(frozen=True, slots=True)
class Converted:
    """How a converter treats a model.

    Attributes:
        config: of the model.
        metadata: keys without the architecture that do not follow from the configuration.
        splits_kv: whether it writes latent attention's projections to keys and to values apart.
    """

    config: Callable[[], PreTrainedConfig]
    metadata: dict[str, Any] = field(default_factory=dict)
    splits_kv: bool = True


_SIZES = {"n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2}
_LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "head_dim": 8}
_PLAIN_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_YARN = _PLAIN_YARN | {"mscale": 0.8, "mscale_all_dim": 0.8}
_YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
# Keys and values as they are cached, and a head's beside them; before, a head's alone.
_BY_HEAD = {"attention.key_length": 24, "attention.value_length": 16}
_BY_HEAD |= {"attention.key_length_mla": 20, "attention.value_length_mla": 10, "rope.dimension_count": 8}
_BEFORE = {"attention.key_length": 20, "attention.value_length": 10, "rope.dimension_count": 8}


def _deepseek_v2(**changes: Any) -> PreTrainedConfig:
    usual = sizes(num_key_value_heads=4, first_k_dense_replace=1, routed_scaling_factor=1.0, **_SIZES, **_LATENT)
    return DeepseekV2Config(**(usual | changes))


def _deepseek_v3(**changes: Any) -> PreTrainedConfig:
    own = {"first_k_dense_replace": 1, "q_lora_rank": 20, "routed_scaling_factor": 1.7}
    return DeepseekV3Config(**(sizes(num_key_value_heads=4, **_SIZES, **_LATENT, **own) | changes))


def _qwen2() -> PreTrainedConfig:
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return Qwen2MoeConfig(**sizes(**experts, shared_expert_intermediate_size=40))


def _qwen3() -> PreTrainedConfig:
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return Qwen3MoeConfig(**sizes(**experts, norm_topk_prob=True, head_dim=16, rope_parameters=_PLAIN_YARN))


def _gpt_oss() -> PreTrainedConfig:
    yarn = _PLAIN_YARN | {"truncate": False}
    own = {"num_local_experts": 5, "num_experts_per_tok": 3, "head_dim": 16, "sliding_window": 9}
    return GptOssConfig(**sizes(hidden_size=64, intermediate_size=96, num_hidden_layers=4, rope_parameters=yarn, **own))


def _dots1() -> PreTrainedConfig:
    own = {"first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "head_dim": 12, "sliding_window": None}
    return Dots1Config(**sizes(norm_topk_prob=True, n_group=3, topk_group=2, **_SIZES, **own))


def _ernie() -> PreTrainedConfig:
    experts = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 2}
    layers = {"num_hidden_layers": 4, "moe_layer_start_index": 1, "moe_layer_interval": 2}
    return Ernie4_5_MoeConfig(**sizes(**experts, **layers))


_NORMED_SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True}
FILES = {
    "llama": [Converted(CONFIGS["mixtral"])],
    "qwen2moe": [Converted(_qwen2)],
    "qwen3moe": [Converted(_qwen3, _YARN_KEYS)],
    "olmoe": [Converted(CONFIGS["olmoe"])],
    "glm4moe": [
        Converted(CONFIGS["glm4-moe"], {"rope.dimension_count": 8, **_NORMED_SIGMOID}),
        Converted(CONFIGS["glm4-moe-biased"], {"rope.dimension_count": 10, "expert_weights_norm": False}),
    ],
    "gpt-oss": [Converted(_gpt_oss, {"expert_feed_forward_length": 96, "rope.freq_base": 10_000.0, **_YARN_KEYS})],
    "deepseek2": [
        Converted(
            lambda: _deepseek_v3(rope_parameters=_YARN, n_group=4, topk_group=2),
            {"rope.scaling.yarn_log_multiplier": 0.08, **_YARN_KEYS, **_BY_HEAD, **_NORMED_SIGMOID},
        ),
        Converted(lambda: _deepseek_v3(n_group=1, topk_group=1, norm_topk_prob=False), _BEFORE, splits_kv=False),
        Converted(lambda: _deepseek_v2(q_lora_rank=None), _BY_HEAD),
        Converted(
            lambda: _deepseek_v2(q_lora_rank=20, n_group=4, topk_group=2, topk_method="group_limited_greedy"),
            {"expert_gating_func": 1, **_BEFORE},
            splits_kv=False,
        ),
    ],
    "dots1": [Converted(_dots1, _NORMED_SIGMOID)],
    "ernie4_5-moe": [Converted(_ernie, {"rope.freq_base": 500_000.0})],
    "granitemoe": [Converted(CONFIGS["granite-moe-shared"])],
    "minimax-m2": [Converted(CONFIGS["minimax-m2"], {"rope.dimension_count": 10, "expert_gating_func": 2})],
}
CASES = [pytest.param(name, file, id=f"{name}-{i}") for name, files in FILES.items() for i, file in enumerate(files)]


@pytest.mark.parametrize(("architecture", "converted"), CASES)
def test_a_gguf_file_means_the_model_that_it_was_made_of(
    architecture: str,
    converted: Converted,
    start: Callable[..., LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, path = _written(architecture, converted, tmp_path, monkeypatch)
    assert_same_model(path, model, start)


def _written(
    architecture: str, converted: Converted, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[PreTrainedModel, Path]:
    monkeypatch.setitem(tiny_checkpoints.CONFIGS, "converted", converted.config)
    model, path = write_checkpoint("converted", folder / "hf").model, folder / "model.gguf"
    write_gguf(path, architecture, _metadata(model.config, converted), _tensors(architecture, model, converted))
    return model, path


# Names of transformers 5, and those of the checkpoints that converters read.
_RENAMED = {
    "block_sparse_moe.router.": "block_sparse_moe.router.layer.",
    "block_sparse_moe.experts.": "mlp.experts.",
    "gate.moe_statics.": "moe_statics.",
}


def _metadata(config: PreTrainedConfig, converted: Converted) -> dict[str, Any]:
    found = {
        key: next((value for name in names if (value := getattr(config, name, None)) is not None), None)
        for key, names in _KEYS.items()
    }
    return found | converted.metadata


def _tensors(architecture: str, model: PreTrainedModel, converted: Converted) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's tensors under GGUF's names."""
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    corrections = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("correction_bias"))
    for hf_name, tensor in (*model.named_parameters(), *corrections):
        for part, value in _parts(architecture, hf_name, tensor.detach(), model, converted):
            name = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert name is not None, part
            yield name, value


def _parts(
    architecture: str, name: str, tensor: torch.Tensor, model: PreTrainedModel, converted: Converted
) -> Iterator[tuple[str, torch.Tensor]]:
    """What becomes of one of a model's tensors, under the names that the converter's table knows."""
    config = model.config
    for new, known in _RENAMED.items():
        name = name.replace(new, known)
    before, _, leaf = name.rpartition(".")
    if leaf.startswith("gate_up_proj"):
        is_bias = leaf.endswith("_bias")
        outputs = tensor.mT if architecture == "gpt-oss" and not is_bias else tensor
        halves = (outputs[:, ::2], outputs[:, 1::2]) if architecture == "gpt-oss" else outputs.chunk(2, 1)
        for part, half in zip(("gate", "up"), halves, strict=True):
            yield f"{before}.{part}_proj.{'bias' if is_bias else 'weight'}", half
    elif ".input_linear." in name:
        for part, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
            yield name.replace("shared_mlp.input_linear", f"mlp.shared_experts.{part}_proj"), half
    elif leaf == "down_proj":
        yield f"{name}.weight", tensor.mT if architecture == "gpt-oss" else tensor
    elif leaf == "down_proj_bias":
        yield f"{before}.down_proj.bias", tensor
    elif leaf == "e_score_correction_bias":
        yield f"{before}.e_score_correction.bias", tensor.flatten()
    elif leaf == "sinks":
        yield f"{name}.weight", tensor
    elif ".kv_b_proj." in name and converted.splits_kv:
        by_head = tensor.unflatten(0, (config.num_attention_heads, -1))
        keys, values = by_head.split((config.qk_nope_head_dim, config.v_head_dim), 1)
        yield name.replace("kv_b_proj", "k_b_proj"), keys.mT
        yield name.replace("kv_b_proj", "v_b_proj"), values
    elif architecture in ("llama", "granitemoe") and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        yield name, tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    else:
        yield name, tensor


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a machine without a GPU")
@pytest.mark.parametrize("architecture", ["deepseek2", "gpt-oss"])
def test_a_file_divided_over_two_processes(
    architecture: str, start_two: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = _written(architecture, FILES[architecture][0], tmp_path, monkeypatch)
    assert_same_model(path, model, start_two)


def test_mxfp4_experts(start: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = FILES["gpt-oss"][0]
    model, path = _written("gpt-oss", converted, tmp_path, monkeypatch)
    kind = gguf.GGMLQuantizationType.MXFP4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                rounded = gguf.quants.quantize(parameter.mT.contiguous().numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(rounded, kind)).mT)
    tensors = dict(_tensors("gpt-oss", model, converted))
    kinds = dict.fromkeys((name for name in tensors if name.endswith("_exps.weight")), kind)
    write_gguf(path, "gpt-oss", _metadata(model.config, converted), tensors.items(), kinds)
    assert_same_model(path, model, start)


def _qwen3_of_blocks() -> PreTrainedConfig:
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3MoeConfig(**sizes(hidden_size=64, norm_topk_prob=True, head_dim=16, **experts))


@pytest.mark.skipif(
    native_kernels() is None or torch.cuda.is_available(), reason="needs compiled kernels, no GPU; run on an AMD EPYC"
)
@pytest.mark.parametrize(
    ("architecture", "converted", "up", "down", "bound"),
    [
        ("qwen3moe", Converted(_qwen3_of_blocks), "Q5_0", "Q8_0", 0.02),
        ("gpt-oss", FILES["gpt-oss"][0], "Q5_0", "Q8_0", 0.02),
        ("gpt-oss", FILES["gpt-oss"][0], "MXFP4", "MXFP4", 0.04),
    ],
)
def test_experts_that_stay_blocks(
    architecture: str,
    converted: Converted,
    up: str,
    down: str,
    bound: float,
    start: Callable[..., LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Log-probabilities differ from those of the dequantised file by what rounding activations to 8 bits costs."""
    model, path = _written(architecture, converted, tmp_path, monkeypatch)
    tensors = dict(_tensors(architecture, model, converted))
    types = {"ffn_gate_exps": up, "ffn_up_exps": up, "ffn_down_exps": down}
    kinds = {
        name: gguf.GGMLQuantizationType[types[name.split(".")[-2]]] for name in tensors if name.endswith("_exps.weight")
    }
    write_gguf(path, architecture, _metadata(model.config, converted), tensors.items(), kinds)
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0, detokenize=False)
    prompt = [(7 * index) % 200 for index in range(50)]
    found = []
    for quantization in (None, "gguf"):
        llm = start(Checkpoint(model, path), quantization=quantization)
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        found.append(
            [next(iter(entries.values())).logprob for entries in output.prompt_logprobs if entries is not None]
        )
    exact, rounded = torch.tensor(found)
    assert 0 < (rounded - exact).abs().mean() < bound


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a machine without a GPU")
@pytest.mark.parametrize(
    ("architecture", "converted", "types"),
    [
        ("qwen3moe", Converted(_qwen3_of_blocks), ("Q5_1", "Q4_0")),
        ("gpt-oss", FILES["gpt-oss"][0], ("MXFP4", "MXFP4")),
    ],
    ids=["qwen3moe", "gpt-oss"],
)
def test_experts_and_embeddings_that_stay_packed(
    architecture: str,
    converted: Converted,
    types: tuple[str, str],
    start: Callable[..., LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on GPUs, whose GEMMs unpack them."""
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    monkeypatch.setattr(CpuPlatform, "has_groups", lambda self: True)
    model, path = _written(architecture, converted, tmp_path, monkeypatch)
    tensors = dict(_tensors(architecture, model, converted))
    kinds = {
        name: gguf.GGMLQuantizationType[types["_down_" in name]] for name in tensors if name.endswith("_exps.weight")
    }
    kinds["token_embd.weight"] = gguf.GGMLQuantizationType.Q8_0
    write_gguf(path, architecture, _metadata(model.config, converted), tensors.items(), kinds)
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0, detokenize=False)
    prompt = [(7 * index) % 200 for index in range(50)]
    found, kept = [], []
    note = Experts.finish_weights

    def finish(self: Experts) -> None:
        kept.append(self.stored_as)
        note(self)

    monkeypatch.setattr(Experts, "finish_weights", finish)
    for quantization in (None, "gguf"):
        kept.clear()
        llm = start(Checkpoint(model, path), quantization=quantization)
        assert all(kept) == (quantization is not None)
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        found.append(
            [next(iter(entries.values())).logprob for entries in output.prompt_logprobs if entries is not None]
        )
    dequantised, packed = torch.tensor(found)
    torch.testing.assert_close(packed, dequantised, rtol=0, atol=2e-3)
