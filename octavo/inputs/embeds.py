"""Prompt embeddings: one vector per position instead of a token id."""

import base64
import binascii
from typing import Any

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.records import PromptEmbeds

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Bits of the exponent, all set in what is not a finite number.
_EXPONENTS = {"float32": (np.uint32, 0x7F800000), "float16": (np.uint16, 0x7C00), "bfloat16": (np.uint16, 0x7F80)}


def decode_embeds(text: str) -> PromptEmbeds:
    """Vectors from the base64 of a safetensors file with one tensor, ``[T, hidden]``."""
    # Imported where it is needed: most servers never see such prompts.
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, SafetensorError):
        raise _invalid("must be the base64 of a safetensors file.") from None
    if len(tensors) != 1:
        raise _invalid(f"must hold one tensor, got {len(tensors)}.")
    ((_, tensor),) = tensors
    dtype = _DTYPES.get(tensor["dtype"])
    if dtype is None:
        raise _invalid(f"must be of type {', '.join(_DTYPES)}, got {tensor['dtype']}.")
    return _checked(bytes(tensor["data"]), dtype, list(tensor["shape"]))


def embeds_of(value: Any) -> PromptEmbeds:
    """Vectors from a torch tensor, or as they are."""
    if isinstance(value, PromptEmbeds):
        return value
    import torch

    if not isinstance(value, torch.Tensor):
        raise _invalid(f"must be a tensor, got {type(value).__name__}.")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in _EXPONENTS:
        raise _invalid(f"must be of type {', '.join(_EXPONENTS)}, got {dtype}.")
    tensor = value.detach().to("cpu").contiguous()
    return _checked(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"", dtype, list(tensor.shape))


def _checked(data: bytes, dtype: str, shape: list[int]) -> PromptEmbeds:
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2 or 0 in shape:
        raise _invalid(f"must be of the shape [tokens, hidden], got {shape}.")
    kind, exponent = _EXPONENTS[dtype]
    if np.any((np.frombuffer(data, kind) & kind(exponent)) == exponent):
        raise _invalid("must hold finite numbers only.")
    return PromptEmbeds(data, dtype, shape[0], shape[1])


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"prompt_embeds {message}", "prompt_embeds")
