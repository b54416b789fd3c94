"""Layers and models whose weights are integers in groups: GGUF's types as they are, int8 and int4."""

import math
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError
from octavo.kernels.blocks import round_inputs
from octavo.layers.build import Build
from octavo.layers.embedding import Embedding
from octavo.layers.linear import Linear, PartedLinear
from octavo.parallel import ONE_DEVICE, TensorParallel
from octavo.platforms.cpu import CpuPlatform
from octavo.platforms.native import native_kernels
from octavo.quantization.block_config import parse_gguf, round_to_int4
from octavo.quantization.blocks import BlockScheme
from octavo.quantization.config import SchemeOptions
from octavo.quantization.scheme import PlainScheme

MODEL = "bundled:smollm2"
OPTIONS = SchemeOptions(has_blocks=True)
SIZES = {"q_proj": 64, "k_proj": 32, "v_proj": 32}

needs_kernels = pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")


def gguf_config(**types: str) -> dict[str, object]:
    return {"quant_method": "gguf", "types": {f"attn.{name}": kind for name, kind in types.items()}}


def fill(layer: Linear | PartedLinear, types: dict[str, str]) -> torch.Tensor:
    """Fill a layer of three parts as a loader does; returns the weight that it then has, ``[out, in]``."""
    random = np.random.default_rng(0)
    slots = dict(layer.weight_slots("attn.qkv_proj"))
    weights = []
    for name, size in SIZES.items():
        values = random.standard_normal((size, 64), dtype=np.float32)
        slot = slots[f"attn.{name}.weight"]
        if name in types:
            assert slot.raw_type == types[name]
            raw = quants.quantize(values, GGMLQuantizationType[types[name]])
            slot.fill(torch.from_numpy(raw))
            values = quants.dequantize(raw, GGMLQuantizationType[types[name]])
        else:
            slot.fill(torch.from_numpy(values))
        weights.append(torch.from_numpy(values))
    for module in (layer, *layer.modules()):
        if isinstance(module, Linear):
            module.finish_weights()
    return torch.cat(weights)


@needs_kernels
@pytest.mark.parametrize(
    ("types", "kind"),
    [
        (dict.fromkeys(SIZES, "Q4_0"), Linear),
        ({"q_proj": "Q4_0", "k_proj": "Q4_0", "v_proj": "Q8_0"}, PartedLinear),
        ({"q_proj": "Q4_0", "v_proj": "Q5_1"}, PartedLinear),
    ],
)
def test_parts_may_be_stored_in_different_ways(types: dict[str, str], kind: type) -> None:
    build = Build(parse_gguf(gguf_config(**types), OPTIONS)).at("attn")
    layer = build.linear("qkv_proj", 64, SIZES)
    assert type(layer) is kind
    weight = fill(layer, types)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    y = layer(x)
    exact, rounded = x @ weight.T, round_inputs(x) @ weight.T
    is_exact = torch.zeros(3, 128, dtype=torch.bool)
    if "k_proj" not in types:
        is_exact[:, 64:96] = True
    torch.testing.assert_close(y, torch.where(is_exact, exact, rounded), rtol=0, atol=0.05)
    torch.testing.assert_close(layer.gated(x, "silu"), torch.nn.functional.silu(y[:, :64]) * y[:, 64:])
    again = fill(layer, types)
    assert torch.equal(again, weight) and torch.equal(layer(x), y), "weights can be updated in place"


def test_sizes_that_do_not_fit_stay_plain() -> None:
    build = Build(parse_gguf(gguf_config(q_proj="Q4_K"), OPTIONS)).at("attn")
    layer = build.linear("q_proj", 64, 32)
    assert isinstance(layer, Linear) and isinstance(layer.scheme, PlainScheme), "Q4_K needs multiples of 256 inputs"
    assert build.linear("q_proj", 512, 32).scheme == BlockScheme("Q4_K")


