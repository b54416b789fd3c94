"""Weights from a GGUF file, dequantised to the compute type as they are loaded."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.model_config import ModelConfig
from octavo.models.loading.checkpoint import SlotFiller
from octavo.tokenization.gguf_file import GGUFFile, GGUFTensor

_TYPES = {
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
}  # fmt: skip

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Values that the converters compute from the configuration and that Octavo computes itself.
_DERIVED = {"rope_freqs.weight"}

# Elements dequantised at a time; bounds the float32 copies to some tens of MiB.
_PIECE = 4 << 20


def fill_from_gguf(file: GGUFFile, config: ModelConfig, filler: SlotFiller, num_threads: int) -> Iterator[int]:
    """Dequantise all tensors; yields the bytes read after each.

    Raises:
        UnsupportedModelError: a tensor is of a type that cannot be dequantised.
        WeightsError: the file cannot be read.
    """
    architecture = file.metadata.get("general.architecture")
    names = {tensor: hf_name(tensor, architecture) for tensor in file.tensors if tensor not in _DERIVED}
    work: list[tuple[GGUFTensor, str, torch.Tensor]] = []
    for tensor, name in names.items():
        info = file.tensors[tensor]
        if info.type_name not in _TYPES:
            raise UnsupportedModelError(
                f"{file.path}: tensor {tensor!r} is quantised as {info.type_name}; supported are "
                f"{', '.join(sorted(_TYPES))}."
            )
        destination = filler.slot(name, info.shape)
        if destination is not None:
            work.append((info, name, destination))
    try:
        data = np.memmap(file.path, mode="r", dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{file.path} cannot be read: {error}.") from None

    def load(item: tuple[GGUFTensor, str, torch.Tensor]) -> tuple[GGUFTensor, str, torch.Tensor]:
        info, name, destination = item
        _dequantize_into(destination, info, data, _transform(name, architecture, config))
        return item

    with ThreadPoolExecutor(num_threads) as pool:
        for info, name, destination in pool.map(load, work):
            filler.note(name, destination)
            yield info.num_bytes


def hf_name(name: str, architecture: object) -> str:
    """A GGUF tensor's name in a Hugging Face checkpoint; unknown names stay as they are."""
    stem, _, leaf = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{leaf}"
    prefix, _, rest = stem.partition(".")
    index, _, part = rest.partition(".")
    layer = _GEMMA_LAYER if architecture == "gemma3" else _LAYER
    if prefix == "blk" and index.isdigit() and part in layer:
        return f"model.layers.{index}.{layer[part]}.{leaf}"
    return name


def _transform(name: str, architecture: object, config: ModelConfig) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What undoes a converter's change to a tensor; None for none. Applied to whole tensors."""
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return lambda tensor: tensor - 1.0
    if architecture == "llama" and ".q_proj." in name:
        return lambda tensor: _unpermute(tensor, config.num_heads)
    if architecture == "llama" and ".k_proj." in name:
        return lambda tensor: _unpermute(tensor, config.num_kv_heads)
    return None


def _unpermute(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """From rotary pairs side by side, as llama.cpp rotates, to pairs half a head apart."""
    shape = tensor.shape
    return tensor.view(num_heads, shape[0] // num_heads // 2, 2, *shape[1:]).transpose(1, 2).reshape(shape)


def _dequantize_into(
    destination: torch.Tensor,
    info: GGUFTensor,
    data: NDArray[np.uint8],
    transform: Callable[[torch.Tensor], torch.Tensor] | None,
) -> None:
    """Dequantise, in pieces of whole rows unless the tensor must be transformed as a whole."""
    rows = data[info.offset : info.offset + info.num_bytes].reshape(max(1, info.num_rows), -1)
    if transform is not None:
        destination.copy_(transform(_dequantize(rows, info).view(info.shape)))
        return
    flat = destination.view(max(1, info.num_rows), -1)
    step = max(1, _PIECE // max(1, info.shape[-1]))
    for start in range(0, len(rows), step):
        flat[start : start + step].copy_(_dequantize(rows[start : start + step], info))


def _dequantize(rows: NDArray[np.uint8], info: GGUFTensor) -> torch.Tensor:
    """``[rows, row bytes]`` → ``[rows, row length]`` of some float type."""
    if info.type_name == "BF16":
        return torch.from_numpy(np.array(rows).view(np.int16)).view(torch.bfloat16)
    if info.type_name in ("F16", "F32"):
        return torch.from_numpy(np.array(rows).view(np.float16 if info.type_name == "F16" else np.float32))
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return torch.from_numpy(dequantize(rows, GGMLQuantizationType(info.type_id)))
