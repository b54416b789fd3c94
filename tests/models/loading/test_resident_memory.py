"""A model takes as much memory as its weights are said to, and little more while it is loaded."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from resident import SETTINGS
from safetensors.torch import save_file

from octavo.models.loading.safetensors_files import CHUNK_BYTES, MAX_THREADS
from octavo.platforms.native import native_kernels

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc; run on Linux, an AMD EPYC"),
    pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC"),
]

VOCABULARY = 40_000
CACHE = int(str(SETTINGS["kv_cache_memory_bytes"]))


@dataclass(frozen=True, slots=True)
class Size:
    hidden: int
    intermediate: int
    layers: int
    vocabulary: int

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for index in range(self.layers):
            for name in "qkvo":
                yield f"model.layers.{index}.self_attn.{name}_proj.weight", (self.hidden, self.hidden)
            for name in ("gate", "up"):
                yield f"model.layers.{index}.mlp.{name}_proj.weight", (self.intermediate, self.hidden)
            yield f"model.layers.{index}.mlp.down_proj.weight", (self.hidden, self.intermediate)
        yield "lm_head.weight", (self.vocabulary, self.hidden)

    def vectors(self) -> Iterator[tuple[str, int]]:
        for index in range(self.layers):
            for name in "qkv":
                yield f"model.layers.{index}.self_attn.{name}_proj.bias", self.hidden
            for name in ("input_layernorm", "post_attention_layernorm"):
                yield f"model.layers.{index}.{name}.weight", self.hidden
        yield "model.norm.weight", self.hidden


SMALL, LARGE = Size(256, 512, 1, 512), Size(1024, 3072, 8, VOCABULARY)


def write_gguf(path: Path, size: Size) -> Path:
    """A Qwen2 of zeros, with the types that a file of the kind Q4_K_M has, and a head of its own."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(size.layers)
    writer.add_context_length(256)
    writer.add_embedding_length(size.hidden)
    writer.add_feed_forward_length(size.intermediate)
    writer.add_head_count(size.hidden // 64)
    writer.add_head_count_kv(size.hidden // 64)
    writer.add_layer_norm_rms_eps(1e-6)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, size.layers)
    for name, length in size.vectors():
        writer.add_tensor(_short(names, name), np.ones(length, np.float32))
    for name, (rows, columns) in size.matrices():
        kind = GGMLQuantizationType.Q6_K if name.startswith("lm_head") else GGMLQuantizationType.Q4_K
        block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor(_short(names, name), np.zeros((rows, columns // block * num_bytes), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _short(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None
    return found


def write_folder(folder: Path, size: Size) -> Path:
    """The same model in bfloat16, as Hugging Face writes it."""
    folder.mkdir()
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.hidden // 64,
        "num_key_value_heads": size.hidden // 64,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in size.matrices()}
    weights |= {name: torch.ones(length, dtype=torch.bfloat16) for name, length in size.vectors()}
    save_file(weights, folder / "model.safetensors")
    return folder


def resident(small: Path, large: Path, quantization: str) -> dict[str, int]:
    script = Path(__file__).with_name("resident.py")
    command = [sys.executable, str(script), str(small), str(large), quantization]
    found: dict[str, int] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


@pytest.mark.long
def test_a_gguf_file_takes_its_size(tmp_path: Path) -> None:
    small, large = write_gguf(tmp_path / "small.gguf", SMALL), write_gguf(tmp_path / "large.gguf", LARGE)
    size = large.stat().st_size
    found = resident(small, large, "")
    assert found["bytes"] < 1.1 * (size + CACHE), f"the file has {size} bytes"
    assert found["peak"] < found["bytes"] + (16 << 20), "tensors are packed in pieces"


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_rounding_at_load_takes_little_beside_the_result(quantization: str, tmp_path: Path) -> None:
    small, large = write_folder(tmp_path / "small", SMALL), write_folder(tmp_path / "large", LARGE)
    bits = {"int8": 8.5, "int4": 5.0}[quantization]
    size = sum(rows * columns * (bits if ".layers." in name else 8.5) / 8 for name, (rows, columns) in LARGE.matrices())
    found = resident(small, large, quantization)
    assert found["bytes"] < 1.1 * (size + CACHE), f"the rounded weights have {size} bytes"
    assert found["peak"] < found["bytes"] + MAX_THREADS * CHUNK_BYTES, "matrices are rounded in pieces"
