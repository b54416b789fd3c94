"""The choice of the tokens that attention sees, by the compiled kernels."""

import torch

from octavo.kernels.attention import AttentionInputs
from octavo.kernels.cpu.native_attention import attention_rows
from octavo.kernels.indexer import choose_tokens
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels, profiled


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for an indexer's choice on CPUs; other types than theirs run as the reference."""

    profiled_choice = profiled("indexer")

    @choose_tokens.register("cpu")
    def choose(
        q: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor, inputs: AttentionInputs, num_chosen: int
    ) -> torch.Tensor:
        if not (q.dtype in TYPE_NUMBERS and q.dtype == cache.dtype and weights.dtype == torch.float32):
            return choose_tokens.reference(q, weights, cache, inputs, num_chosen)
        _, heads, size = q.shape
        assert q.is_contiguous() and weights.is_contiguous() and cache.stride()[1:] == (size, 1)
        assert inputs.slots.dtype == torch.int32 and inputs.window is None
        chosen = torch.empty(len(q), num_chosen, dtype=torch.int32)
        with profiled_choice:
            native.choose_tokens(
                native.new_plan(),
                *attention_rows(inputs),
                q.data_ptr(),
                weights.data_ptr(),
                cache.data_ptr(),
                chosen.data_ptr(),
                cache.stride(0) * cache.element_size(),
                len(q),
                heads,
                size,
                num_chosen,
                TYPE_NUMBERS[q.dtype],
            )
        return chosen
