"""Whole models whose weights are integers in groups, in the formats of checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import PROMPTS, assert_computes, layers_of
from integer_checkpoints import Drawn, awq, compressed, draw, gptq, write_layers
from safetensors.torch import load_file, save_file
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, WeightsError
from octavo.kernels.blocks import round_inputs
from octavo.layers.build import Build
from octavo.layers.linear import Linear, PartedLinear
from octavo.layers.weights import finish
from octavo.parallel import TensorParallel
from octavo.platforms.cpu import CpuPlatform
from octavo.platforms.native import native_kernels
from octavo.quantization.awq import parse_awq
from octavo.quantization.compressed_layouts import CompressedLayout
from octavo.quantization.compressed_tensors import parse_compressed_tensors
from octavo.quantization.config import SchemeOptions
from octavo.quantization.gptq import parse_gptq
from octavo.quantization.scheme import PlainScheme
from octavo.quantization.stored import ExpandedScheme, PackedScheme, RepackedScheme

needs_kernels = pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), hidden_size=64, intermediate_size=96)


GPTQ_CASES: dict[str, dict[str, Any]] = {
    "groups": {},
    "asymmetric": {"sym": False},
    "version-2": {"sym": False, "checkpoint_format": "gptq_v2"},
    "act-order": {"desc_act": True, "sym": False},
    "channels": {"group_size": -1},
    "eight-bits": {"bits": 8},
    "eight-bits-asymmetric": {"bits": 8, "sym": False},
    "head": {"lm_head": True},
    "two-bits": {"bits": 2},
    "three-bits": {"bits": 3, "desc_act": True, "sym": False},
    "three-bits-version-2": {"bits": 3, "sym": False, "checkpoint_format": "gptq_v2"},
}


def gptq_config(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False, **changes}


def drawn_as(config: dict[str, Any], shape: tuple[int, int], random: torch.Generator) -> Drawn:
    return draw(
        shape,
        random,
        bits=config["bits"],
        group=config["group_size"],
        symmetric=config["sym"],
        shuffled=config["desc_act"],
    )


def write_gptq(source: Path, folder: Path, config: dict[str, Any], factor: float = 1.0) -> dict[str, torch.Tensor]:
    """Write a model; ``factor`` scales all quantised weights."""
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if layer == "lm_head" and not config.get("lm_head"):
            return None
        drawn = drawn_as(config, shape, random)
        drawn = drawn._replace(scales=drawn.scales * factor)
        return gptq(drawn, is_second=config.get("checkpoint_format") == "gptq_v2"), drawn.weight

    return write_layers(source, folder, config, store)


both_ways = pytest.mark.parametrize("is_packed", [False, True], ids=["expanded", "packed"])


@pytest.mark.parametrize("case", GPTQ_CASES)
@both_ways
def test_gptq(case: str, is_packed: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = gptq_config(**GPTQ_CASES[case])
    weights = write_gptq(folder, tmp_path, config)
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    llm = assert_computes(tmp_path, folder, weights, **({"quantization": "gptq"} if is_packed else {}))
    layers = layers_of(llm)
    wanted = PackedScheme if is_packed else ExpandedScheme
    assert type(layers["model.layers.1.mlp.down_proj"].scheme) is wanted
    has_orders = is_packed and config["desc_act"]
    assert type(layers["model.layers.0.self_attn.qkv_proj"]) is (PartedLinear if has_orders else Linear)
    assert isinstance(layers["lm_head"].scheme, wanted) == bool(config.get("lm_head"))


def test_gptq_layers_differ_by_patterns(folder: Path, tmp_path: Path) -> None:
    """Excluded layers are plain; the parts of one layer may differ."""
    changes = {"-:.*layers\\.0\\.mlp": {}, "+:.*layers\\.1\\.self_attn\\.[kv]_proj": {"bits": 8, "group_size": 16}}
    config = gptq_config(dynamic=changes)
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if "layers.0.mlp" in layer or layer == "lm_head":
            return None
        own = {"bits": 8, "group_size": 16} if layer.endswith(("1.self_attn.k_proj", "1.self_attn.v_proj")) else {}
        drawn = drawn_as(config | own, shape, random)
        return gptq(drawn), drawn.weight

    weights = write_layers(folder, tmp_path, config, store)
    layers = layers_of(assert_computes(tmp_path, folder, weights))
    assert isinstance(layers["model.layers.0.mlp.gate_up_proj"].scheme, PlainScheme)
    assert isinstance(layers["model.layers.0.self_attn.qkv_proj"], Linear)
    assert isinstance(layers["model.layers.1.self_attn.qkv_proj"], PartedLinear)


def test_gptq_weights_that_contradict_the_configuration(folder: Path, tmp_path: Path) -> None:
    write_gptq(folder, tmp_path, gptq_config(sym=False))
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["quantization_config"]["sym"] = True
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(WeightsError, match="zeros of their own, but the configuration has sym = true"):
        LLM(str(tmp_path), **SETTINGS)


def test_biases_of_layers_without_one_are_ignored(folder: Path, tmp_path: Path) -> None:
    """AutoGPTQ writes zeros for them."""
    weights = write_gptq(folder, tmp_path, gptq_config())
    stored = load_file(tmp_path / "model.safetensors")
    save_file(stored | {"model.layers.0.mlp.up_proj.bias": torch.zeros(96)}, tmp_path / "model.safetensors")
    assert_computes(tmp_path, folder, weights)


@both_ways
def test_awq(is_packed: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    ignored = ["layers.0.self_attn"]
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "modules_to_not_convert": ignored}
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if layer == "lm_head" or "layers.0.self_attn" in layer:
            return None
        drawn = draw(shape, random, symmetric=False)
        return awq(drawn), drawn.weight

    weights = write_layers(folder, tmp_path, config, store)
    layers = layers_of(assert_computes(tmp_path, folder, weights, **({"quantization": "awq"} if is_packed else {})))
    assert isinstance(layers["model.layers.1.self_attn.qkv_proj"].scheme, PackedScheme if is_packed else ExpandedScheme)
    assert isinstance(layers["model.layers.0.self_attn.qkv_proj"].scheme, PlainScheme)


COMPRESSED_CASES: dict[str, dict[str, Any]] = {
    "groups": {},
    "asymmetric": {"symmetric": False},
    "act-order": {"actorder": "group", "symmetric": False},
    "static-act-order": {"actorder": "weight"},
    "channels": {"num_bits": 8, "strategy": "channel", "group_size": None},
    "eight-bits": {"num_bits": 8, "symmetric": False},
    "zeros-of-bytes": {"symmetric": False, "zeros": torch.int8},
    "int8": {"num_bits": 8, "strategy": "channel", "group_size": -1, "format": "int-quantized"},
    "int8-asymmetric": {"num_bits": 8, "symmetric": False, "format": "int-quantized"},
    "four-bits-in-bytes": {"format": "int-quantized"},
    "two-bits": {"num_bits": 2, "symmetric": False},
    "three-bits": {"num_bits": 3, "actorder": "group", "symmetric": False},
    "five-bits": {"num_bits": 5, "strategy": "channel", "group_size": None},
    "six-bits": {"num_bits": 6},
    "seven-bits": {"num_bits": 7, "symmetric": False},
    "three-bits-in-bytes": {"num_bits": 3, "symmetric": False, "format": "int-quantized"},
}


def compressed_group(**changes: Any) -> dict[str, Any]:
    stored, _ = changes.pop("format", "pack-quantized"), changes.pop("zeros", None)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False}
    return {"targets": ["Linear"], "weights": weights | changes, "input_activations": None, "format": stored}


def compressed_layer(
    group: dict[str, Any], shape: tuple[int, int], random: torch.Generator
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    own = group["weights"]
    shuffled = own.get("actorder") == "group"
    size = own["group_size"] if own["strategy"] == "group" else -1
    drawn = draw(
        shape,
        random,
        bits=own["num_bits"],
        group=size,
        symmetric=own["symmetric"],
        shuffled=shuffled,
        dtype=torch.bfloat16,
    )
    is_packed = group["format"] == "pack-quantized"
    return compressed(drawn, symmetric=own["symmetric"], is_packed=is_packed, shuffled=shuffled), drawn.weight


def zeros_of_bytes(packed: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """Packed zeros of 4 bits as signed integers, as older versions wrote them."""
    unpacked = torch.stack([(packed >> (4 * place)) & 15 for place in range(8)], 1).flatten(0, 1)[:num_outputs]
    return (unpacked - 8).to(torch.int8)


@pytest.mark.parametrize("case", COMPRESSED_CASES)
@both_ways
def test_compressed_tensors(
    case: str, is_packed: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    group = compressed_group(**COMPRESSED_CASES[case])
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if layer == "lm_head":
            return None
        tensors, weight = compressed_layer(group, shape, random)
        if "zeros" in COMPRESSED_CASES[case]:
            tensors["weight_zero_point"] = zeros_of_bytes(tensors["weight_zero_point"], shape[0])
        return tensors, weight

    weights = write_layers(folder, tmp_path, config, store)
    settings = {"quantization": "compressed-tensors"} if is_packed else {}
    layers = layers_of(assert_computes(tmp_path, folder, weights, **settings))
    wanted = PackedScheme if is_packed else ExpandedScheme
    assert isinstance(layers["model.layers.1.mlp.down_proj"].scheme, wanted)


def test_rounded_outputs_are_not(folder: Path, tmp_path: Path) -> None:
    """Static scales of INT8 inputs and outputs beside weights of two bits."""
    static = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}
    group = compressed_group(num_bits=2, strategy="channel", group_size=None)
    group |= {"input_activations": static, "output_activations": static}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if layer == "lm_head":
            return None
        tensors, weight = compressed_layer(group, shape, random)
        return tensors | {"input_scale": torch.tensor([0.1]), "output_scale": torch.tensor([0.2])}, weight

    assert_computes(tmp_path, folder, write_layers(folder, tmp_path, config, store))


def test_compressed_tensors_groups_of_several_formats(folder: Path, tmp_path: Path) -> None:
    """The head, too, and layers that are computed as one but stored in different ways."""
    first = compressed_group(num_bits=8, strategy="channel", group_size=None, format="int-quantized")
    second = compressed_group(symmetric=False) | {"targets": ["re:.*down_proj", "model.layers.0.self_attn.v_proj"]}
    groups = {"group_0": first, "group_1": second}
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups, "ignore": []}
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        is_second = layer.endswith(("down_proj", "0.self_attn.v_proj"))
        return compressed_layer(second if is_second else first, shape, random)

    layers = layers_of(assert_computes(tmp_path, folder, write_layers(folder, tmp_path, config, store)))
    assert isinstance(layers["model.layers.0.self_attn.qkv_proj"], PartedLinear)
    assert isinstance(layers["model.layers.1.self_attn.qkv_proj"], Linear)
    assert isinstance(layers["lm_head"].scheme, ExpandedScheme)


def test_shapes_that_contradict_the_configuration(folder: Path, tmp_path: Path) -> None:
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": compressed_group()}}
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tensors, weight = compressed_layer(compressed_group(), shape, random)
        return tensors | {"weight_shape": torch.tensor([shape[0], shape[1] - 1])}, weight

    write_layers(folder, tmp_path, config, store)
    with pytest.raises(WeightsError, match=r"weight_shape of .*, the configuration wants"):
        LLM(str(tmp_path), **SETTINGS)


@pytest.mark.parametrize("is_packed", [False, True], ids=["bytes", "words"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_all_widths_keep_their_values(bits: int, is_packed: bool) -> None:
    """The least and the largest integers beside the least and the largest zeros, and words that end within some."""
    drawn = draw((7, 40), torch.Generator().manual_seed(bits), bits=bits, group=8, symmetric=False)
    largest = (1 << bits) - 1
    drawn.integers[:, ::8], drawn.integers[:, 1::8] = 0, largest
    drawn.zeros[::2, 0], drawn.zeros[1::2, 0] = 0, largest
    layout = CompressedLayout(bits, "group", 8, is_symmetric=False, is_packed=is_packed)
    tensors = compressed(drawn, symmetric=False, is_packed=is_packed)
    assert all(tensors[name].shape in stored.shapes for name, stored in layout.tensors((7, 40)).items())
    weight = layout.read(tensors, (7, 40))
    torch.testing.assert_close(weight.values(), drawn.weight, rtol=0, atol=0)
    # Devices have 4 bits and 8. Where these are more than the checkpoint's, they hold integers less their zeros.
    assert (layout.form.bits, layout.form.has_zeros) == (4 if bits <= 4 else 8, bits in (4, 8))
    assert isinstance(weight.zeros, torch.Tensor) == layout.form.has_zeros
    assert int(weight.codes.max()) < 1 << layout.form.bits
    if is_packed:  # some versions fill up the last 32 integers
        packed = tensors["weight_packed"]
        filled = torch.nn.functional.pad(packed, (0, 2 * bits - packed.shape[1]))
        assert filled.shape in layout.tensors((7, 40))["weight_packed"].shapes
        again = layout.read(tensors | {"weight_packed": filled}, (7, 40))
        torch.testing.assert_close(again.values(), drawn.weight, rtol=0, atol=0)


@pytest.mark.parametrize("bits", [2, 3, 4, 7])
@pytest.mark.parametrize("name", ["weight", "weight_zero_point"])
def test_integers_that_are_out_of_range(name: str, bits: int) -> None:
    layout = CompressedLayout(bits, "group", 8, is_symmetric=False, is_packed=False)
    for wrong in (1 << (bits - 1), -(1 << (bits - 1)) - 1):
        drawn = draw((7, 40), torch.Generator().manual_seed(0), bits=bits, group=8)
        tensors = compressed(drawn, symmetric=False, is_packed=False)
        tensors[name][3, 1] = wrong
        named = "zeros" if "zero" in name else "integers"
        with pytest.raises(WeightsError, match=rf"{named} from -?\d+ to -?\d+, but those of {bits} bits, as the conf"):
            layout.read(tensors, (7, 40))


def test_zeros_that_are_neither_words_nor_bytes() -> None:
    layout = CompressedLayout(3, "group", 8, is_symmetric=False)
    drawn = draw((70, 40), torch.Generator().manual_seed(0), bits=3, group=8)
    tensors = compressed(drawn, symmetric=False, is_packed=True)
    for wrong in (drawn.zeros.int(), torch.zeros(7, 5, dtype=torch.int8)):
        with pytest.raises(WeightsError, match=r"70 outputs have zeros of 3 bits of the shape \[\d+, 5\] and the type"):
            layout.read(tensors | {"weight_zero_point": wrong}, (70, 40))


@pytest.mark.parametrize("name", ["qweight", "qzeros"])
def test_words_that_are_missing(name: str, folder: Path, tmp_path: Path) -> None:
    write_gptq(folder, tmp_path, gptq_config(bits=3))
    stored = load_file(tmp_path / "model.safetensors")
    key = f"model.layers.0.mlp.up_proj.{name}"
    stored[key] = stored[key][:-1].clone() if name == "qweight" else stored[key][:, :-1].clone()
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"up_proj\.{name}"):
        LLM(str(tmp_path), **SETTINGS)


@needs_kernels
@pytest.mark.parametrize(
    ("changes", "stored_as"),
    [
        ({}, "Q4_0"),
        ({"sym": False, "desc_act": True}, "Q4_1"),
        ({"bits": 8, "group_size": -1}, "Q8_0"),
        ({"bits": 3, "sym": False, "desc_act": True}, "Q4_0"),
    ],
    ids=str,
)
def test_compiled_kernels_take_blocks_of_the_same_values(changes: dict[str, Any], stored_as: str) -> None:
    config = gptq_config(**changes)
    random = torch.Generator().manual_seed(0)
    sizes = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    layer = Build(parse_gptq(config, SchemeOptions(has_blocks=True))).at("attn").linear("qkv_proj", 64, sizes)
    drawn = {name: drawn_as(config, (size, 64), random) for name, size in sizes.items()}
    x = torch.randn(5, 64, generator=random)
    for _ in range(2):  # weights can be updated in place
        slots = dict(layer.weight_slots("attn.qkv_proj"))
        for name, values in drawn.items():
            for key, tensor in gptq(values).items():
                if f"attn.{name}.{key}" in slots:
                    slots[f"attn.{name}.{key}"].fill(tensor)
        finish(layer)
        members = [module for module in layer.modules() if isinstance(module, Linear)]
        assert {member.scheme.blocks.format for member in members} == {stored_as}
        # Activations are rounded in groups of 32 inputs in the order of the weight's.
        parts = []
        for values in drawn.values():
            order = values.groups.argsort(stable=True)
            parts.append(round_inputs(x[:, order]) @ values.weight[:, order].T)
        # A minimum of Q4_1, scale times zero, is rounded to float16.
        torch.testing.assert_close(layer(x), torch.cat(parts, 1), rtol=2e-3, atol=5e-3)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", ["pack-quantized", "int-quantized"])
@pytest.mark.parametrize("strategy", ["group", "channel"])
def test_four_bit_weights_for_eight_bit_activations(strategy: str, stored: str, dtype: torch.dtype) -> None:
    """Checkpoints of W4A8: activations of all types, by weights with scales of groups or of outputs."""
    group = compressed_group(strategy=strategy, group_size=32 if strategy == "group" else None, format=stored)
    group["input_activations"] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    parsed = parse_compressed_tensors(config, SchemeOptions(has_blocks=True))
    layer = Build(parsed).at("mlp").linear("gate_up_proj", 512, {"gate_proj": 48, "up_proj": 32})
    random = torch.Generator().manual_seed(0)
    slots, weights = dict(layer.weight_slots("mlp.gate_up_proj")), []
    for name, size in (("gate_proj", 48), ("up_proj", 32)):
        tensors, weight = compressed_layer(group, (size, 512), random)
        weights.append(weight)
        for key, tensor in tensors.items():
            if f"mlp.{name}.{key}" in slots:
                slots[f"mlp.{name}.{key}"].fill(tensor)
    finish(layer)
    assert layer.scheme.blocks.format == "Q4_0"
    x = torch.randn(9, 512, generator=random).to(dtype)
    y, expected = layer(x), x.double() @ torch.cat(weights).double().T
    assert y.dtype == dtype
    assert (y - expected).square().mean() < 1e-4 * expected.square().mean()


@needs_kernels
@pytest.mark.parametrize("changes", [{"desc_act": True}, {"bits": 8}, {"lm_head": True, "sym": False}], ids=str)
def test_models_of_blocks(changes: dict[str, Any], tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    config = gptq_config(**changes)
    weights = write_gptq(source, tmp_path / "gptq", config)
    # Activations are rounded to 8 bits in every layer, and random layers amplify that; logits have a spread above 2.
    llm = assert_computes(tmp_path / "gptq", source, weights, tolerance=0.5, quantization="gptq")
    assert isinstance(layers_of(llm)["model.layers.1.mlp.down_proj"].scheme, RepackedScheme)
    in_bfloat16 = LLM(str(tmp_path / "gptq"), **(SETTINGS | {"dtype": "bfloat16"}))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (answer,) = in_bfloat16.generate([{"prompt_token_ids": [1, 5, 9]}], params)
    assert len(answer.outputs[0].token_ids) == 8


@pytest.mark.parametrize("settings", [{}, {"quantization": "gptq"}, {"dtype": "bfloat16"}], ids=str)
def test_weights_can_be_updated(settings: dict[str, Any], tmp_path: Path) -> None:
    config = gptq_config(desc_act=True)
    for name, factor in (("first", 1.0), ("second", -0.5)):
        source = write_model(tmp_path / f"plain-{name}", hidden_size=64, intermediate_size=96)
        write_gptq(source, tmp_path / name, config, factor)
    settings = SETTINGS | settings

    def tokens(llm: LLM) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    llm = LLM(str(tmp_path / "first"), weight_update_dir=str(tmp_path), **settings)
    before = tokens(llm)
    llm.update_weights("second", "v2")
    assert tokens(llm) == tokens(LLM(str(tmp_path / "second"), **settings)) != before
    llm.update_weights()
    assert tokens(llm) == before


@pytest.mark.long
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=128)
    write_gptq(source, tmp_path / "gptq", gptq_config(sym=False))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    one, two = (
        [
            answer.outputs[0].token_ids
            for answer in LLM(str(tmp_path / "gptq"), tensor_parallel_size=size, **SETTINGS).generate(prompts, params)
        ]
        for size in (1, 2)
    )
    assert one == two


def test_inputs_are_divided_between_groups() -> None:
    halves = [TensorParallel(rank, 2) for rank in range(2)]
    config = gptq_config(group_size=32)
    drawn = drawn_as(config, (16, 128), torch.Generator().manual_seed(0))
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    total = torch.zeros(3, 16)
    for tp in halves:
        build = Build(parse_gptq(config, SchemeOptions()), tensor_parallel=tp)
        layer = build.linear("down_proj", 128, 16, split="row")
        for name, slot in layer.weight_slots("down_proj"):
            slot.fill(gptq(drawn)[name.removeprefix("down_proj.")])
        layer.finish_weights()
        assert isinstance(layer.scheme, PackedScheme)
        total += Linear.forward(layer, x.chunk(2, 1)[tp.rank])
    torch.testing.assert_close(total, x @ drawn.weight.T)


def test_outputs_are_divided_anywhere() -> None:
    """AWQ packs them into words, which are unpacked before."""
    config = {"bits": 4, "group_size": 32}
    drawn = {name: draw((16, 64), torch.Generator().manual_seed(0), symmetric=False) for name in ("gate", "up")}
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    found: list[torch.Tensor] = []
    for rank in range(2):
        build = Build(parse_awq(config, SchemeOptions()), tensor_parallel=TensorParallel(rank, 2))
        layer = build.linear("gate_up", 64, {"gate": 16, "up": 16}, split="column", head_size=4)
        for name, slot in layer.weight_slots("gate_up"):
            part, leaf = name.split(".")
            slot.fill(awq(drawn[part])[leaf].contiguous())
        finish(layer)
        found.append(layer(x).unflatten(1, (2, 8)))
    expected = torch.stack([x @ values.weight.T for values in drawn.values()], 1)
    torch.testing.assert_close(torch.cat(found, 2), expected)


@pytest.mark.parametrize("changes", [{"group_size": 24}, {"desc_act": True}], ids=str)
def test_inputs_that_cannot_be_divided(changes: dict[str, Any]) -> None:
    config = parse_gptq(gptq_config(**changes), SchemeOptions())
    build = Build(config, tensor_parallel=TensorParallel(0, 2)).at("mlp")
    with pytest.raises(
        ConfigError, match=r"mlp\.down_proj is stored as GPTQ \(.*\), which cannot be divided into parts of 60 inputs"
    ):
        build.linear("down_proj", 120, 16, split="row")


def test_random_weights_of_a_quantised_model(folder: Path, tmp_path: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"quantization_config": gptq_config(sym=False)}))
    llm = LLM(str(tmp_path), load_format="dummy", skip_tokenizer_init=True, **SETTINGS)
    layer = layers_of(llm)["model.layers.0.self_attn.o_proj"]
    assert layer.multiply(torch.eye(layer.in_features)).std().item() == pytest.approx(0.02, rel=0.2)


def test_gptq_by_the_file_beside_the_configuration(folder: Path, tmp_path: Path) -> None:
    """Older writers leave config.json as it was."""
    weights = write_gptq(folder, tmp_path, gptq_config())
    raw = json.loads((tmp_path / "config.json").read_text())
    own = {key: value for key, value in raw.pop("quantization_config").items() if key != "quant_method"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "quantize_config.json").write_text(json.dumps(own))
    assert_computes(tmp_path, folder, weights)
