"""Every format of checkpoints with dense layers and experts, parts that differ, ignored layers, head and embedding.

What a layer computes is held against the weight that its tensors stand for, by the format's definition.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from dense_and_sparse import EMBEDDING, HEAD, ROUTER, Store, Stored, assert_has, is_usual, load, write
from float4_checkpoints import compressed_float4, draw_float4, float4_weights, modelopt
from float6_checkpoints import draw_float6
from float8_checkpoints import compressed_tensors, float8_layer
from integer_checkpoints import Drawn, awq, compressed, draw, gptq, quark
from test_bitsandbytes import four_bits
from test_float8_blocks import COLUMNS, FP8, ROWS
from test_float8_blocks import draw as draw_blocks
from test_torchao_models import INT4, INT8, store
from test_torchao_models import config as torchao

from octavo.config.values import QUANTIZATION_ALIASES
from octavo.layers.build import Build
from octavo.layers.linear import Linear, PartedLinear
from octavo.layers.weights import finish
from octavo.parallel import Section, TensorParallel
from octavo.quantization.config import SchemeOptions
from octavo.quantization.resolve import parsed_quantization
from octavo.quantization.slot import SplitPairs, WeightSlot

QUERIES = "model.layers.0.self_attn.q_proj"
INT8_INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
INT4_WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
MXFP8_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
QUARK_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "ch_axis": None, "group_size": None, "is_dynamic": False}
QUARK_MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "scale_format": "e8m0"}
QUARK_UINT4 = {"dtype": "uint4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "symmetric": False}
QUARK_BLOCKS = QUARK_FP8 | {"qscheme": "per_block", "block_size": [ROWS, COLUMNS]}
QUARK_NVFP4 = [{"dtype": "fp4", "qscheme": "per_group", "group_size": 16, "is_dynamic": False}, QUARK_FP8]


class Format(NamedTuple):
    """A format.

    Attributes:
        config: ``quantization_config`` that leaves some layers as they are, by name or as :attr:`pattern` says.
        store: makes a layer's tensors.
        pattern: the format's regular expression for a pattern; None if it has none.
        has_embedding: whether the embedding may be quantised, too.
        tolerance: relative, of a device that packs values.
        packs_float8: whether a device packs the format that multiplies float8.
    """

    config: Callable[[list[str]], dict[str, Any]]
    store: Store
    pattern: str | None = "re:{}"
    has_embedding: bool = True
    tolerance: float = 1e-3
    packs_float8: bool = False


def by_integers(writer: Callable[[Drawn], dict[str, torch.Tensor]], **options: Any) -> Store:
    def stored(shape: tuple[int, int], random: torch.Generator) -> Stored:
        drawn = draw(shape, random, **options)
        return writer(drawn), drawn.weight

    return stored


def by_compressed(*, symmetric: bool = True, is_packed: bool = True, shuffled: bool = False, **options: Any) -> Store:
    own = {"symmetric": symmetric, "shuffled": shuffled}
    return by_integers(lambda drawn: compressed(drawn, is_packed=is_packed, **own), **own, **options)


def by_float4(kind: Literal["nvfp4", "mxfp4"], writer: str) -> Store:
    def stored(shape: tuple[int, int], random: torch.Generator) -> Stored:
        drawn = draw_float4(shape, random, kind)
        if writer == "compressed-tensors":
            return compressed_float4(drawn, has_inputs=True), drawn.weight
        if writer == "modelopt":
            return modelopt(drawn), drawn.weight
        own = {"weight": drawn.packed, "weight_scale": drawn.scales}
        more = {"weight_scale_2": drawn.factor.bfloat16(), "input_scale_2": torch.tensor(0.1)}
        rounded = drawn._replace(factor=drawn.factor.bfloat16().float())
        return own | (more if kind == "nvfp4" else {}), rounded.weight

    return stored


def by_blocks(name: str) -> Store:
    def stored(shape: tuple[int, int], random: torch.Generator) -> Stored:
        values, scales, weight = draw_blocks(shape, random)
        return {"weight": values, name: scales}, weight

    return stored


def by_channel(shape: tuple[int, int], random: torch.Generator) -> Stored:
    return float8_layer(shape, random, per_channel=True)


def fbgemm(shape: tuple[int, int], random: torch.Generator) -> Stored:
    tensors, weight = by_channel(shape, random)
    scales = {"weight_scale": tensors["weight_scale"][:, None], "input_scale_ub": torch.tensor([1200.0])}
    return {"weight": tensors["weight"], **scales}, weight


def pb_wo(shape: tuple[int, int], random: torch.Generator) -> Stored:
    """ModelOpt has blocks of 128 × 128, and two more dimensions."""
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    scales = 0.05 + torch.rand(-(-shape[0] // 128), 1, -(-shape[1] // 128), 1, generator=random)
    spread = scales[:, 0, :, 0].repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
    return {"weight": values, "weight_scale": scales}, values.float() * spread


def mxfp8(shape: tuple[int, int], random: torch.Generator) -> Stored:
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    exponents = torch.randint(120, 126, (shape[0], shape[1] // 32), generator=random)
    weight = values.float() * torch.pow(2.0, exponents.float() - 127).repeat_interleave(32, 1)
    return {"weight": values, "weight_scale": exponents.to(torch.uint8)}, weight


def mxfp6(shape: tuple[int, int], random: torch.Generator) -> Stored:
    return draw_float6(shape, random, "e2m3")


def quark_uint4(drawn: Drawn) -> dict[str, torch.Tensor]:
    return quark(drawn, "uint4", has_zeros=True)


def nf4(shape: tuple[int, int], random: torch.Generator, storage: torch.dtype = torch.uint8) -> Stored:
    tensors, weight = four_bits(shape, "nf4", random, is_nested=True)
    return tensors | {"weight": tensors["weight"].view(-1).view(storage)[:, None]}, weight


def nf4_in_bfloat16(shape: tuple[int, int], random: torch.Generator) -> Stored:
    return nf4(shape, random, torch.bfloat16)


def llm_int8(shape: tuple[int, int], random: torch.Generator) -> Stored:
    values = torch.randint(-127, 128, shape, generator=random).to(torch.int8)
    largest = 0.1 + torch.rand(shape[0], generator=random)
    tensors = {"weight": values, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, values.float() * largest[:, None] / 127


def plain(**own: Any) -> Callable[[list[str]], dict[str, Any]]:
    """A configuration of whose values one is the list of ignored layers, as ``...``."""
    return lambda ignored: {key: ignored if value is ... else value for key, value in own.items()}


def in_compressed_tensors(name: str, weights: dict[str, Any], inputs: Any) -> Callable[[list[str]], dict[str, Any]]:
    return lambda ignored: compressed_tensors(format=name, weights=weights, input_activations=inputs, ignore=ignored)


def in_gptq(**own: Any) -> Callable[[list[str]], dict[str, Any]]:
    return lambda ignored: {
        "quant_method": "gptq",
        "group_size": 32,
        "lm_head": HEAD not in ignored,
        "dynamic": {f"-:{name}": {} for name in ignored},
        **own,
    }


def in_quark(weights: Any, inputs: Any) -> Callable[[list[str]], dict[str, Any]]:
    return lambda ignored: {
        "quant_method": "quark",
        "global_quant_config": {"weight": weights, "input_tensors": inputs, "output_tensors": None, "bias": None},
        "layer_quant_config": {},
        "exclude": ignored,
        "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
    }


def in_auto_round(
    packing: str, bits: int = 4, kind: str = "int", group: Any = 32
) -> Callable[[list[str]], dict[str, Any]]:
    def config(ignored: list[str]) -> dict[str, Any]:
        own = {name: {"bits": 16, "data_type": "float"} for name in ignored if name != HEAD}
        own |= {} if HEAD in ignored else {HEAD: {"bits": bits}}
        common = {"bits": bits, "group_size": group, "sym": True, "data_type": kind, "packing_format": packing}
        return {"quant_method": "auto-round", "extra_config": own, "block_name_to_quantize": None, **common}

    return config


def in_bitsandbytes(**own: Any) -> Callable[[list[str]], dict[str, Any]]:
    return plain(quant_method="bitsandbytes", llm_int8_skip_modules=..., **own)


TWICE = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
FORMATS: dict[str, Format] = {
    "fp8": Format(plain(quant_method="fp8", ignored_layers=...), float8_layer, has_embedding=False),
    "fp8 in blocks": Format(
        plain(**FP8, modules_to_not_convert=...),
        by_blocks("weight_scale_inv"),
        has_embedding=False,
        packs_float8=True,
    ),
    "fbgemm": Format(
        plain(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=...),
        fbgemm,
        has_embedding=False,
    ),
    "compressed-tensors fp8": Format(in_compressed_tensors("float-quantized", {"strategy": "channel"}, {}), by_channel),
    "compressed-tensors fp8 in blocks": Format(
        in_compressed_tensors(
            "float-quantized", {"strategy": "block", "block_structure": [ROWS, COLUMNS]}, {"strategy": "group"}
        ),
        by_blocks("weight_scale"),
        packs_float8=True,
    ),
    "compressed-tensors w8a8": Format(
        in_compressed_tensors("int-quantized", {"type": "int"}, INT8_INPUTS),
        by_compressed(is_packed=False, bits=8, group=-1),
    ),
    "compressed-tensors w4a16": Format(in_compressed_tensors("pack-quantized", INT4_WEIGHTS, None), by_compressed()),
    "compressed-tensors w4a16 with zeros": Format(
        in_compressed_tensors("pack-quantized", INT4_WEIGHTS | {"symmetric": False}, None),
        by_compressed(symmetric=False),
    ),
    "compressed-tensors w4a16 in act-order": Format(
        in_compressed_tensors("pack-quantized", INT4_WEIGHTS | {"actorder": "group"}, None),
        by_compressed(shuffled=True),
    ),
    "compressed-tensors w4a16 sorted": Format(
        in_compressed_tensors("pack-quantized", INT4_WEIGHTS | {"actorder": "weight"}, None), by_compressed()
    ),
    "compressed-tensors w8a16": Format(
        in_compressed_tensors("pack-quantized", INT4_WEIGHTS | {"num_bits": 8}, None), by_compressed(bits=8)
    ),
    "compressed-tensors w4a8 int8": Format(
        in_compressed_tensors("int-quantized", INT4_WEIGHTS, INT8_INPUTS), by_compressed(is_packed=False)
    ),
    "compressed-tensors w4a8 fp8": Format(in_compressed_tensors("pack-quantized", INT4_WEIGHTS, {}), by_compressed()),
    "compressed-tensors nvfp4": Format(
        in_compressed_tensors(
            "nvfp4-pack-quantized", float4_weights("nvfp4"), float4_weights("nvfp4") | {"dynamic": "local"}
        ),
        by_float4("nvfp4", "compressed-tensors"),
    ),
    "compressed-tensors mxfp4": Format(
        in_compressed_tensors("mxfp4-pack-quantized", float4_weights("mxfp4"), None),
        by_float4("mxfp4", "compressed-tensors"),
    ),
    "compressed-tensors w4a8 mxfp4": Format(
        in_compressed_tensors("mxfp4-pack-quantized", float4_weights("mxfp4"), {"strategy": "group", "group_size": 32}),
        by_float4("mxfp4", "compressed-tensors"),
    ),
    "compressed-tensors mxfp8": Format(
        in_compressed_tensors("mxfp8-quantized", MXFP8_WEIGHTS, MXFP8_WEIGHTS), mxfp8, packs_float8=True
    ),
    "compressed-tensors w3a16": Format(
        in_compressed_tensors("pack-quantized", INT4_WEIGHTS | {"num_bits": 3}, None), by_compressed(bits=3)
    ),
    "compressed-tensors w6a16 with zeros": Format(
        in_compressed_tensors("pack-quantized", INT4_WEIGHTS | {"num_bits": 6, "symmetric": False}, None),
        by_compressed(bits=6, symmetric=False),
    ),
    "gptq": Format(in_gptq(bits=4, sym=True), by_integers(gptq), "{}", has_embedding=False),
    "gptq 8 bits, zeros, act-order": Format(
        in_gptq(bits=8, sym=False, desc_act=True),
        by_integers(gptq, bits=8, symmetric=False, shuffled=True),
        "{}",
        has_embedding=False,
    ),
    "gptq 3 bits, zeros, act-order": Format(
        in_gptq(bits=3, sym=False, desc_act=True),
        by_integers(gptq, bits=3, symmetric=False, shuffled=True),
        "{}",
        has_embedding=False,
    ),
    "awq": Format(
        plain(quant_method="awq", bits=4, group_size=32, version="gemm", modules_to_not_convert=...),
        by_integers(awq, symmetric=False),
        None,
        has_embedding=False,
    ),
    "auto-round gptq": Format(in_auto_round("auto_round:auto_gptq"), by_integers(gptq), "{}"),
    "auto-round 2 bits": Format(in_auto_round("auto_round:auto_gptq", 2), by_integers(gptq, bits=2), "{}"),
    "auto-round mxfp4": Format(
        in_auto_round("auto_round:mx_fp", 4, "mx_fp", 32), by_float4("mxfp4", "compressed-tensors")
    ),
    "auto-round mxfp8": Format(in_auto_round("auto_round:mx_fp", 8, "mx_fp", 32), mxfp8, packs_float8=True),
    "auto-round nvfp4": Format(
        in_auto_round("auto_round:nv_fp", 4, "nv_fp", 16), by_float4("nvfp4", "compressed-tensors")
    ),
    "auto-round fp8 in blocks": Format(
        in_auto_round("auto_round:fp8", 8, "fp", [ROWS, COLUMNS]), by_blocks("weight_scale_inv"), packs_float8=True
    ),
    "auto-round awq": Format(in_auto_round("auto_round:auto_awq"), by_integers(awq), "{}"),
    "modelopt fp8": Format(plain(quant_method="modelopt", quant_algo="FP8", ignore=...), float8_layer),
    "modelopt fp8 by channel": Format(
        plain(quant_method="modelopt", quant_algo="FP8_PER_CHANNEL_PER_TOKEN", ignore=...), by_channel
    ),
    "modelopt fp8 in blocks": Format(
        plain(quant_method="modelopt", quant_algo="fp8_pb_wo", exclude_modules=...), pb_wo, packs_float8=True
    ),
    "modelopt nvfp4": Format(
        plain(quant_method="modelopt", quant_algo="NVFP4", ignore=...), by_float4("nvfp4", "modelopt")
    ),
    "modelopt mxfp8": Format(
        plain(quant_method="modelopt_mxfp8", quant_algo="MXFP8", ignore=...), mxfp8, packs_float8=True
    ),
    "quark fp8": Format(in_quark(QUARK_FP8, QUARK_FP8), float8_layer),
    "quark fp8 weights alone": Format(in_quark(QUARK_FP8, None), float8_layer),
    "quark mxfp4": Format(in_quark(QUARK_MXFP4, QUARK_MXFP4 | {"is_dynamic": True}), by_float4("mxfp4", "quark")),
    "quark nvfp4": Format(in_quark(QUARK_NVFP4, QUARK_NVFP4), by_float4("nvfp4", "quark")),
    "quark fp8 in blocks": Format(in_quark(QUARK_BLOCKS, QUARK_FP8), by_blocks("weight_scale"), packs_float8=True),
    "quark mxfp6": Format(in_quark(QUARK_MXFP4 | {"dtype": "fp6_e2m3"}, None), mxfp6),
    "quark uint4": Format(in_quark(QUARK_UINT4, None), by_integers(quark_uint4, symmetric=False)),
    "bitsandbytes nf4": Format(in_bitsandbytes(**TWICE), nf4, has_embedding=False),
    "bitsandbytes nf4 in bfloat16": Format(
        in_bitsandbytes(**TWICE, bnb_4bit_quant_storage="bfloat16"), nf4_in_bfloat16, has_embedding=False
    ),
    "bitsandbytes int8": Format(in_bitsandbytes(load_in_8bit=True), llm_int8, has_embedding=False),
    "torchao int8": Format(
        lambda ignored: torchao(INT8, modules_to_not_convert=ignored), lambda *args: store("int8", *args)
    ),
    "torchao int4": Format(
        lambda ignored: torchao(INT4, modules_to_not_convert=ignored),
        lambda *args: store("int4", *args),
        tolerance=5e-3,
    ),
}


# A sample has each format once, expanded or packed.
@pytest.mark.sample(len(FORMATS))
@pytest.mark.parametrize("is_packed", [False, True], ids=["expanded", "packed"])
@pytest.mark.parametrize("name", FORMATS)
def test_all_layers(name: str, is_packed: bool, tmp_path: Path) -> None:
    """Also those that writers usually leave as they are: routers, and head and embedding where they may be."""
    config, store, _, has_embedding, tolerance, packs_float8 = FORMATS[name]
    more = {ROUTER, HEAD} | ({EMBEDDING} if has_embedding else set())
    weights = write(tmp_path, config([]), store, lambda layer: is_usual(layer) or layer in more)
    model = load(tmp_path, has_groups=is_packed, has_float8=is_packed and packs_float8)
    assert_has(model, weights, tolerance=tolerance if is_packed else 1e-3)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", FORMATS)
def test_ignored_layers(name: str, tmp_path: Path) -> None:
    """Some parts of a fused layer, and a layer of all experts: by name, or by a pattern where the format has those."""
    config, store, pattern, *_ = FORMATS[name]
    weights = write(tmp_path, config([HEAD, QUERIES, *_down_layers(pattern)]), store, _is_kept)
    assert_has(load(tmp_path), weights)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", FORMATS)
def test_layers_that_are_not_listed(name: str, tmp_path: Path) -> None:
    """The same layers are left as they were, and the head is not, though the configuration says nothing of them."""
    config, store, *_ = FORMATS[name]
    weights = write(tmp_path, config([]), store, lambda layer: layer == HEAD or _is_kept(layer))
    assert_has(load(tmp_path), weights)


def _down_layers(pattern: str | None) -> list[str]:
    experts = [f"model.layers.1.mlp.experts.{index}.down_proj" for index in range(8)]
    return experts if pattern is None else [pattern.format(r".*\.experts\.\d+\.down_proj$")]


def _is_kept(layer: str) -> bool:
    """Whether a layer is quantised but for those that some tests leave as they are."""
    return is_usual(layer) and layer != QUERIES and not (".experts." in layer and layer.endswith("down_proj"))


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", FORMATS)
def test_tied_heads(name: str, tmp_path: Path) -> None:
    """The head is the embedding, quantised where the format has that; the configuration may say what it wants."""
    config, store, _, has_embedding, *_ = FORMATS[name]
    more = {EMBEDDING} if has_embedding else set()
    weights = write(tmp_path, config([]), store, lambda layer: is_usual(layer) or layer in more, is_tied=True)
    assert_has(load(tmp_path), weights)


@pytest.mark.parametrize("is_packed", [False, True], ids=["expanded", "packed"])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_interleaved_pairs(name: str, is_packed: bool) -> None:
    """Llama 4's queries and keys, whose rows are reordered with their scales, on one of two devices as well."""
    sections = {"q_proj": Section(64, 16, 16), "k_proj": Section(32, 16, 12)}
    for parallel in (TensorParallel(0, 1), TensorParallel(1, 2)):
        layer = _build(name, is_packed, parallel).linear("qkv_proj", 64, sections, split="column")
        random, weights = torch.Generator().manual_seed(0), []
        slots = list(layer.weight_slots("qkv_proj"))
        for part, section in sections.items():
            tensors, weight = FORMATS[name].store((section.size, 64), random)
            weights.append(SplitPairs(16, section.interleaved)(weight).chunk(parallel.size)[parallel.rank])
            _fill(slots, part, tensors)
        _hold(layer, torch.cat(weights), FORMATS[name].tolerance)


