"""How keys and values are stored: what settings and checkpoints say, and what contradicts them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.hub import ModelSource
from octavo.hub.config_file import parse_config
from octavo.layers.attention import Attention
from octavo.layers.build import Build
from octavo.layers.cache_scales import LayerScales
from octavo.layers.weights import collect_slots
from octavo.models.loading import load_weights
from octavo.models.registry import build_model
from octavo.parallel import TensorParallel
from octavo.quantization.cache_format import CacheFormat, resolve_cache_format

STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
BY_HEAD = {**STATIC, "strategy": "attn_head"}
COMPRESSED = {"quant_method": "compressed-tensors", "kv_cache_scheme": STATIC}
MODELOPT = {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}
PER_TENSOR = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
QUARK = {
    "quant_method": "quark",
    "export": {"kv_cache_group": ["*k_proj", "*v_proj"]},
    "layer_quant_config": {
        name: {"weight": PER_TENSOR, "output_tensors": PER_TENSOR} for name in ("*k_proj", "*v_proj")
    },
}
BY_KEYS = {"*k_proj": {"output_tensors": PER_TENSOR | {"dtype": "int8"}}}
CONFIG = parse_config(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
    }
)


def resolve(checkpoint: dict[str, Any], *, has_float8_cache: bool = True, **settings: Any) -> CacheFormat:
    engine = EngineConfig.from_kwargs(model="m", **settings)
    config = replace(CONFIG, quantization=checkpoint)
    return resolve_cache_format(engine, config, "bfloat16", has_float8_cache=has_float8_cache)


@pytest.mark.parametrize(
    ("checkpoint", "wanted", "dtype", "has_given_scales"),
    [
        ({}, "auto", "", False),
        ({}, "bfloat16", "", False),
        ({}, "fp8", "float8_e4m3fn", False),
        ({}, "fp8_e4m3", "float8_e4m3fn", False),
        ({}, "fp8_e5m2", "float8_e5m2", False),
        ({}, "int8_per_token_head", "int8", False),
        (COMPRESSED, "auto", "float8_e4m3fn", True),
        (COMPRESSED, "fp8", "float8_e4m3fn", True),
        (COMPRESSED, "fp8_per_token_head", "float8_e4m3fn", False),
        (COMPRESSED, "fp8_e5m2", "float8_e5m2", False),
        (COMPRESSED, "bfloat16", "", False),
        (MODELOPT, "auto", "float8_e4m3fn", True),
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, "auto", "float8_e4m3fn", True),
        ({"kv_cache_scheme": {**STATIC, "dynamic": True}}, "auto", "float8_e4m3fn", False),
        ({"kv_cache_scheme": BY_HEAD}, "auto", "float8_e4m3fn", True),
        ({"kv_cache_scheme": BY_HEAD}, "fp8", "float8_e4m3fn", True),
        ({"kv_cache_scheme": BY_HEAD}, "fp8_per_token_head", "float8_e4m3fn", False),
        ({"kv_cache_scheme": {**BY_HEAD, "dynamic": True}}, "auto", "float8_e4m3fn", False),
        ({"kv_cache_scheme": {**STATIC, "type": "int"}}, "auto", "", False),
        ({"kv_cache_quant_algo": "NVFP4"}, "auto", "", False),
        (QUARK, "auto", "float8_e4m3fn", True),
        (QUARK, "bfloat16", "", False),
        (QUARK | {"export": {}}, "auto", "", False),
        (QUARK | {"export": {}, "kv_cache_quant_config": BY_KEYS, "layer_quant_config": {}}, "auto", "", False),
    ],
)
def test_the_setting_wins_over_the_checkpoint(
    checkpoint: dict[str, Any], wanted: str, dtype: str, has_given_scales: bool
) -> None:
    found = resolve(checkpoint, kv_cache_dtype=wanted)
    assert (found.dtype, found.has_given_scales) == (dtype, has_given_scales)
    assert found.has_own_scales == (bool(dtype) and not has_given_scales)
    assert found.has_head_scales == (has_given_scales and checkpoint.get("kv_cache_scheme") == BY_HEAD)
    assert ("the checkpoint's scales per head" in found.description) == found.has_head_scales


def test_a_device_without_float8_keeps_the_compute_type_or_says_so() -> None:
    assert not resolve(COMPRESSED, has_float8_cache=False).dtype
    assert resolve({}, kv_cache_dtype="int8_per_token_head", has_float8_cache=False).dtype == "int8"
    with pytest.raises(ConfigError, match=r"fp8_e5m2.*capability 8\.9.*int8_per_token_head"):
        resolve({}, kv_cache_dtype="fp8_e5m2", has_float8_cache=False)


def test_layers_are_skipped_by_index_or_for_their_window() -> None:
    found = resolve({}, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["1", "sliding_window"])
    names = [f"model.layers.{index}.self_attn" for index in range(3)]
    assert [bool(found.of_layer(name).dtype) for name in names] == [True, False, True]
    assert not any(found.of_layer(name, window=4).dtype for name in names)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kv_cache_dtype": "float16"}, "'float16', but the model computes in bfloat16"),
        ({"kv_cache_dtype_skip_layers": ["0"]}, "keys and values are not quantised"),
        ({"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["3"]}, "below 3 for this model.*not '3'"),
        ({"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["last"]}, "not 'last'"),
    ],
)
def test_what_cannot_be_is_an_error_that_names_it(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve({}, **settings)


@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
        ("kv_scale", ""),
        ("attn.kv_scale", ""),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "vector"])
def test_given_scales_are_found_by_any_of_their_names(
    names: tuple[str, str], shape: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build_model(CONFIG, Build(cache=CacheFormat("float8_e4m3fn", has_given_scales=True)), 16)
    weights = {name: torch.randn(slots[0].view.shape) for name, slots in collect_slots(model).items()}
    weights = {name: weight for name, weight in weights.items() if not name.endswith("_scale")}
    for layer in range(2):
        for number, name in enumerate(filter(None, names), 1):
            weights[f"model.layers.{layer}.self_attn.{name}"] = torch.full(shape, 10.0 * layer + number)
    save_file(weights, tmp_path / "model.safetensors")
    source = ModelSource("folder", tmp_path, "m")
    load_weights(model, source, CONFIG, load_format="auto", seed=0, show_progress=False)
    found = [module.scales.given.tolist() for module in model.modules() if isinstance(module, Attention)]
    second = 2 if names[1] else 1
    assert found == [[1, second], [11, 10 + second], [1, 1]], "the last layer has none"
    assert "lacks 2 scales of keys and values" in caplog.text


@pytest.mark.parametrize(
    ("num_heads", "size", "own"),
    [(4, 1, [[0, 1, 2, 3]]), (4, 2, [[0, 1], [2, 3]]), (2, 2, [[0], [1]]), (2, 4, [[0], [0], [1], [1]])],
    ids=["one", "two", "all", "repeated"],
)
@pytest.mark.parametrize("shape", [(-1, 1, 1), (-1,)], ids=["as written", "flat"])
def test_given_scales_of_heads(num_heads: int, size: int, own: list[list[int]], shape: tuple[int, ...]) -> None:
    """Each device has those of its heads, where fewer heads than devices are repeated."""
    given = {kind: 1 + number + torch.arange(float(num_heads)) for number, kind in enumerate(("k_scale", "v_scale"))}
    stored = CacheFormat("float8_e4m3fn", has_given_scales=True, has_head_scales=True)
    for rank, heads in enumerate(own):
        scales = LayerScales("attn", stored, tuple(given), len(heads), TensorParallel(rank, size))
        for name, slot in scales.weight_slots("attn.scales"):
            values = given[name.removeprefix("attn.")].view(shape)
            assert slot.accepts(tuple(values.shape))
            assert not slot.accepts((3,))
            assert not slot.accepts(())
            slot.fill(values)
        cache = torch.zeros(2, 5, len(heads), 4, 8)
        _, found = scales.beside((cache,))
        assert found is not None
        wanted = torch.stack([values[heads] for values in given.values()])
        torch.testing.assert_close(found.values, wanted[:, None, :, None].expand(cache.shape[:-1]))


def test_latent_vectors_have_no_heads() -> None:
    by_head = CacheFormat("float8_e4m3fn", has_given_scales=True, has_head_scales=True)
    assert by_head.of_latents() == CacheFormat("float8_e4m3fn")
    whole = CacheFormat("float8_e4m3fn", has_given_scales=True)
    assert whole.of_latents() == whole