def test_slots_take_tensors_of_their_type_alone() -> None:
    layer = Build(parse_gguf(gguf_config(q_proj="Q4_0"), OPTIONS)).at("attn").linear("q_proj", 64, 32)
    (_, slot), *_ = layer.weight_slots("attn.q_proj")
    assert slot.takes(torch.float32, "Q4_0")
    assert not slot.takes(torch.float32, "Q8_0") and not slot.takes(torch.float32), "an update from another file"


@needs_kernels
@pytest.mark.parametrize("rank", [None, 0, 1])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_an_embedding_stays_as_in_the_file(kind: str, rank: int | None) -> None:
    number = GGMLQuantizationType[kind]
    size, num_bytes = gguf.GGML_QUANT_SIZES[number]
    raw = np.random.default_rng(0).integers(0, 60, (72, 256 // size * num_bytes), np.uint8)
    build = Build(parse_gguf({"types": {"model.embed_tokens": kind}}, OPTIONS)).at("model")
    tensor_parallel = ONE_DEVICE if rank is None else TensorParallel(rank, 2)
    embedding = Embedding(72, 256, scheme=build.embedding_scheme("embed_tokens"), tensor_parallel=tensor_parallel)
    slots = dict(embedding.weight_slots("embed_tokens"))
    slots["embed_tokens.weight"].fill(torch.from_numpy(raw))
    embedding.finish_weights()
    tokens = embedding.part.source[0] if rank is not None else slice(0, 72)
    wanted = torch.from_numpy(quants.dequantize(raw, number))[tokens]
    index = torch.randint(len(wanted), (40,), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(embedding._rows(index), wanted[index], rtol=1e-6, atol=0)
    assert embedding.weight.nbytes < 1.2 * raw.nbytes, "no second copy"
    memory = embedding.weight.data_ptr()
    assert dict(embedding.weight_slots("embed_tokens"))["embed_tokens.weight"].view.data_ptr() == memory, "updates"


def test_only_embeddings_whose_rows_can_be_read_are_rounded() -> None:
    for_cpu = round_to_int4(OPTIONS).embedding_scheme("model.embed_tokens")
    assert Embedding(64, 64, scheme=for_cpu).scheme == BlockScheme("int8")
    for_gpu = round_to_int4(SchemeOptions(has_groups=True)).embedding_scheme("model.embed_tokens")
    assert isinstance(Embedding(64, 256, scheme=for_gpu).scheme, PlainScheme)
    assert isinstance(Embedding(64, 48, scheme=for_cpu).scheme, PlainScheme), "48 is no multiple of 32"


def test_devices_without_kernels_dequantise() -> None:
    assert parse_gguf(gguf_config(q_proj="Q4_0"), SchemeOptions()).description == ""
    assert parse_gguf(gguf_config(q_proj="Q2_K"), OPTIONS).description == "", "no kernel for this type"


def perplexity(**settings: Any) -> float:
    """Perplexity of a passage under the demo model."""
    passage = (
        "The quick brown fox jumps over the lazy dog, and the dog, who has seen it all before, goes on sleeping. " * 3
    )
    llm = LLM(MODEL, max_model_len=512, **settings)
    (output,) = llm.generate(passage, SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0), use_tqdm=False)
    assert output.prompt_logprobs is not None and output.prompt_token_ids is not None
    entries = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    losses = [-logprobs[token].logprob for token, logprobs in entries if logprobs]
    return math.exp(sum(losses) / len(losses))


@needs_kernels
@pytest.mark.long
def test_quality_of_the_demo_model() -> None:
    as_it_is = perplexity(dtype="float32", quantization="gguf")
    int8, int4 = perplexity(quantization="int8"), perplexity(quantization="int4")
    dequantised = perplexity(dtype="float32")
    assert as_it_is == pytest.approx(dequantised, rel=0.01)
    assert int8 == pytest.approx(dequantised, rel=0.02)
    assert int4 == pytest.approx(dequantised, rel=0.04)


def test_rounding_needs_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    with pytest.raises(ConfigError, match=r"quantization is 'int8', which needs a GPU or a CPU with compiled kernels"):
        LLM(MODEL, quantization="int8")
