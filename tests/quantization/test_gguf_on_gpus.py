"""Layers of a GGUF file that stay packed on devices whose GEMMs unpack groups (``--quantization gguf``)."""

import math

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from octavo import LLM, SamplingParams
from octavo.kernels import LinearOp
from octavo.layers.build import Build
from octavo.layers.embedding import Embedding, Head
from octavo.layers.linear import Linear, PartedLinear
from octavo.parallel import TensorParallel
from octavo.platforms.cpu import CpuPlatform
from octavo.quantization.block_config import parse_gguf
from octavo.quantization.config import SchemeOptions
from octavo.quantization.gguf_layout import GROUPED_TYPES, GGUFLayout
from octavo.quantization.scheme import PlainScheme
from octavo.quantization.stored import PackedScheme

GPU = SchemeOptions(has_groups=True, packs_gguf=True)
MODEL = "bundled:smollm2"
NUM_INPUTS = 512


def blocks(kind: str, num_rows: int, seed: int = 0, num_inputs: int = NUM_INPUTS, factor: float = 1.0) -> np.ndarray:
    """Rows of a file: any bytes are blocks, but scales and minimums are small numbers, and the first ones zero.

    Args:
        factor: of these numbers; powers of two have the nearest one.
    """
    size, num_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (num_rows, num_inputs // size, num_bytes), np.uint8)
    if kind == "MXFP4":
        raw[..., 0] = random.integers(118, 122, raw.shape[:2]) + round(math.log2(factor))
        return raw.reshape(num_rows, -1)
    numbers = (factor * random.uniform(0.001, 0.02, (*raw.shape[:2], 2))).astype(np.float16)
    numbers[0, 0, 0] = 0
    if kind == "Q6_K":
        raw[..., -2:] = numbers.view(np.uint8)[..., :2]
    else:
        width = 2 if kind.endswith("_0") or kind.startswith("IQ4") else 4
        raw[..., :width] = numbers.view(np.uint8)[..., :width]
    return raw.reshape(num_rows, -1)


def values(raw: np.ndarray, kind: str) -> torch.Tensor:
    return torch.from_numpy(quants.dequantize(raw, GGMLQuantizationType[kind]))


def build_of(types: dict[str, str], options: SchemeOptions = GPU, rank: int | None = None) -> Build:
    config = {"quant_method": "gguf", "types": {f"0.attn.{name}": kind for name, kind in types.items()}}
    parallel = {} if rank is None else {"tensor_parallel": TensorParallel(rank, 2)}
    return Build(parse_gguf(config, options), **parallel).at("0.attn")


def filled(layer: Linear | PartedLinear, path: str, raw: dict[str, np.ndarray]) -> None:
    slots = dict(layer.weight_slots(path))
    for name, rows in raw.items():
        slots[f"0.attn.{name}.weight"].fill(torch.from_numpy(rows))
    for module in layer.modules():
        if isinstance(module, Linear):
            module.finish_weights()


@pytest.mark.parametrize("kind", GROUPED_TYPES)
def test_layouts_read_what_the_library_reads(kind: str) -> None:
    raw = blocks(kind, 6)
    weight = GGUFLayout(kind).read({"weight": torch.from_numpy(raw)}, (6, NUM_INPUTS))
    expected = values(raw, kind)
    torch.testing.assert_close(weight.values(), expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", GROUPED_TYPES)
def test_layers_multiply_the_files_values(kind: str) -> None:
    layer = build_of({"q_proj": kind}).linear("q_proj", NUM_INPUTS, 32)
    assert isinstance(layer, Linear) and isinstance(layer.scheme, PackedScheme)
    raw = blocks(kind, 32)
    filled(layer, "0.attn.q_proj", {"q_proj": raw})
    assert layer.weight.nbytes == 32 * NUM_INPUTS // (2 if kind.startswith(("Q4", "IQ4", "MXFP4")) else 1)
    x = torch.randn(3, NUM_INPUTS, generator=torch.Generator().manual_seed(1))
    expected = x @ values(raw, kind).T
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_parts_may_have_other_types() -> None:
    """As in files of mixed types, whose values often have more bits."""
    sizes, types = {"q_proj": 64, "k_proj": 32, "v_proj": 32}, {"q_proj": "Q4_K", "k_proj": "Q4_K", "v_proj": "Q3_K"}
    layer = build_of(types).linear("qkv_proj", NUM_INPUTS, sizes)
    assert isinstance(layer, PartedLinear)
    raw = {name: blocks("Q4_K", size, seed) for seed, (name, size) in enumerate(sizes.items()) if name != "v_proj"}
    slots = dict(layer.weight_slots("0.attn.qkv_proj"))
    assert slots["0.attn.v_proj.weight"].raw_type == "", "its groups have no kernel"
    v = torch.randn(32, NUM_INPUTS, generator=torch.Generator().manual_seed(2))
    slots["0.attn.v_proj.weight"].fill(v)
    filled(layer, "0.attn.qkv_proj", raw)
    x = torch.randn(3, NUM_INPUTS, generator=torch.Generator().manual_seed(1))
    expected = x @ torch.cat((*(values(rows, "Q4_K") for rows in raw.values()), v)).T
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "IQ4_NL", "IQ4_XS"])
def test_devices_divide_inputs(kind: str) -> None:
    raw = blocks(kind, 32)
    x = torch.randn(3, NUM_INPUTS, generator=torch.Generator().manual_seed(1))
    total = torch.zeros(3, 32)
    for rank, columns in enumerate((slice(0, 256), slice(256, 512))):
        layer = build_of({"o_proj": kind}, rank=rank).linear("o_proj", NUM_INPUTS, 32, split="row")
        assert isinstance(layer, Linear)
        filled(layer, "0.attn.o_proj", {"o_proj": raw})
        total += Linear.forward(layer, x[:, columns])  # without the sum over devices
    expected = x @ values(raw, kind).T
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_slots_take_tensors_of_their_type_alone() -> None:
    layer = build_of({"q_proj": "Q4_0"}).linear("q_proj", NUM_INPUTS, 32)
    (_, slot), *_ = layer.weight_slots("0.attn.q_proj")
    assert slot.takes(torch.float32, "Q4_0")
    assert not slot.takes(torch.float32, "Q8_0") and not slot.takes(torch.float32)