@pytest.mark.parametrize("is_packed", [False, True], ids=["expanded", "packed"])
@pytest.mark.parametrize("name", FORMATS)
def test_one_tensor_fills_several_parts(name: str, is_packed: bool) -> None:
    """Layers that checkpoints have as one, of which each device has some outputs of every part."""
    tensors, weight = FORMATS[name].store((128, 64), torch.Generator().manual_seed(0))
    sections = [Section(64, 16), Section(32, 16), Section(32, 16)]
    for parallel in (TensorParallel(0, 1), TensorParallel(1, 2)):
        layer = _build(name, is_packed, parallel).linear("in_proj", 64, sections, split="column")
        _fill(list(layer.weight_slots("in_proj")), "in_proj", tensors)
        own = [part.chunk(parallel.size)[parallel.rank] for part in weight.split((64, 32, 32))]
        _hold(layer, torch.cat(own), FORMATS[name].tolerance)


def _build(name: str, is_packed: bool, parallel: TensorParallel) -> Build:
    raw = FORMATS[name].config([HEAD])
    method = QUANTIZATION_ALIASES.get(raw["quant_method"], raw["quant_method"])
    options = SchemeOptions(has_groups=is_packed, has_float8=is_packed and FORMATS[name].packs_float8)
    return Build(parsed_quantization(method, raw, options), tensor_parallel=parallel)


