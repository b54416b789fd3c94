"""Linear layers by name: which scheme they get, which tensors fill them, and that they can be filled again."""

from dataclasses import dataclass, field

import pytest
import torch

from octavo.layers.build import Build
from octavo.layers.linear import Linear, PartedLinear
from octavo.layers.norm import UnitOffsetRMSNorm
from octavo.layers.weights import CheckpointNames, collect_slots, finish
from octavo.quantization.config import QuantizationConfig
from octavo.quantization.scheme import LinearScheme, PlainScheme


@dataclass(frozen=True, slots=True)
class ByName(QuantizationConfig):
    """Records the names that it is asked for."""

    plain: PlainScheme = field(default_factory=PlainScheme)
    special: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    @property
    def description(self) -> str:
        return ""

    def scheme(self, name: str) -> LinearScheme:
        self.asked.append(name)
        return PlainScheme(deterministic=name in self.special)


def test_the_scheme_is_asked_for_by_the_full_names_of_the_parts() -> None:
    config = ByName(special=("model.layers.3.self_attn.o_proj",))
    build = Build(config).at("model.layers.3").at("self_attn")
    qkv = build.linear("qkv_proj", 8, {"q_proj": 16, "k_proj": 4, "v_proj": 4})
    out = build.linear("o_proj", 16, 8)
    prefix = "model.layers.3.self_attn"
    assert config.asked == [f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj", f"{prefix}.o_proj"]
    assert (qkv.scheme, out.scheme) == (PlainScheme(), PlainScheme(deterministic=True))


def test_the_scheme_is_asked_for_by_the_checkpoints_names() -> None:
    config = ByName()
    names = CheckpointNames({"model.layers.": "transformer.h."}, {"self_attn": "attn.attention", "o_proj": "out_proj"})
    build = Build(config, names=names).at("model.layers.3").at("self_attn")
    model = torch.nn.Module()
    model.self_attn = torch.nn.Module()
    model.self_attn.o_proj = build.linear("o_proj", 16, 8)
    model.module_names = names.modules
    assert config.asked == ["transformer.h.3.attn.attention.out_proj"]
    assert list(collect_slots(model)) == ["attn.attention.out_proj.weight"]


def test_parts_of_one_layer_may_be_stored_apart() -> None:
    build = Build(ByName(special=("mlp.up_proj",))).at("mlp")
    layer = build.linear("gate_up_proj", 8, {"gate_proj": 16, "up_proj": 16})
    assert isinstance(layer, PartedLinear)
    assert [member.scheme for member in layer.members] == [PlainScheme(), PlainScheme(deterministic=True)]


@pytest.mark.parametrize("biased", [(), ("up_proj",), ("gate_proj", "up_proj")])
def test_parts_of_one_layer_may_have_biases(biased: tuple[str, ...]) -> None:
    model = torch.nn.Module()
    model.mlp = torch.nn.Module()
    model.mlp.gate_up_proj = layer = Build().linear("gate_up_proj", 3, {"gate_proj": 2, "up_proj": 4}, bias=biased)
    assert isinstance(layer, PartedLinear) == (len(biased) == 1)
    weights = {f"mlp.{name}.weight" for name in ("gate_proj", "up_proj")}
    assert set(collect_slots(model)) == weights | {f"mlp.{name}.bias" for name in biased}


def test_merged_layers_are_filled_by_their_parts() -> None:
    model = torch.nn.Module()
    model.mlp = torch.nn.Module()
    model.mlp.gate_up_proj = layer = Build().linear("gate_up_proj", 3, {"gate_proj": 2, "up_proj": 4}, bias=True)
    slots = collect_slots(model)
    assert {name: tuple(slot.view.shape) for name, (slot,) in slots.items()} == {
        "mlp.gate_proj.weight": (2, 3),
        "mlp.gate_proj.bias": (2,),
        "mlp.up_proj.weight": (4, 3),
        "mlp.up_proj.bias": (4,),
    }
    for value, (slot,) in enumerate(slots.values()):
        slot.fill(torch.full(slot.view.shape, float(value)))
    finish(model)
    x = torch.ones(1, 3)
    assert layer(x).tolist() == [[1.0] * 2 + [9.0] * 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_may_be_filled_again(dtype: torch.dtype) -> None:
    """Float32 weights stay where they are; packed ones are packed anew."""
    torch.set_default_dtype(dtype)
    try:
        layer = Build().linear("proj", 32, 16)
    finally:
        torch.set_default_dtype(torch.float32)
    x = torch.randn(3, 32).to(dtype)
    places = set()
    for seed in range(3):
        weight = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
        _fill(layer, weight)
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight))
        before = layer(x)
        finish(layer)
        assert torch.equal(layer(x), before), "finishing again changes nothing"
        places.add(layer.weight.data_ptr())
    if layer.packed is None:
        assert len(places) == 1, "captured graphs would read other memory"
    else:
        assert not layer.weight.numel(), "the packed copy is the only one"


def test_a_norms_weight_stays_in_place() -> None:
    norm = UnitOffsetRMSNorm(4, 1e-6)
    place = norm.weight.data_ptr()
    for value in (0.25, -0.5):
        (slot,) = collect_slots(norm)[".weight"]
        slot.fill(torch.full((4,), value, dtype=torch.bfloat16))
        finish(norm)
        assert norm.weight.data_ptr() == place
        assert norm.weight.tolist() == [1 + value] * 4


def _fill(layer: Linear, weight: torch.Tensor) -> None:
    (slot,) = collect_slots(layer)["proj.weight"]
    slot.fill(weight)
    finish(layer)