def test_they_are_dequantised_unless_asked_for() -> None:
    layer = build_of({"q_proj": "Q4_0"}, SchemeOptions(has_groups=True)).linear("q_proj", NUM_INPUTS, 32)
    assert isinstance(layer, Linear) and isinstance(layer.scheme, PlainScheme)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "MXFP4", "IQ4_XS"])
@pytest.mark.parametrize("rank", [None, 0, 1])
def test_an_embedding_of_its_own_reads_its_rows(kind: str, rank: int | None) -> None:
    raw = blocks(kind, 48)
    config = parse_gguf({"types": {"model.embed_tokens": kind}}, GPU)
    parallel = TensorParallel() if rank is None else TensorParallel(rank, 2)
    tokens, num_rows = parallel.share_of_vocabulary(48)
    scheme = config.embedding_scheme("model.embed_tokens")
    embedding = Embedding(48, NUM_INPUTS, scheme=scheme, tensor_parallel=parallel)
    for _, slot in embedding.weight_slots("model.embed_tokens"):
        slot.fill(torch.from_numpy(raw))
    embedding.finish_weights()
    expected = values(raw, kind)[tokens.start : tokens.stop]
    ids = torch.tensor([len(tokens) - 1, 0, 5, 5])
    torch.testing.assert_close(embedding._rows(ids), expected[ids], rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    num_bytes = sum(parameter.nbytes for parameter in embedding.parameters())
    assert num_bytes == num_rows * NUM_INPUTS * {"Q4_K": 22, "Q6_K": 40, "MXFP4": 17, "IQ4_XS": 20}[kind] // 32


def test_a_tied_embedding_reads_the_heads_rows() -> None:
    raw = blocks("Q6_K", 48)
    build = Build(parse_gguf({"types": {"model.embed_tokens": "Q6_K"}}, GPU))
    embedding = Embedding(48, NUM_INPUTS, scheme=build.quantization.embedding_scheme("model.embed_tokens"))
    head = Head(48, NUM_INPUTS, build, tied=embedding)
    assert not dict(embedding.weight_slots("model.embed_tokens")), "the head has the only copy"
    assert not sum(parameter.nbytes for parameter in embedding.parameters())
    slots = dict(head.weight_slots("lm_head"))
    slots["model.embed_tokens.weight"].fill(torch.from_numpy(raw))
    head.finish_weights()
    expected = values(raw, "Q6_K")
    ids = torch.tensor([47, 0, 5, 5])
    torch.testing.assert_close(embedding(ids), expected[ids], rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    x = torch.randn(3, NUM_INPUTS, generator=torch.Generator().manual_seed(1))
    logits = x @ expected.T
    torch.testing.assert_close(head(x), logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max()))


@pytest.mark.parametrize("rank", [0, 1])
def test_devices_divide_a_heads_outputs(rank: int) -> None:
    raw, parallel = blocks("Q6_K", 48), TensorParallel(rank, 2)
    build = Build(parse_gguf({"types": {"lm_head": "Q6_K"}}, GPU), tensor_parallel=parallel)
    head = Head(48, NUM_INPUTS, build)
    for _, slot in head.weight_slots("lm_head"):
        slot.fill(torch.from_numpy(raw))
    head.finish_weights()
    x = torch.randn(3, NUM_INPUTS, generator=torch.Generator().manual_seed(1))
    logits = x @ values(raw, "Q6_K")[24 * rank : 24 * rank + 24].T
    torch.testing.assert_close(head.multiply(x), logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max()))


@pytest.mark.long
def test_the_demo_model_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    monkeypatch.setattr(CpuPlatform, "has_groups", lambda self: True)
    params = SamplingParams(max_tokens=4, temperature=0)
    packed: list[Linear] = []
    make_gemm = PackedScheme.make_gemm

    def note(self: PackedScheme, module: Linear) -> tuple[LinearOp, bool]:
        packed.append(module)
        return make_gemm(self, module)

    monkeypatch.setattr(PackedScheme, "make_gemm", note)

    def answer(quantization: str | None) -> list[int]:
        llm = LLM(MODEL, max_model_len=256, dtype="float32", quantization=quantization)
        (output,) = llm.generate("The capital of France is", params, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    dequantised = answer(None)
    assert not packed
    assert answer("gguf") == dequantised
    assert len(packed) == 4 * 30 + 1, "all linear layers of 30 layers, and the head"