def _fill(slots: list[tuple[str, WeightSlot]], layer: str, tensors: dict[str, torch.Tensor]) -> None:
    for name, slot in slots:
        if name.startswith(f"{layer}."):
            slot.fill(tensors[name.removeprefix(f"{layer}.")].contiguous())


def _hold(layer: Linear | PartedLinear, expected: torch.Tensor, tolerance: float) -> None:
    finish(layer)
    units = torch.eye(layer.in_features)
    found = (layer.multiply(units) if isinstance(layer, Linear) else layer(units)).T
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


def test_embeddings_have_groups_of_their_own(tmp_path: Path) -> None:
    """compressed-tensors names the class of embeddings as it does that of linear layers."""
    config = FORMATS["compressed-tensors w4a16"].config([HEAD])
    embeddings = compressed_tensors(
        format="pack-quantized", weights=INT4_WEIGHTS | {"num_bits": 8}, targets=["Embedding"]
    )
    config["config_groups"]["group_1"] = embeddings["config_groups"]["group_0"] | {"input_activations": None}
    eight_bits = by_compressed(bits=8)

    def store(shape: tuple[int, int], random: torch.Generator) -> Stored:
        return (eight_bits if shape == (80, 64) else by_compressed())(shape, random)

    weights = write(tmp_path, config, store, lambda layer: is_usual(layer) or layer == EMBEDDING)
    assert_has(load(tmp_path), weights)
