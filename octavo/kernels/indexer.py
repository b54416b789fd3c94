"""The choice of the tokens that attention sees (DeepSeek-V3.2, arXiv:2512.02556): scores, and the highest of them."""

import torch

from octavo.kernels.attention import AttentionInputs
from octavo.kernels.dispatch import kernel
from octavo.kernels.latent_attention import gather_row, tokens_of

MAX_SCORES = 1 << 26
"""Maximum number of scores in memory at a time: 256 MiB."""


@kernel
def choose_tokens(
    q: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor, inputs: AttentionInputs, num_chosen: int
) -> torch.Tensor:
    """Choose the tokens that each of a step's queries attends to, among those up to its own.

    A token's score is the sum over heads of a weight times the part above 0 of query · key, in float32; factors that
    all scores have in common are left out. Of equal scores the earlier token comes first. A choice depends on the
    sequence alone, not on how its tokens came into the cache or what else is in the step.

    Args:
        q: ``[≥ T, H, D]``; rows past the step's tokens are padding.
        weights: ``[≥ T, H]`` float32.
        cache: ``[blocks, block_size, D]``, keys, the step's included.

    Returns:
        ``[≥ T, num_chosen]`` int32, positions in rising order, followed by −1; all −1 for padding.
    """
    chosen = torch.full((len(q), num_chosen), -1, dtype=torch.int32, device=q.device)
    for row, tokens, positions in tokens_of(inputs):
        keys = gather_row(cache, None, inputs, row).T.contiguous()  # [D, S]
        for token, position in zip(tokens, positions, strict=True):
            # Products of the same shapes, however the sequence is cut: other shapes add in another order.
            scores = weights[token] @ (q[token].float() @ keys[:, : position + 1]).relu_()
            ranked = scores.sort(descending=True, stable=True).indices[:num_chosen]
            chosen[token, : len(ranked)] = ranked.sort().values
    return chosen
