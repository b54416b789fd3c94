"""NVFP4, NF4 and FP4 on devices whose GEMMs unpack groups: layers, their parts on several devices, whole models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import assert_computes, layers_of
from float4_checkpoints import compressed_float4, draw_float4, float4_weights, modelopt
from float8_checkpoints import compressed_tensors
from integer_checkpoints import write_layers
from test_bitsandbytes import TABLES, four_bits
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.errors import WeightsError
from octavo.kernels.blocks import round_inputs
from octavo.kernels.triton.grouped import grouped_linear
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.parallel import TensorParallel
from octavo.planning.weights import weight_groups
from octavo.platforms.cpu import CpuPlatform
from octavo.platforms.native import native_kernels
from octavo.quantization import stored
from octavo.quantization.config import SchemeOptions
from octavo.quantization.resolve import parsed_quantization
from octavo.quantization.stored import ExpandedScheme, PackedScheme

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = SchemeOptions(has_float8=True, has_groups=True)
Stored = tuple[dict[str, torch.Tensor], torch.Tensor]


def bitsandbytes(kind: str, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind, **changes}


FORMATS: dict[str, dict[str, Any]] = {
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "compressed-tensors": compressed_tensors(format="nvfp4-pack-quantized", weights=float4_weights("nvfp4")),
    "nf4": bitsandbytes("nf4"),
    "nf4-nested": bitsandbytes("nf4", bnb_4bit_use_double_quant=True),
    "fp4": bitsandbytes("fp4"),
}


CPU_FORMATS = ("modelopt", "compressed-tensors")
"""Those that compiled kernels multiply as blocks."""


def draw(name: str, shape: tuple[int, int], random: torch.Generator) -> Stored:
    """A layer's tensors, and the weight that they stand for."""
    if name.startswith(("nf4", "fp4")):
        return four_bits(shape, name[:3], random, is_nested=name.endswith("nested"))
    drawn = draw_float4(shape, random, "nvfp4")
    is_modelopt = name == "modelopt"
    return modelopt(drawn) if is_modelopt else compressed_float4(drawn, has_inputs=False), drawn.weight


def build_of(name: str, tensor_parallel: TensorParallel | None = None, options: SchemeOptions = GPU) -> Build:
    quantization = parsed_quantization(FORMATS[name]["quant_method"], FORMATS[name], options)
    return Build(quantization, **({} if tensor_parallel is None else {"tensor_parallel": tensor_parallel}))


def fill(layer: Linear, tensors: dict[str, dict[str, torch.Tensor]]) -> None:
    slots = dict(layer.weight_slots("layer"))
    for part, own in tensors.items():
        for leaf, tensor in own.items():
            if f"{part}.{leaf}" in slots:
                slots[f"{part}.{leaf}"].fill(tensor)
    layer.finish_weights()


