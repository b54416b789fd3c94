"""Families whose experts, or rotary pairs, quantised checkpoints store in ways of their own."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny_checkpoints
import torch
from safetensors.torch import load_file, save_file
from tiny import step35
from tiny.sizes import MAX_LENGTH, sizes
from tiny_checkpoints import Checkpoint, write_checkpoint
from torch import nn
from transformers import Llama4TextConfig, PreTrainedConfig

from octavo import LLM, SamplingParams
from octavo.kernels import output_of
from octavo.layers.cache_scales import LayerScales
from octavo.layers.experts import Experts
from octavo.layers.linear import Linear, PartedLinear

sys.path.append(str(Path(__file__).parents[1] / "quantization"))

from float4_checkpoints import draw_float4, modelopt
from float8_checkpoints import compressed_tensors, float8_layer
from integer_checkpoints import compressed, draw

Weights = dict[str, torch.Tensor]
Store = Callable[[tuple[int, int], torch.Generator], tuple[Weights, torch.Tensor]]

PARAMS = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=-1, detokenize=False, ignore_eos=True)
PROMPT = {"prompt_token_ids": [(7 * index) % 200 for index in range(40)]}


def llama4() -> Llama4TextConfig:
    own = {"num_local_experts": 3, "intermediate_size_mlp": 64, "attention_chunk_size": MAX_LENGTH, "head_dim": 16}
    return Llama4TextConfig(**sizes(**own, num_hidden_layers=4, num_attention_heads=6, no_rope_layer_interval=3))


def step() -> PreTrainedConfig:
    limits = {"swiglu_limits": [0, 0, 0, 3.0, 2.0], "swiglu_limits_shared": [0, 0, 0, 5.0, 0]}
    return step35.tiny_config(moe_intermediate_size=32, share_expert_dim=48, **limits)


def as_nvfp4(shape: tuple[int, int], random: torch.Generator) -> tuple[Weights, torch.Tensor]:
    drawn = draw_float4(shape, random, "nvfp4")
    return modelopt(drawn), drawn.weight


def as_blocks(shape: tuple[int, int], random: torch.Generator) -> tuple[Weights, torch.Tensor]:
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    scales = 0.02 + 0.1 * torch.rand(-(-shape[0] // 16), -(-shape[1] // 16), generator=random)
    spread = scales.repeat_interleave(16, 0).repeat_interleave(16, 1)[: shape[0], : shape[1]]
    return {"weight": values, "weight_scale_inv": scales}, values.float() * spread


def as_int8(shape: tuple[int, int], random: torch.Generator) -> tuple[Weights, torch.Tensor]:
    drawn = draw(shape, random, bits=8, group=-1)
    return compressed(drawn, symmetric=True, is_packed=False), drawn.weight


def as_channels(shape: tuple[int, int], random: torch.Generator) -> tuple[Weights, torch.Tensor]:
    return float8_layer(shape, random, per_channel=True)


def layers_of_llama4(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Size]]:
    """The linear layers that quantisers make of a tensor of experts."""
    module, _, part = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
    for index, expert in enumerate(weight):
        for own, matrix in zip(parts, expert.chunk(len(parts), 1), strict=True):
            yield f"{module}.{index}.{own}", matrix.T.shape


def layers_of_step(name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Size]]:
    module, _, part = name.removesuffix(".weight").rpartition(".")
    for index, expert in enumerate(weight):
        yield f"{module}.experts.{index}.{part}", expert.shape


class Case(NamedTuple):
    """A quantised form of a model.

    Attributes:
        store: a layer's tensors, and the weight that they stand for.
        is_stacked: whether experts stay stacked; otherwise each has tensors of its own.
        has_one_scale: whether a stack has one number where each layer would have one of its own.
    """

    config: Callable[[], PreTrainedConfig]
    quantization: dict[str, Any]
    store: Store
    is_stacked: bool
    has_one_scale: bool = False


MODELOPT = {"quant_method": "modelopt", "ignore": ["lm_head", "*router", "*.moe.gate"]}
NVFP4 = MODELOPT | {"quant_algo": "NVFP4"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [16, 16], "modules_to_not_convert": ["lm_head", "moe.gate"]}
IGNORE = ["lm_head", r"re:.*router$"]
INT8 = compressed_tensors(
    format="int-quantized",
    weights={"type": "int"},
    input_activations={"type": "int"},
    ignore=IGNORE,
)

CASES = {
    "llama4-nvfp4": Case(llama4, NVFP4, as_nvfp4, is_stacked=True),
    "llama4-nvfp4-separate": Case(llama4, NVFP4, as_nvfp4, is_stacked=False),
    "llama4-int8": Case(llama4, INT8, as_int8, is_stacked=False),
    "llama4-fp8": Case(llama4, compressed_tensors(ignore=IGNORE), as_channels, is_stacked=False),
    "llama4-fp8-modelopt": Case(llama4, MODELOPT | {"quant_algo": "FP8"}, float8_layer, is_stacked=True),
    "step3.5-nvfp4": Case(step, NVFP4, as_nvfp4, is_stacked=True),
    "step3.5-nvfp4-one-scale": Case(step, NVFP4, as_nvfp4, is_stacked=True, has_one_scale=True),
    "step3.5-nvfp4-separate": Case(step, NVFP4, as_nvfp4, is_stacked=False),
    "step3.5-fp8-blocks": Case(step, BLOCKS, as_blocks, is_stacked=True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_quantised_form_is_what_it_stands_for(
    name: str, start: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.setitem(tiny_checkpoints.CONFIGS, name, case.config)
    plain, stored = tmp_path / "plain", tmp_path / "stored"
    plain.mkdir()
    stored.mkdir()
    source = write_checkpoint(name, plain)
    _quantise(plain, stored, case)
    expected, found = start(source), start(Checkpoint(source.model, stored))
    _assert_same_weights(expected, found)
    # FP8 layers round what they get.
    tolerance = 2.0 if case.store in (as_channels, float8_layer) else 1e-3
    for one, other in zip(_logprobs(expected), _logprobs(found), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=tolerance)


def test_values_of_stacked_experts_may_stand_beside_quantised_layers(
    start: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quantisers that know linear layers alone leave them."""
    case = Case(llama4, compressed_tensors(ignore=IGNORE), as_channels, is_stacked=True)
    monkeypatch.setitem(tiny_checkpoints.CONFIGS, "llama4-values", llama4)
    plain, stored = tmp_path / "plain", tmp_path / "stored"
    plain.mkdir()
    stored.mkdir()
    source = write_checkpoint("llama4-values", plain)
    _quantise(plain, stored, case, leaves_stacks=True)
    _assert_same_weights(start(source), start(Checkpoint(source.model, stored)))


