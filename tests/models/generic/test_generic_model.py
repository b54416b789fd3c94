"""Models of the transformers library with Octavo's layers in them: what is replaced, how weights are found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from library_models import LLAMA, MIXTRAL, QWEN3, build_on_meta, config_of
from safetensors.torch import load_file, save_file

from octavo.errors import ConfigError, UnsupportedModelError, WeightsError
from octavo.hub import ModelConfig, ModelSource
from octavo.layers import experts
from octavo.layers.build import Build
from octavo.layers.norm import RMSNorm
from octavo.layers.weights import collect_slots
from octavo.models.generic.experts import TokenExperts
from octavo.models.generic.linears import SharedLinear, TokenLinear, TokenMLP
from octavo.models.loading import check_weights, load_weights
from octavo.models.loading.safetensors_files import SafetensorsCheckpoint
from octavo.models.registry import build_model
from octavo.parallel import TensorParallel
from octavo.planning.memory import model_size
from octavo.quantization.config import SchemeOptions, Unquantized
from octavo.quantization.resolve import stored_quantization
from octavo.quantization.scheme import PlainScheme
from octavo.records import Full, SlidingWindow

EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}


def _reference(config: ModelConfig) -> Any:
    library = type(transformers.AutoConfig.for_model(config.model_type)).from_dict(dict(config.raw))
    torch.manual_seed(1)
    return getattr(transformers, config.architecture)(library)


def _write(tensors: dict[str, torch.Tensor], folder: Path) -> ModelSource:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return ModelSource("folder", folder, "tiny")


def _load(config: ModelConfig, source: ModelSource) -> Any:
    model = build_model(config, Build(), 64)
    load_weights(model, source, config, load_format="auto", seed=0, show_progress=False)
    return model


def test_what_octavo_computes_as_well_is_replaced() -> None:
    layer = build_on_meta(config_of(*QWEN3)).model.layers[0]
    assert isinstance(layer.mlp, TokenMLP)
    assert type(layer.input_layernorm) is RMSNorm and type(layer.self_attn.q_norm) is RMSNorm
    assert isinstance(layer.self_attn.k_proj, SharedLinear)
    assert isinstance(layer.self_attn.o_proj, TokenLinear)
    experts = build_on_meta(config_of(*MIXTRAL, **EXPERTS)).model.layers[0].mlp.experts
    assert isinstance(experts, TokenExperts)


def test_experts_are_as_deterministic_as_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    make = experts.make_experts
    monkeypatch.setattr(experts, "make_experts", lambda *own, **flags: asked.append(flags) or make(*own, **flags))
    config = config_of(*MIXTRAL, **EXPERTS)
    source = _write(dict(_reference(config).state_dict()), tmp_path)
    for deterministic in (False, True):
        asked.clear()
        model: Any = build_model(config, Build(Unquantized(PlainScheme(deterministic))), 64)
        load_weights(model, source, config, load_format="auto", seed=0, show_progress=False)
        for layer in model.model.layers:
            layer.mlp.experts(torch.ones(1, 48), torch.tensor([[0, 1]]), torch.ones(1, 2))
        assert asked and all(flags == {"deterministic": deterministic} for flags in asked)


def test_other_activations_and_norms_stay_the_librarys() -> None:
    layer = build_on_meta(config_of(*LLAMA, hidden_act="relu")).model.layers[0]
    assert type(layer.mlp).__name__ == "LlamaMLP"
    assert isinstance(layer.mlp.gate_proj, SharedLinear)
    layer = build_on_meta(config_of(transformers.OlmoConfig, "OlmoForCausalLM")).model.layers[0]
    assert type(layer.input_layernorm).__name__ == "OlmoLayerNorm"


def test_size_and_caches_are_known_without_weights() -> None:
    changes = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
    config = config_of(transformers.CwmConfig, "CwmForCausalLM", tie_word_embeddings=True, **changes)
    size = model_size(config, torch.bfloat16)
    assert size.num_parameters == sum(parameter.numel() for parameter in _reference(config).parameters())
    assert size.cache_specs == {
        "model.layers.0.self_attn": Full(2, 12, "bfloat16"),
        "model.layers.1.self_attn": SlidingWindow(2, 12, "bfloat16", 8),
    }
    assert size.table_bytes == 3 * 12 * 2, "cosines, sines and signed sines of a position"


@pytest.mark.parametrize("rank_and_size", [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("layout", ["saved", "the library's own"])
def test_experts_each_by_itself_and_stacked(layout: str, rank_and_size: tuple[int, int], tmp_path: Path) -> None:
    rank, size = rank_and_size
    config = config_of(*MIXTRAL, **EXPERTS)
    reference = _reference(config)
    if layout == "saved":
        reference.save_pretrained(tmp_path)
    else:
        _write(reference.state_dict(), tmp_path)
    model = build_model(config, Build(tensor_parallel=TensorParallel(rank, size)), 64)
    list(model.convert_checkpoint(SafetensorsCheckpoint(tmp_path)).copy_into(collect_slots(model)))
    experts, wanted = model.model.layers[1].mlp.experts, reference.model.layers[1].mlp.experts
    own = [half.chunk(size, 1)[rank] for half in wanted.gate_up_proj.data.chunk(2, 1)]
    torch.testing.assert_close(experts.gate_up_proj.data, torch.cat(own, 1), rtol=0, atol=0)
    torch.testing.assert_close(experts.down_proj.data, wanted.down_proj.data.chunk(size, 2)[rank], rtol=0, atol=0)


def test_quantised_experts_are_rejected_by_name(tmp_path: Path) -> None:
    """Those that were left as they are load, whatever the configuration says of them."""
    config = config_of(transformers.Qwen3MoeConfig, "Qwen3MoeForCausalLM", num_experts=8, moe_intermediate_size=32)
    config = replace(config, quantization={"quant_method": "fp8", "ignored_layers": ["self_attn"]})
    _reference(config).save_pretrained(tmp_path)
    tensors, source = load_file(tmp_path / "model.safetensors"), ModelSource("folder", tmp_path, "tiny")
    with torch.device("meta"):
        model = build_model(config, Build(stored_quantization(config, SchemeOptions())), 64)
    check_weights(model, source, config)
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = torch.ones(())
    with pytest.raises(UnsupportedModelError, match=r"model.layers.0.mlp.experts are quantised \(float8\)"):
        check_weights(model, _write(tensors, tmp_path), config)


def test_weights_that_are_missing_or_unknown_are_named(tmp_path: Path) -> None:
    config = config_of(*LLAMA)
    tensors = dict(_reference(config).state_dict())
    tensors["model.layers.0.mlp.other.weight"] = tensors.pop("model.layers.0.mlp.down_proj.weight")
    source = _write(tensors, tmp_path)
    with pytest.raises(WeightsError, match=r"1 missing: model.layers.0.mlp.down_proj.weight; 1 unexpected: .*other"):
        check_weights(build_on_meta(config), source, config)


def test_weights_of_the_layers_alone_are_found(tmp_path: Path) -> None:
    config = config_of(*LLAMA, tie_word_embeddings=True)
    reference = _reference(config)
    model = _load(config, _write(reference.model.state_dict(), tmp_path))
    torch.testing.assert_close(model.model.norm.weight, reference.model.norm.weight.detach())


def test_frequencies_that_depend_on_the_batch_are_chosen_once() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 6,
        "long_factor": [2.0] * 6,
        "original_max_position_embeddings": 32,
    }
    config = config_of(
        transformers.Phi3Config, "Phi3ForCausalLM", rope_parameters=rope, original_max_position_embeddings=32
    )
    short, long = (build_model(config, Build(), length).model.rotary_emb.inv_freq for length in (32, 33))
    torch.testing.assert_close(long, short / 2)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    config = config_of(*LLAMA, rope_parameters=dynamic)
    build_on_meta(config, 64)
    with pytest.raises(UnsupportedModelError, match="beyond 64 positions"):
        build_on_meta(config, 65)


def test_a_model_without_a_plan_is_not_divided() -> None:
    config = config_of(transformers.BitNetConfig, "BitNetForCausalLM")
    with torch.device("meta"), pytest.raises(ConfigError, match="no plan to divide BitNetForCausalLM"):
        build_model(config, Build(tensor_parallel=TensorParallel(0, 2)), 64)


def test_a_divided_model_has_half_of_what_is_divided() -> None:
    config = config_of(*MIXTRAL, **EXPERTS)
    whole, half = (model_size(config, torch.float32, None, TensorParallel(0, size)) for size in (1, 2))
    assert half.cache_specs["model.layers.0.self_attn"] == Full(1, 12, "float32")
    assert half.weight_bytes < 0.6 * whole.weight_bytes
