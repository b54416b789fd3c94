"""Whole models with float8 weights: from checkpoints, rounded as they are loaded, mixed, and updated."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import assert_computes
from float8_checkpoints import compressed_tensors, write_float8
from tiny_llama import SETTINGS, write_model
from transformers import LlamaForCausalLM

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, WeightsError
from octavo.kernels.scaled import quantize_rows
from octavo.layers.linear import Linear
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.scheme import PlainScheme

PROMPTS = [[1, 5, 9, 33, 70, 2], [8] * 11, [100]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=3, ignore_eos=True)
FP8_METHOD = {"quant_method": "fp8", "activation_scheme": "dynamic"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"))


def _outputs(llm: LLM) -> list[Any]:
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], GREEDY)
    return [
        (answer.outputs[0].token_ids, [{token: entry.logprob for token, entry in each.items()} for each in logprobs])
        for answer in answers
        if (logprobs := answer.outputs[0].logprobs) is not None
    ]


def _schemes(llm: LLM) -> dict[str, Any]:
    (found,) = llm.apply_model(
        lambda model: {name: layer.scheme for name, layer in model.named_modules() if isinstance(layer, Linear)}
    )
    return found


def _everything_but_the_head(layer: str) -> bool:
    return layer != "lm_head"


def test_rounding_at_load_is_what_a_checkpoint_would_hold(folder: Path, tmp_path: Path) -> None:
    write_float8(folder, tmp_path, compressed_tensors(), per_tensor=False, is_quantised=_everything_but_the_head)
    at_load = LLM(str(folder), quantization="fp8", **SETTINGS)
    stored = LLM(str(tmp_path), **SETTINGS)
    assert _outputs(stored) == _outputs(at_load)
    kinds = {name: scheme for name, scheme in _schemes(at_load).items() if isinstance(scheme, Float8Scheme)}
    assert len(kinds) == 2 * 4, "all layers but the head"


@pytest.mark.parametrize(
    ("config", "per_tensor", "has_head"),
    [
        (compressed_tensors(), False, False),
        (compressed_tensors(weights={"strategy": "tensor"}), True, False),
        (compressed_tensors(ignore=[]), False, True),
        (FP8_METHOD, True, False),
    ],
    ids=["channel", "tensor", "head", "fp8"],
)
def test_logits_are_near_those_of_the_dequantised_weights(
    config: dict[str, Any], per_tensor: bool, has_head: bool, folder: Path, tmp_path: Path
) -> None:
    weights = write_float8(
        folder, tmp_path, config, per_tensor=per_tensor, is_quantised=lambda layer: has_head or layer != "lm_head"
    )
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(weights)
    llm = LLM(str(tmp_path), **SETTINGS)
    (params,) = [SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=5)]
    for prompt in PROMPTS[:2]:
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        (answer,) = llm.generate([{"prompt_token_ids": prompt}], params)
        assert answer.prompt_logprobs is not None
        for position, entries in enumerate(answer.prompt_logprobs[1:]):
            assert entries is not None
            for token, entry in entries.items():
                # Activations are rounded to four significant bits in every layer.
                assert entry.logprob == pytest.approx(expected[position, token].item(), abs=0.6)


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_activations_of_weights_alone_are_not_rounded(strategy: str, folder: Path, tmp_path: Path) -> None:
    config = compressed_tensors(input_activations=None, weights={"strategy": strategy})
    per_tensor = strategy == "tensor"
    weights = write_float8(folder, tmp_path, config, per_tensor=per_tensor, is_quantised=_everything_but_the_head)
    assert_computes(tmp_path, folder, weights)


def test_activations_are_rounded_exactly_as_the_twin_does(folder: Path) -> None:
    """One layer, against the definition in float32."""
    llm = LLM(str(folder), quantization="fp8", **SETTINGS)
    (layer,) = llm.apply_model(lambda model: model.get_submodule("model.layers.1.self_attn.o_proj"))
    weight = LlamaForCausalLM.from_pretrained(folder).model.layers[1].self_attn.o_proj.weight.detach()
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    (values, scales), (weights, weight_scales) = quantize_rows.reference(x), quantize_rows.reference(weight)
    expected = (values.float() @ weights.float().T) * scales * weight_scales.T
    with torch.inference_mode():
        torch.testing.assert_close(layer.multiply(x), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(expected, x @ weight.T, rtol=0, atol=0.15 * (x @ weight.T).abs().max().item())


def test_layers_are_mixed_by_name(folder: Path, tmp_path: Path) -> None:
    names = ["model.layers.0.self_attn.o_proj", "model.layers.0.self_attn.k_proj"]
    ignore = ["lm_head", *names, r"re:.*layers\.1\.mlp\..*"]
    plain = {*names, *(f"model.layers.1.mlp.{part}_proj" for part in ("gate", "up", "down"))}
    write_float8(
        folder,
        tmp_path,
        compressed_tensors(ignore=ignore),
        per_tensor=False,
        is_quantised=lambda layer: layer not in plain | {"lm_head"},
    )
    llm = LLM(str(tmp_path), **SETTINGS)
    quantised = {name for name, scheme in _schemes(llm).items() if isinstance(scheme, Float8Scheme)}
    assert quantised == {
        "model.layers.0.self_attn.qkv_proj.members.0",
        "model.layers.0.self_attn.qkv_proj.members.2",
        "model.layers.0.mlp.gate_up_proj",
        "model.layers.0.mlp.down_proj",
        "model.layers.1.self_attn.qkv_proj",
        "model.layers.1.self_attn.o_proj",
    }
    assert all(len(tokens) == 12 for tokens, _ in _outputs(llm))


@pytest.mark.parametrize("method", ["compressed-tensors", "fp8"])
def test_static_scales_of_activations_are_not_used(method: str, folder: Path, tmp_path: Path) -> None:
    """Scales of tokens are more exact; 0.01, which the checkpoint says, would clip most activations."""
    static, dynamic = (
        compressed_tensors(weights={"strategy": "tensor"}, input_activations={"dynamic": False, "strategy": "tensor"}),
        compressed_tensors(weights={"strategy": "tensor"}),
    )
    if method == "fp8":
        static, dynamic = {"quant_method": "fp8", "activation_scheme": "static"}, FP8_METHOD
    for name, config in (("static", static), ("dynamic", dynamic)):
        write_float8(
            folder,
            tmp_path / name,
            config,
            per_tensor=True,
            is_quantised=_everything_but_the_head,
            has_static_scales=name == "static",
        )
    assert _outputs(LLM(str(tmp_path / "static"), **SETTINGS)) == _outputs(LLM(str(tmp_path / "dynamic"), **SETTINGS))


def test_parts_of_one_layer_may_be_stored_apart(folder: Path, tmp_path: Path) -> None:
    config = FP8_METHOD | {"ignored_layers": ["model.layers.1.self_attn.k_proj"]}

    def is_quantised(layer: str) -> bool:
        return _everything_but_the_head(layer) and "1.self_attn.k_proj" not in layer

    write_float8(folder, tmp_path, config, per_tensor=True, is_quantised=is_quantised)
    llm = LLM(str(tmp_path), **SETTINGS)
    plain = {name for name, scheme in _schemes(llm).items() if not isinstance(scheme, Float8Scheme)}
    assert plain == {"model.layers.1.self_attn.qkv_proj.members.1", "lm_head"}
    assert all(len(tokens) == 12 for tokens, _ in _outputs(llm))


def test_weights_and_configuration_must_agree(folder: Path, tmp_path: Path) -> None:
    everything = compressed_tensors()
    write_float8(folder, tmp_path, everything, per_tensor=False, is_quantised=lambda layer: "layers.0" in layer)
    plain = {
        name for name, scheme in _schemes(LLM(str(tmp_path), **SETTINGS)).items() if isinstance(scheme, PlainScheme)
    }
    assert {name.partition(".self")[0].partition(".mlp")[0] for name in plain} == {"model.layers.1", "lm_head"}
    write_float8(folder, tmp_path, everything, per_tensor=False, is_quantised=lambda layer: False)
    with pytest.raises(WeightsError, match=r"missing: model\.layers\.0.*weight_scale.*quantised in another way"):
        LLM(str(tmp_path), **SETTINGS)


def test_a_setting_that_contradicts_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    write_float8(folder, tmp_path, compressed_tensors(), per_tensor=False, is_quantised=_everything_but_the_head)
    with pytest.raises(ConfigError, match=r"'fp8', but the checkpoint is quantised by 'compressed-tensors'"):
        LLM(str(tmp_path), quantization="fp8", **SETTINGS)
    with pytest.raises(ConfigError, match="the checkpoint is not quantised"):
        LLM(str(folder), quantization="compressed-tensors", **SETTINGS)
    LLM(str(tmp_path), quantization="compressed-tensors", **SETTINGS)


def test_updated_weights_are_rounded_as_well(folder: Path, tmp_path: Path) -> None:
    updated = write_model(tmp_path / "new")
    weights = LlamaForCausalLM.from_pretrained(updated)
    with torch.no_grad():
        weights.model.layers[0].mlp.up_proj.weight.mul_(-1.5)
    weights.save_pretrained(updated)
    llm = LLM(str(folder), quantization="fp8", weight_update_dir=str(tmp_path), **SETTINGS)
    before = _outputs(llm)
    llm.update_weights("new", "v2")
    changed = _outputs(llm)
    assert changed != before
    assert changed == _outputs(LLM(str(updated), quantization="fp8", **SETTINGS))
    llm.update_weights()
    assert _outputs(llm) == before


def test_random_float8_weights(folder: Path, tmp_path: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    for config in (compressed_tensors(), compressed_tensors(weights={"strategy": "tensor"}), FP8_METHOD):
        (tmp_path / "config.json").write_text(json.dumps(raw | {"quantization_config": config}))
        llm = LLM(str(tmp_path), load_format="dummy", skip_tokenizer_init=True, **SETTINGS)
        (layer,) = llm.apply_model(lambda model: model.get_submodule("model.layers.0.self_attn.o_proj"))
        spread = layer.multiply(torch.eye(layer.in_features)).std().item()
        assert spread == pytest.approx(0.02, rel=0.2), "as of unquantised dummy weights"