def _quantise(plain: Path, stored: Path, case: Case, *, leaves_stacks: bool = False) -> None:
    """Write a quantised form of a checkpoint, whose weights are replaced by those that it stands for."""
    random = torch.Generator().manual_seed(0)
    own: Weights = {}
    values: Weights = {}
    for name, weight in load_file(plain / "model.safetensors").items():
        is_stack = weight.ndim == 3
        is_layer = is_stack or name.endswith("_proj.weight")
        if not is_layer or (is_stack and leaves_stacks):
            own[name] = values[name] = weight
        elif not is_stack:
            tensors, values[name] = case.store((weight.shape[0], weight.shape[1]), random)
            own |= {name.removesuffix("weight") + leaf: tensor for leaf, tensor in tensors.items()}
        else:
            tensors, values[name] = _stack(name, weight, case, random)
            own |= tensors
    save_file({name: tensor.contiguous() for name, tensor in own.items()}, stored / "model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in values.items()}, plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    (stored / "config.json").write_text(json.dumps(config | {"quantization_config": case.quantization}))


def _stack(name: str, weight: torch.Tensor, case: Case, random: torch.Generator) -> tuple[Weights, torch.Tensor]:
    is_transposed = not name.endswith(".weight")  # Llama 4's
    layers = [*(layers_of_llama4 if is_transposed else layers_of_step)(name, weight)]
    if not case.is_stacked:
        drawn = {layer: case.store((shape[0], shape[1]), random) for layer, shape in layers}
        own = {f"{layer}.{leaf}": tensor for layer, (found, _) in drawn.items() for leaf, tensor in found.items()}
        by_expert = len(layers) // len(weight)
        matrices = [matrix for _, matrix in drawn.values()]
        experts = [torch.cat(matrices[start : start + by_expert]) for start in range(0, len(matrices), by_expert)]
        return own, torch.stack([expert.T if is_transposed else expert for expert in experts])
    shape = weight.shape[:0:-1] if is_transposed else weight.shape[1:]
    stored = [case.store((shape[0], shape[1]), random) for _ in weight]
    if case.has_one_scale:
        first = stored[0][0]["weight_scale_2"]
        stored = [
            (found | {"weight_scale_2": first}, matrix * (first / found["weight_scale_2"])) for found, matrix in stored
        ]
    own = {}
    for leaf in stored[0][0]:
        parts = [found[leaf].T if is_transposed and found[leaf].ndim == 2 else found[leaf] for found, _ in stored]
        parts = [part.view(torch.uint8) if part.dtype is torch.float8_e4m3fn else part for part in parts]
        stacked = torch.stack(parts).view(stored[0][0][leaf].dtype)
        if case.has_one_scale and leaf == "weight_scale_2":
            stacked = stacked[:1]
        if is_transposed:
            own[name if leaf == "weight" else f"{name}_{leaf}"] = stacked
        else:
            own[name.removesuffix("weight") + leaf] = stacked
    return own, torch.stack([matrix.T if is_transposed else matrix for _, matrix in stored])


def _assert_same_weights(expected: LLM, found: LLM) -> None:
    one, other = (_modules(llm) for llm in (expected, found))
    assert one.keys() == other.keys()
    for name, module in one.items():
        if isinstance(module, Experts):
            for key, parameter in module.named_parameters():
                torch.testing.assert_close(other[name].get_parameter(key), parameter, rtol=1e-5, atol=1e-5)
        else:
            x = torch.eye(module.in_features)  # rounding keeps ones and zeros
            torch.testing.assert_close(output_of(other[name](x)), output_of(module(x)), rtol=1e-5, atol=1e-5)


def _modules(llm: LLM) -> dict[str, Any]:
    (found,) = llm.apply_model(lambda model: dict(model.named_modules()))
    kinds: tuple[type[nn.Module], ...] = (Linear, PartedLinear, Experts)
    return {name: module for name, module in found.items() if isinstance(module, kinds)}


def _logprobs(llm: LLM) -> list[torch.Tensor]:
    (output,) = llm.generate([PROMPT], PARAMS, use_tqdm=False)
    assert output.prompt_logprobs is not None
    rows = [row for row in output.prompt_logprobs if row is not None]
    return [torch.tensor([row[token].logprob for token in sorted(row)]) for row in rows]


@pytest.mark.parametrize("is_sidecar", [False, True], ids=["config", "sidecar"])
def test_scales_of_latent_vectors(
    is_sidecar: bool,
    start: Callable[..., LLM],
    checkpoint: Callable[[str], Checkpoint],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As ModelOpt writes them: beside the projections that latent attention does not have."""
    # Warnings only: the folder's name, which other records have, holds the word that is looked for.
    caplog.set_level(logging.WARNING, logger="octavo")
    source = checkpoint("deepseek-v3")
    weights = load_file(source.folder / "model.safetensors")
    num_layers = source.model.config.num_hidden_layers
    given = [0.02 + 0.01 * index for index in range(num_layers)]
    for index, scale in enumerate(given):
        path = f"model.layers.{index}.self_attn"
        weights |= {f"{path}.{kind}_proj.{kind}_scale": torch.tensor(scale) for kind in "kv"}
    save_file(weights, tmp_path / "model.safetensors")
    config = json.loads((source.folder / "config.json").read_text())
    own = {"quant_algo": None, "kv_cache_quant_algo": "FP8"}
    if is_sidecar:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": own}))
    else:
        config["quantization_config"] = {"quant_method": "modelopt", **own}
    (tmp_path / "config.json").write_text(json.dumps(config))
    llm = start(Checkpoint(source.model, tmp_path))
    (modules,) = llm.apply_model(lambda model: list(model.modules()))
    found = [float(module.given[0]) for module in modules if isinstance(module, LayerScales)]
    assert found == pytest.approx(given)
    assert not [record for record in caplog.records if "scales" in record.getMessage()]
    one, other = (torch.cat(_logprobs(each)) for each in (start(source), llm))
    assert 0 < float((one - other).abs().mean()) < 0.5
