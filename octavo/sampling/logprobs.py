"""Log-probabilities as the model gave them: before penalties, masks and temperature."""

import torch
from torch import Tensor

from octavo.records import TokenLogprobs

_CHUNK_ELEMENTS = 1 << 20


def raw_logprobs(logits: Tensor) -> Tensor:
    """Log-softmax in float32: ``[N, V]`` of any float type → ``[N, V]`` float32."""
    return logits.float().log_softmax(-1)


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Log-probability and rank of one token per row, and the likeliest tokens beside it.

    Works in chunks of rows, so that a long prompt over a large vocabulary needs little memory.

    Args:
        logits: ``[N, V]`` of any float type, as they came from the model.
        token_ids: ``[N]`` int64, the chosen (or prompt) tokens.
        num_top: how many likeliest tokens to list; −1 is the whole vocabulary.

    Returns:
        One per row: the chosen token, then the ``num_top`` likeliest in falling order (which may contain the
        chosen one again). The rank is 1 + the number of tokens that are strictly likelier.
    """
    vocab_size = logits.shape[1]
    num_top = vocab_size if num_top < 0 else min(num_top, vocab_size)
    rows_per_chunk = max(1, _CHUNK_ELEMENTS // vocab_size)
    result = []
    for chunk, chosen in zip(logits.split(rows_per_chunk), token_ids.split(rows_per_chunk), strict=True):
        result += _chunk_logprobs(raw_logprobs(chunk), chosen.unsqueeze(1), num_top)
    return result


def prompt_logprobs(logits: Tensor, next_token_ids: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities of the tokens that follow each of some prompt positions; see :func:`token_logprobs`."""
    return token_logprobs(logits, next_token_ids, num_top)


def _chunk_logprobs(logprobs: Tensor, chosen: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Read one chunk's results; ``logprobs`` ``[N, V]`` is overwritten, ``chosen`` is ``[N, 1]``."""
    values = logprobs.gather(1, chosen)
    if num_top == logprobs.shape[1]:
        top_values, top_ids = logprobs.sort(dim=-1, descending=True, stable=True)
    else:
        top_values, top_ids = logprobs.topk(num_top, dim=-1)
    ranks = 1 + logprobs.gt_(values).sum(-1)
    ids, values = torch.cat((chosen, top_ids), 1), torch.cat((values, top_values), 1)
    return [
        TokenLogprobs(row_ids, row_values, int(rank))
        for row_ids, row_values, rank in zip(ids.tolist(), values.tolist(), ranks.tolist(), strict=True)
    ]
