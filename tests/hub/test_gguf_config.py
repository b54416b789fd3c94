"""What a GGUF file's metadata says, in the words of a configuration."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from cpu_time import within_cpu_seconds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import OctavoError, UnsupportedModelError
from octavo.hub import ModelConfig, RopeConfig, load_generation_config, load_model_config, resolve
from octavo.hub.families.deepseek import DeepseekFields
from octavo.hub.families.gemma import GemmaFields
from octavo.hub.families.llama import LlamaFields
from octavo.layers.build import Build
from octavo.models.registry import build_model

SIZES: dict[str, Any] = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 50000.0,
}
LATENT: dict[str, Any] = {
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 24,
    "expert_shared_count": 1,
    "expert_group_count": 2,
    "expert_group_used_count": 1,
    "leading_dense_block_count": 1,
    "nextn_predict_layers": 1,
    "attention.kv_lora_rank": 16,
    "attention.key_length": 24,
    "attention.value_length": 16,
    "attention.key_length_mla": 20,
    "attention.value_length_mla": 12,
    "rope.dimension_count": 8,
    "rope.scaling.yarn_log_multiplier": 0.1,
}
EMBEDDING = {"token_embd.weight": np.zeros((300, 64), np.float16)}


def _write(folder: Path, architecture: str, *, tensors: dict[str, np.ndarray] | None = None, **metadata: Any) -> Path:
    """A file of one embedding and such tensors and metadata as are given; keys may leave out the architecture."""
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (SIZES | metadata).items():
        if value is not None:
            _add(
                writer, key if key.startswith(("general.", "tokenizer.", "split.")) else f"{architecture}.{key}", value
            )
    for name, tensor in (EMBEDDING if tensors is None else tensors).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    adders[type(value)](key, value)


def _load(path: Path, overrides: dict[str, Any] | None = None) -> ModelConfig:
    return load_model_config(resolve(str(path)), overrides)


@pytest.mark.parametrize(
    ("architecture", "class_name", "head_dim", "has_bias"),
    [
        ("llama", "LlamaForCausalLM", 16, False),
        ("qwen2", "Qwen2ForCausalLM", 16, True),
        ("qwen3", "Qwen3ForCausalLM", 32, False),
        ("gemma3", "Gemma3ForCausalLM", 32, False),
        ("gemma", "GemmaForCausalLM", 32, False),
        ("gemma2", "Gemma2ForCausalLM", 32, False),
        ("phi3", "Phi3ForCausalLM", 16, False),
        ("glm4", "Glm4ForCausalLM", 32, False),
        ("granite", "GraniteForCausalLM", 16, False),
        ("minicpm", "MiniCPMForCausalLM", 16, False),
        ("olmo2", "Olmo2ForCausalLM", 16, False),
        ("exaone", "ExaoneForCausalLM", 16, False),
        ("exaone4", "Exaone4ForCausalLM", 16, False),
        ("smollm3", "SmolLM3ForCausalLM", 16, False),
        ("arcee", "ArceeForCausalLM", 16, False),
        ("seed_oss", "SeedOssForCausalLM", 32, False),
        ("ernie4_5", "Ernie4_5ForCausalLM", 32, False),
        ("hunyuan-dense", "HunYuanDenseV1ForCausalLM", 32, False),
    ],
)
def test_sizes_of_every_family(
    architecture: str, class_name: str, head_dim: int, has_bias: bool, tmp_path: Path
) -> None:
    key_length = {} if head_dim == 16 else {"attention.key_length": head_dim}
    config = _load(_write(tmp_path, architecture, **key_length))
    assert (config.architecture, config.head_dim) == (class_name, head_dim)
    with torch.device("meta"):
        names = [name for name, _ in build_model(config, Build(), 16).named_parameters()]
    assert any("self_attn" in name and name.endswith(".bias") for name in names) == has_bias
    assert (config.hidden_size, config.num_layers, config.intermediate_size) == (64, 4, 96)
    assert (config.num_heads, config.num_kv_heads, config.vocab_size) == (4, 2, 300)
    assert (config.max_position_embeddings, config.rope.theta) == (512, 50000.0)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == ()
    assert config.dtype == "float16"
    assert set(config.layer_types) == {"full_attention"} or architecture in ("gemma2", "gemma3")


def test_a_head_of_its_own_is_not_tied(tmp_path: Path) -> None:
    tensors = {**EMBEDDING, "output.weight": np.zeros((300, 64), np.float16)}
    assert not _load(_write(tmp_path, "llama", tensors=tensors)).tie_word_embeddings


def test_llama_with_biases_and_with_a_window(tmp_path: Path) -> None:
    biased = {**EMBEDDING, "blk.0.attn_q.bias": np.zeros(64, np.float32)}
    assert _load(_write(tmp_path, "llama", tensors=biased)).own == LlamaFields(attention_bias=True, output_bias=True)
    config = _load(_write(tmp_path, "llama", **{"attention.sliding_window": 128, "rope.dimension_count": 16}))
    assert (config.architecture, config.sliding_window, config.head_dim) == ("MistralForCausalLM", 128, 16)
    assert set(config.layer_types) == {"sliding_attention"}


def test_gemma3_has_local_layers_and_two_rotary_bases(tmp_path: Path) -> None:
    keys = {"block_count": 7, "attention.sliding_window": 32, "attention.key_length": 24, "rope.freq_base": 1e6}
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = _load(_write(tmp_path, "gemma3", **keys, **scaling))
    assert [kind == "full_attention" for kind in config.layer_types] == [False] * 5 + [True, False]
    assert config.sliding_window == 32
    assert config.rope == RopeConfig(1e6, "linear", {"factor": 8.0})
    assert config.own_as(GemmaFields).local_rope == RopeConfig(1e4)
    assert (config.own_as(GemmaFields).query_pre_attn_scalar, config.hidden_act) == (24, "gelu_pytorch_tanh")


def test_the_largest_gemma3_scales_by_its_width(tmp_path: Path) -> None:
    keys = {"block_count": 62, "embedding_length": 5376, "attention.head_count": 32, "attention.head_count_kv": 16}
    config = _load(_write(tmp_path, "gemma3", **keys, **{"attention.key_length": 128}))
    assert config.own_as(GemmaFields).query_pre_attn_scalar == 168


def test_llama3_scaling_follows_from_the_stored_divisors(tmp_path: Path) -> None:
    divisors = np.array([1, 1, 1, 1, 3.5, 8, 8, 8], np.float32)
    config = _load(_write(tmp_path, "llama", tensors={**EMBEDDING, "rope_freqs.weight": divisors}))
    assert config.rope.kind == "llama3"
    assert config.rope.params == {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_yarn_and_no_scaling(tmp_path: Path) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
    config = _load(_write(tmp_path, "qwen2", **yarn))
    assert config.rope == RopeConfig(50000.0, "yarn", {"factor": 4.0, "original_max_position_embeddings": 128})
    assert _load(_write(tmp_path, "qwen2", **{"rope.scaling.type": "none"})).rope == RopeConfig(50000.0)


def test_ends_of_text_and_sampling_defaults(tmp_path: Path) -> None:
    tokens = {f"tokenizer.ggml.{kind}_token_id": value for kind, value in (("eos", 2), ("eot", 7))}
    sampling = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.25}
    path = _write(tmp_path, "llama", **tokens, **sampling)
    config = _load(path)
    assert config.eos_token_ids == (2, 7)
    defaults = load_generation_config(resolve(str(path)))
    assert defaults == {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}


def test_layers_that_draft_are_none_of_the_model(tmp_path: Path) -> None:
    config = _load(_write(tmp_path, "deepseek2", **LATENT))
    assert (config.architecture, config.num_layers) == ("DeepseekV2ForCausalLM", 3)
    assert config.own_as(DeepseekFields).experts.is_sparse == (False, True, True)


def test_overrides_hold_for_gguf_too(tmp_path: Path) -> None:
    assert _load(_write(tmp_path, "llama"), {"rope_theta": 1e6}).rope.theta == 1e6


@pytest.mark.parametrize(
    ("architecture", "metadata", "named"),
    [
        ("bert", {}, "'bert'"),
        ("gemma", {"expert_count": 8}, "'gemma' with experts"),
        ("deepseek2", {"expert_count": 8, "expert_used_count": 2}, "head_dim"),
        ("llama", {"split.count": 3}, "one of 3 parts"),
        ("llama", {"block_count": None, "attention.head_count": [4, 4]}, "num_attention_heads"),
        ("llama", {"attention.head_count": 3}, "num_key_value_heads"),
        ("llama", {"embedding_length": 0}, "hidden_size"),
        ("llama", {"block_count": 4_000_000_000}, "num_hidden_layers"),
        ("llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": "x"}, "factor"),
        ("gemma3", {"block_count": 62, "attention.head_count": [1] * 62}, "num_attention_heads"),
        ("gemma3", {"block_count": 62, "attention.head_count": 0}, "num_attention_heads"),
    ],
)
def test_metadata_that_cannot_be(architecture: str, metadata: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        _load(_write(tmp_path, architecture, **metadata))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no token embedding"):
        _load(_write(tmp_path, "llama", tensors={"output_norm.weight": np.zeros(4, np.float32)}))
    with pytest.raises(OctavoError, match="rope_freqs"):
        _load(_write(tmp_path, "llama", tensors={**EMBEDDING, "rope_freqs.weight": np.zeros(8, np.float16)}))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "phi3", "minicpm", "exaone4", "deepseek2"])
@given(position=st.integers(0, 1 << 12), noise=st.binary(min_size=1, max_size=8))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@within_cpu_seconds(2)
def test_damaged_metadata_is_read_or_refused(architecture: str, position: int, noise: bytes, tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "tokenizer.ggml.eos_token_id": 2}
    if architecture == "deepseek2":
        keys |= LATENT
    path, sound = tmp_path / "model.gguf", tmp_path / "sound"
    if not sound.exists():
        _write(tmp_path, architecture, tensors={"token_embd.weight": np.zeros((3, 32), np.float32)}, **keys)
        path.rename(sound)
    content = bytearray(sound.read_bytes())
    start = position % (len(content) - 3 * 32 * 4)
    content[start : start + len(noise)] = noise
    path.write_bytes(content)
    try:
        config = _load(path)
        load_generation_config(resolve(str(path)))
    except OctavoError as error:
        assert len(str(error)) < 1000
    else:
        assert len(config.layer_types) == config.num_layers
        assert config.num_heads % config.num_kv_heads == 0
