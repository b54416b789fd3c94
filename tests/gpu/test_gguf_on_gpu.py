"""GGUF files whose weights stay packed on a GPU, as whole models, against the same files with expanded weights."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "quantization")]
from test_gguf_on_gpus import blocks, values
from test_integers_on_gpu import logprobs_of
from tiny_llama import SETTINGS

from octavo import LLM
from octavo.layers.experts import Experts
from octavo.layers.linear import Linear
from octavo.quantization.expert_matrices import PackedMatrix
from octavo.quantization.stored import PackedScheme

HIDDEN, SIZE, VOCABULARY, NUM_LAYERS, NUM_EXPERTS = 256, 512, 304, 2, 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
ON_GPU = SETTINGS | {"device": "cuda", "dtype": "bfloat16", "skip_tokenizer_init": True}


def weight(kind: str, num_outputs: int, num_inputs: int, seed: int) -> np.ndarray:
    """Blocks whose values preserve the scale of their inputs."""
    spread = float(values(blocks(kind, num_outputs, seed, num_inputs), kind).std())
    return blocks(kind, num_outputs, seed, num_inputs, factor=num_inputs**-0.5 / spread)


def write_model(path: Path, kind: str, down: str, *, has_experts: bool) -> Path:
    """A Llama, or a Qwen3 with experts, all of whose matrices are blocks."""
    architecture = "qwen3moe" if has_experts else "llama"
    writer = gguf.GGUFWriter(path, architecture)
    counts = {"block_count": NUM_LAYERS, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": SIZE}
    counts |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "vocab_size": VOCABULARY}
    counts |= {"attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM, "rope.dimension_count": HEAD_DIM}
    if has_experts:
        counts |= {"expert_count": NUM_EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": SIZE}
    for key, count in counts.items():
        writer.add_uint32(f"{architecture}.{key}", count)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-6)

    def add(name: str, num_outputs: int, num_inputs: int, kind: str, num_matrices: int = 0) -> None:
        seed = len(writer.tensors[0])
        rows = weight(kind, max(num_matrices, 1) * num_outputs, num_inputs, seed)
        raw = rows.reshape(num_matrices, num_outputs, -1) if num_matrices else rows
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])

    def add_norm(name: str, size: int = HIDDEN) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    add("token_embd", VOCABULARY, HIDDEN, kind)
    add("output", VOCABULARY, HIDDEN, kind)
    add_norm("output_norm")
    for layer in range(NUM_LAYERS):
        own = f"blk.{layer}"
        for name, size in (
            ("attn_q", HEADS * HEAD_DIM),
            ("attn_k", KV_HEADS * HEAD_DIM),
            ("attn_v", KV_HEADS * HEAD_DIM),
        ):
            add(f"{own}.{name}", size, HIDDEN, kind)
        add(f"{own}.attn_output", HIDDEN, HEADS * HEAD_DIM, kind)
        add_norm(f"{own}.attn_norm")
        add_norm(f"{own}.ffn_norm")
        end, num_matrices = ("_exps", NUM_EXPERTS) if has_experts else ("", 0)
        add(f"{own}.ffn_gate{end}", SIZE, HIDDEN, kind, num_matrices)
        add(f"{own}.ffn_up{end}", SIZE, HIDDEN, kind, num_matrices)
        add(f"{own}.ffn_down{end}", HIDDEN, SIZE, down, num_matrices)
        if has_experts:
            router = np.random.default_rng(layer).normal(0, 0.1, (NUM_EXPERTS, HIDDEN)).astype(np.float32)
            writer.add_tensor(f"{own}.ffn_gate_inp.weight", router)
            add_norm(f"{own}.attn_q_norm", HEAD_DIM)
            add_norm(f"{own}.attn_k_norm", HEAD_DIM)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def packed_modules(llm: LLM) -> set[type]:
    (found,) = llm.apply_model(
        lambda model: {
            type(module)
            for module in model.modules()
            if (isinstance(module, Linear) and isinstance(module.scheme, PackedScheme))
            or (isinstance(module, Experts) and isinstance(module._down, PackedMatrix))
        }
    )
    return found


@pytest.mark.parametrize(
    ("kind", "down", "has_experts"),
    [
        ("Q4_0", "Q8_0", False),
        ("Q4_K", "Q6_K", False),
        ("Q5_K", "Q5_0", False),
        ("IQ4_XS", "IQ4_NL", False),
        ("MXFP4", "MXFP4", False),
        ("Q4_K", "Q6_K", True),
        ("Q5_1", "Q8_0", True),
        ("MXFP4", "MXFP4", True),
    ],
)
def test_packed_files_answer_as_expanded_ones(kind: str, down: str, has_experts: bool, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", kind, down, has_experts=has_experts)
    expected = logprobs_of(LLM(str(path), **ON_GPU))
    packed = LLM(str(path), quantization="gguf", **ON_GPU)
    assert packed_modules(packed) >= ({Experts} if has_experts else {Linear})
    # Activations are of bfloat16 in every layer; expanded weights are, too.
    torch.testing.assert_close(logprobs_of(packed), expected, rtol=0.02, atol=0.1)
