"""A small model with a dense layer and one of experts, in the format of any checkpoint, held against its weights."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from octavo.config import EngineConfig
from octavo.hub.load import find_model
from octavo.layers.build import Build
from octavo.layers.linear import Linear, PartedLinear
from octavo.models.base import CausalLM
from octavo.models.loading import load_weights
from octavo.models.registry import build_model
from octavo.quantization.cache_format import resolve_cache_format
from octavo.quantization.resolve import resolve_quantization

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
"""The tensors of a layer by their names within it, and the weight that they stand for."""
Store = Callable[[tuple[int, int], torch.Generator], Stored]

HIDDEN, SIZE, VOCAB, EXPERTS, HEAD_SIZE = 64, 96, 80, 8, 16
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD_SIZE,
    "intermediate_size": SIZE,
    "moe_intermediate_size": SIZE,
    "vocab_size": VOCAB,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "dtype": "float32",
}
EMBEDDING, HEAD, ROUTER = "model.embed_tokens", "lm_head", "model.layers.1.mlp.gate"


def is_usual(layer: str) -> bool:
    """Whether a layer is one that all writers quantise."""
    return layer.endswith("_proj")


def write(
    folder: Path,
    config: dict[str, Any] | None,
    store: Store,
    is_stored: Callable[[str], bool] = is_usual,
    *,
    more: dict[str, torch.Tensor] | None = None,
    is_tied: bool = False,
) -> dict[str, torch.Tensor]:
    """Write the model with some layers stored in a format; returns the weights that it stands for.

    Args:
        config: ``quantization_config``; None writes none.
        more: further tensors of the checkpoint.
        is_tied: whether the head shares the embedding's weight.
    """
    own = {} if config is None else {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": is_tied} | own))
    random = torch.Generator().manual_seed(0)
    tensors, weights = dict(more or {}), {}
    for name, shape in _shapes(is_tied=is_tied).items():
        layer = name.removesuffix(".weight")
        if len(shape) == 2 and is_stored(layer):
            stored, weights[name] = store((shape[0], shape[1]), random)
            tensors |= {f"{layer}.{leaf}": tensor.contiguous() for leaf, tensor in stored.items()}
        else:
            tensors[name] = weights[name] = 0.1 * torch.randn(shape, generator=random)
    save_file(tensors, folder / "model.safetensors")
    return weights


def load(folder: Path, *, has_float8: bool = False, has_groups: bool = False, **settings: Any) -> CausalLM:
    """The model as a device loads it that has such kernels."""
    engine = EngineConfig.from_kwargs(model=str(folder), **settings)
    source, config = find_model(engine)
    config = replace(config, dtype="float32")
    quantization = resolve_quantization(engine, config, has_float8=has_float8, has_groups=has_groups)
    cache = resolve_cache_format(engine, config, "float32", has_float8_cache=True)
    model = build_model(config, Build(quantization, cache=cache), 64)
    load_weights(model, source, config, load_format="auto", seed=0, show_progress=False)
    return model


def assert_has(model: CausalLM, weights: dict[str, torch.Tensor], *, tolerance: float = 1e-3) -> None:
    """Hold every layer against the weights, by what it computes of unit vectors, which rounding keeps."""

    def hold(found: torch.Tensor, *names: str) -> None:
        expected = torch.cat([weights[f"{name}.weight"] for name in names])
        torch.testing.assert_close(
            found.float(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
        )

    def dense(layer: str, *parts: str) -> None:
        parent = layer.rpartition(".")[0]
        hold(_columns(model.get_submodule(layer)), *(f"{parent}.{part}" for part in parts))

    for index in range(2):
        dense(f"model.layers.{index}.self_attn.qkv_proj", "q_proj", "k_proj", "v_proj")
        dense(f"model.layers.{index}.self_attn.o_proj", "o_proj")
    dense("model.layers.0.mlp.gate_up_proj", "gate_proj", "up_proj")
    dense("model.layers.0.mlp.down_proj", "down_proj")
    hold(_columns(model.get_submodule(HEAD)), HEAD if f"{HEAD}.weight" in weights else EMBEDDING)
    hold(model.get_submodule(EMBEDDING)(torch.arange(VOCAB)), EMBEDDING)
    hold(model.get_submodule(ROUTER).get_parameter("weight"), ROUTER)
    _hold_experts(model.get_submodule("model.layers.1.mlp.experts"), weights, tolerance)


def _hold_experts(experts: nn.Module, weights: dict[str, torch.Tensor], tolerance: float) -> None:
    x = torch.randn(EXPERTS, HIDDEN, generator=torch.Generator().manual_seed(3))
    chosen = torch.stack((torch.arange(EXPERTS), (torch.arange(EXPERTS) + 1) % EXPERTS), 1)
    found = experts(x, chosen, torch.full(chosen.shape, 0.5))
    for row, y, own in zip(x, found, chosen.tolist(), strict=True):
        expected = torch.zeros(HIDDEN)
        for expert in own:
            gate, up, down = (
                weights[f"model.layers.1.mlp.experts.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down")
            )
            expected += 0.5 * (down @ (F.silu(gate @ row) * (up @ row)))
        torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def _columns(layer: nn.Module) -> torch.Tensor:
    """What a layer computes of unit vectors, ``[out, in]``."""
    assert isinstance(layer, (Linear, PartedLinear))
    units = torch.eye(layer.in_features)
    return (layer.multiply(units) if isinstance(layer, Linear) else layer(units)).T


def _shapes(*, is_tied: bool) -> dict[str, tuple[int, ...]]:
    vectors: dict[str, tuple[int, ...]] = {"model.norm.weight": (HIDDEN,)}
    matrices: dict[str, tuple[int, ...]] = {EMBEDDING: (VOCAB, HIDDEN)}
    if not is_tied:
        matrices[HEAD] = VOCAB, HIDDEN
    for index in range(2):
        layer = f"model.layers.{index}"
        vectors |= {f"{layer}.self_attn.{name}_norm.weight": (HEAD_SIZE,) for name in "qk"}
        vectors |= {f"{layer}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        outputs = {"q": 4 * HEAD_SIZE, "k": 2 * HEAD_SIZE, "v": 2 * HEAD_SIZE}
        matrices |= {f"{layer}.self_attn.{name}_proj": (size, HIDDEN) for name, size in outputs.items()}
        matrices[f"{layer}.self_attn.o_proj"] = HIDDEN, 4 * HEAD_SIZE
        for part in ["mlp"] if index == 0 else [f"mlp.experts.{expert}" for expert in range(EXPERTS)]:
            matrices |= {f"{layer}.{part}.{name}_proj": (SIZE, HIDDEN) for name in ("gate", "up")}
            matrices[f"{layer}.{part}.down_proj"] = HIDDEN, SIZE
    matrices[ROUTER] = EXPERTS, HIDDEN
    return vectors | {f"{name}.weight": shape for name, shape in matrices.items()}
