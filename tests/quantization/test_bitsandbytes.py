"""Checkpoints of bitsandbytes, written from tables and indices that the tests draw themselves."""

import json
from pathlib import Path

import pytest
import torch
from dequantised_models import assert_computes, layers_of
from integer_checkpoints import write_layers
from tiny_llama import SETTINGS, write_model

from octavo import LLM
from octavo.errors import WeightsError
from octavo.quantization.scheme import PlainScheme

BLOCK, NESTED_BLOCK, OFFSET = 64, 16, 0.05
CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
# bitsandbytes.functional.get_4bit_type
TABLES = {
    "nf4": (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
    "fp4": (
        *(0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25),
        *(0.0, -0.0052083334885537624, -0.6666666865348816, -1.0, -0.3333333432674408, -0.5, -0.1666666716337204),
        -0.25,
    ),
}
Stored = tuple[dict[str, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), hidden_size=64, intermediate_size=96)


def four_bits(
    shape: tuple[int, int], kind: str, random: torch.Generator, *, is_nested: bool, block: int = BLOCK
) -> Stored:
    size = shape[0] * shape[1]
    table = torch.tensor(TABLES[kind])
    indices = torch.randint(16, (size,), generator=random)
    state = {"quant_type": kind, "blocksize": block, "shape": list(shape), "dtype": "bfloat16"}
    tensors = {"weight": (indices[::2] * 16 + indices[1::2]).to(torch.uint8)[:, None], "weight.quant_map": table}
    num_blocks = -(-size // block)
    if is_nested:
        outer = torch.randint(256, (num_blocks,), generator=random)
        outer_table = torch.linspace(-1, 1, 256)
        outer_scales = 0.1 * torch.rand(-(-num_blocks // NESTED_BLOCK), generator=random)
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_offset": OFFSET}
        tensors |= {
            "weight.absmax": outer.to(torch.uint8),
            "weight.nested_absmax": outer_scales,
            "weight.nested_quant_map": outer_table,
        }
        scales = outer_table[outer] * outer_scales[torch.arange(num_blocks) // NESTED_BLOCK] + OFFSET
    else:
        scales = tensors["weight.absmax"] = 0.1 * torch.rand(num_blocks, generator=random)
    text = json.dumps(state).encode()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
    return tensors, (table[indices] * scales[torch.arange(size) // block]).view(shape)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_four_bits(kind: str, is_nested: bool, folder: Path, tmp_path: Path) -> None:
    config = CONFIG | {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": is_nested}
    config["llm_int8_skip_modules"] = ["lm_head", "model.layers.1.mlp"]
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        is_plain = layer == "lm_head" or "layers.1.mlp" in layer
        return None if is_plain else four_bits(shape, kind, random, is_nested=is_nested)

    layers = layers_of(assert_computes(tmp_path, folder, write_layers(folder, tmp_path, config, store)))
    assert isinstance(layers["model.layers.1.mlp.down_proj"].scheme, PlainScheme)


def test_eight_bits(folder: Path, tmp_path: Path) -> None:
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        if layer == "lm_head":
            return None
        integers = torch.randint(-127, 128, shape, generator=random)
        largest = 0.3 + torch.rand(shape[0], generator=random)
        tensors = {"weight": integers.to(torch.int8), "SCB": largest}
        tensors["weight_format"] = torch.tensor(0, dtype=torch.uint8)
        return tensors, integers * (largest / 127)[:, None]

    assert_computes(tmp_path, folder, write_layers(folder, tmp_path, config, store))


def test_a_state_that_does_not_fit(folder: Path, tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    name = "weight.quant_state.bitsandbytes__nf4"
    for number, (state, sentence) in enumerate(
        ((b"[]", "no JSON object"), (b'{"blocksize": 0}', "blocksize = 0"), (b'{"blocksize": 32}', "blocks of 32 for"))
    ):

        def store(layer: str, shape: tuple[int, int], state: bytes = state) -> Stored | None:
            if layer == "lm_head":
                return None
            tensors, weight = four_bits(shape, "nf4", random, is_nested=False)
            return tensors | {name: torch.tensor(list(state), dtype=torch.uint8)}, weight

        write_layers(folder, tmp_path / str(number), CONFIG, store)
        with pytest.raises(WeightsError, match=sentence):
            LLM(str(tmp_path / str(number)), **SETTINGS)