def hold(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


def write(name: str, source: Path, folder: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Write a model; returns the weights that it stands for."""
    random = torch.Generator().manual_seed(seed)

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        return None if layer == "lm_head" else draw(name, shape, random)

    return write_layers(source, folder, FORMATS[name], store)


@pytest.fixture
def unpacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    monkeypatch.setattr(CpuPlatform, "has_groups", lambda self: True)


@pytest.mark.parametrize("name", FORMATS)
def test_kernels_compute_what_tensors_stand_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one layer, whose factors differ; once more after an update of the weights."""
    monkeypatch.setattr(stored, "grouped_linear", grouped_linear)
    random = torch.Generator().manual_seed(0)
    with DEVICE:
        layer = build_of(name).linear("layer", 192, {"gate_proj": 48, "up_proj": 32})
    assert isinstance(layer, Linear) and type(layer.scheme) is PackedScheme
    scales = {"weight": 80 * 192 // 2, "weight_scale": 80 * 12 if "nf4" not in name and name != "fp4" else 80 * 3 * 4}
    assert {leaf: getattr(layer, leaf).nbytes for leaf in scales} == scales
    x = torch.randn(2, 192, generator=random).half()
    for _ in range(2):
        drawn = {part: draw(name, (size, 192), random) for part, size in (("gate_proj", 48), ("up_proj", 32))}
        fill(layer, {part: {leaf: t.to(DEVICE) for leaf, t in tensors.items()} for part, (tensors, _) in drawn.items()})
        expected = x.float() @ torch.cat([weight for _, weight in drawn.values()]).T
        hold(layer(x.to(DEVICE)).cpu().float(), expected, 2e-3)
        hold(layer(x.float().to(DEVICE)).cpu(), expected)


@pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")
@pytest.mark.parametrize("name", CPU_FORMATS)
def test_blocks_on_cpus(name: str) -> None:
    """NVFP4 with scales in float16, beside activations in 8 bits."""
    random = torch.Generator().manual_seed(0)
    layer = build_of(name, options=SchemeOptions(has_blocks=True)).linear(
        "layer", 192, {"gate_proj": 48, "up_proj": 32}
    )
    assert isinstance(layer, Linear) and layer.scheme.stored_as == "nvfp4"
    x = torch.randn(2, 192, generator=random)
    for _ in range(2):
        drawn = {part: draw(name, (size, 192), random) for part, size in (("gate_proj", 48), ("up_proj", 32))}
        fill(layer, {part: tensors for part, (tensors, _) in drawn.items()})
        hold(layer(x), round_inputs(x) @ torch.cat([weight for _, weight in drawn.values()]).T, 1e-3)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("num_inputs", "num_ranks", "is_packed"), [(384, 2, True), (64, 2, True), (192, 4, False)])
def test_devices_divide_inputs(name: str, num_inputs: int, num_ranks: int, is_packed: bool) -> None:
    """Between groups, or within one of bitsandbytes'; what the kernels cannot take is expanded."""
    tensors, weight = draw(name, (32, num_inputs), torch.Generator().manual_seed(0))
    x = torch.randn(3, num_inputs, generator=torch.Generator().manual_seed(1))
    total = torch.zeros(3, 32)
    for rank in range(num_ranks):
        layer = build_of(name, TensorParallel(rank, num_ranks)).linear("layer", num_inputs, 32, split="row")
        assert isinstance(layer, Linear)
        assert type(layer.scheme) is (PackedScheme if is_packed else ExpandedScheme)
        fill(layer, {"layer": tensors})
        total += Linear.forward(layer, x.chunk(num_ranks, 1)[rank])  # without the sum over devices
    hold(total, x @ weight.T)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("unpacks")
def test_models(name: str, tmp_path: Path) -> None:
    """Layers of 96 inputs are whole groups of NVFP4, not of bitsandbytes; weights are updated in place."""
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    settings = {"quantization": FORMATS[name]["quant_method"], "weight_update_dir": str(tmp_path)}
    first, second = (write(name, source, tmp_path / folder, seed) for seed, folder in enumerate("ab"))
    llm = assert_computes(tmp_path / "a", source, first, **settings)
    layers = layers_of(llm)
    assert type(layers["model.layers.0.self_attn.qkv_proj"].scheme) is PackedScheme
    has_blocks = FORMATS[name]["quant_method"] == "bitsandbytes"
    assert type(layers["model.layers.1.mlp.down_proj"].scheme) is (ExpandedScheme if has_blocks else PackedScheme)
    llm.update_weights("b", "v2")
    for layer in ("self_attn.o_proj", "mlp.down_proj"):
        found = layers_of(llm)[f"model.layers.0.{layer}"]
        hold(found.multiply(torch.eye(found.in_features)).T, second[f"model.layers.0.{layer}.weight"])


@pytest.mark.parametrize("name", ["modelopt", "nf4"])
@pytest.mark.usefixtures("unpacks")
def test_random_weights_and_their_memory(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=128, intermediate_size=256)
    write(name, source, tmp_path)
    settings = SETTINGS | {"quantization": FORMATS[name]["quant_method"], "load_format": "dummy"}
    llm = LLM(str(tmp_path), **settings)
    layer = layers_of(llm)["model.layers.0.self_attn.o_proj"]
    assert layer.multiply(torch.eye(layer.in_features)).std().item() == pytest.approx(0.02, rel=0.1)
    (answer,) = llm.generate([{"prompt_token_ids": [1, 5, 9]}], SamplingParams(temperature=0, max_tokens=2))
    assert len(answer.outputs[0].token_ids) == 2
    (groups,) = llm.apply_model(lambda model: weight_groups(model, is_tied=False))
    values = 2 * 3 * 128 * 256
    num_bytes = values // 2 + (values // 16 + 2 * (2 * 256 + 128) * 4 if name == "modelopt" else values // 64 * 4)
    assert [group.num_bytes for group in groups if group.purpose == "feed-forward"] == [num_bytes]
    assert {group.format for group in groups if group.purpose == "feed-forward"} == {layer.scheme.stored_as}


@pytest.mark.parametrize("block", [32, 64, 128, 256])
def test_blocks_of_other_sizes(block: int) -> None:
    """Blocks of 256 values are of several rows. Smaller ones than the default are rejected, or expanded."""
    random = torch.Generator().manual_seed(0)
    tensors, weight = four_bits((16, 192), "nf4", random, is_nested=False, block=block)
    expanded = Build(parsed_quantization("bitsandbytes", bitsandbytes("nf4"), SchemeOptions())).linear("layer", 192, 16)
    packed = build_of("nf4").linear("layer", 192, 16)
    assert isinstance(expanded, Linear) and isinstance(packed, Linear)
    fill(expanded, {"layer": tensors})
    hold(expanded.multiply(torch.eye(192)).T, weight)
    if block == 32:
        with pytest.raises(WeightsError, match=r"a scale for 32 values; GPUs keep those packed .* a multiple of 64"):
            fill(packed, {"layer": tensors})
        return
    fill(packed, {"layer": tensors})
    hold(packed.multiply(torch.eye(192)).T, weight)


@pytest.mark.parametrize("kind", TABLES)
def test_other_tables_are_rejected(kind: str) -> None:
    tensors, _ = four_bits((16, 64), kind, torch.Generator().manual_seed(0), is_nested=False)
    tensors["weight.quant_map"] = torch.linspace(-1, 1, 16)
    layer = build_of(kind).linear("layer", 64, 16)
    assert isinstance(layer, Linear)
    with pytest.raises(WeightsError, match=f"a quant_map that is not the table of {kind}"):
        fill(layer, {"layer": tensors})


def test_devices_without_such_kernels_expand() -> None:
    for options in (SchemeOptions(), SchemeOptions(has_blocks=True), SchemeOptions(has_groups=True, expands=True)):
        for name, own in FORMATS.items():
            if options.has_blocks and name in CPU_FORMATS:
                continue
            layer = Build(parsed_quantization(own["quant_method"], own, options)).linear("layer", 64, 16)
            assert isinstance(layer, Linear) and type(layer.scheme) is ExpandedScheme
