"""Checkpoints of float8 weights, written by hand from an unquantised one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

LARGEST = 448.0
WEIGHTS = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "channel"}
INPUTS = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"}


def compressed_tensors(**changes: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors; changes of the group's parts are merged."""
    group = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": INPUTS, "output_activations": None}
    for key in ("weights", "input_activations"):
        if isinstance(changes.get(key), dict):
            changes[key] = group[key] | changes[key]
    group |= {key: changes.pop(key) for key in list(changes) if key in group}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        **changes,
    }


def write_float8(
    source: Path,
    folder: Path,
    config: dict[str, Any],
    *,
    per_tensor: bool,
    is_quantised: Callable[[str], bool],
    has_static_scales: bool = False,
) -> dict[str, torch.Tensor]:
    """Write a model's float8 form; returns the weights that it stands for, dequantised.

    Args:
        config: ``quantization_config``.
        is_quantised: whether a layer of this name is.
        has_static_scales: add scales of activations and of the cache.
    """
    shutil.copytree(source, folder, dirs_exist_ok=True)
    raw = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": config}))
    stored, dequantised = {}, {}
    for name, weight in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not (layer.endswith(("_proj", "lm_head")) and is_quantised(layer)):
            stored[name] = dequantised[name] = weight
            continue
        largest = weight.abs().amax() if per_tensor else weight.abs().amax(1, keepdim=True)
        scale = largest.float() / LARGEST
        stored[name] = (weight.float() / scale).to(torch.float8_e4m3fn)
        if has_static_scales:
            stored[f"{layer}.input_scale"] = torch.tensor([0.01])
        stored[f"{layer}.weight_scale"] = scale.reshape(1) if per_tensor else scale
        dequantised[name] = stored[name].float() * scale
    if has_static_scales:
        stored |= {f"model.layers.0.self_attn.{name}_scale": torch.tensor([0.01]) for name in "kv"}
    save_file(stored, folder / "model.safetensors")
    return dequantised


def float8_layer(
    shape: tuple[int, int], random: torch.Generator, *, per_channel: bool = False
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A random layer of a shape ``[out, in]``: its tensors, with a static scale of activations beside a scale per
    tensor, and the weight that they stand for.
    """
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    scales = 0.05 + 0.05 * torch.rand(shape[0] if per_channel else 1, generator=random)
    tensors = {"weight": values, "weight_scale": scales if per_channel else scales[0]}
    return tensors | ({} if per_channel else {"input_scale": torch.tensor(0.01)}), values.float() * scales[:, None]
