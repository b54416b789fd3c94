"""The experts of tokens (routing replay) in answers: a NumPy file in Base64, as vLLM sends them."""

import base64
import io

import numpy as np
from msgspec import UNSET, UnsetType

from octavo.records import CompletionOutput

_NUMBERS_PER_ENTRY = 64


def routed_experts(completion: CompletionOutput) -> str | UnsetType:
    """An array ``[tokens, layers, experts per token]`` of int32 that ``numpy.load`` reads; unset without experts."""
    if completion.routed_experts is None:
        return UNSET
    file = io.BytesIO()
    np.save(file, completion.routed_experts.astype(np.int32), allow_pickle=False)
    return base64.b64encode(file.getbuffer()).decode()


def num_entries(completion: CompletionOutput) -> int:
    """As how many entries of an answer's lists the experts count; see :func:`octavo.api.pieces.write`."""
    return 0 if completion.routed_experts is None else completion.routed_experts.size // _NUMBERS_PER_ENTRY
