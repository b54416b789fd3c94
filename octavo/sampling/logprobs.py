"""Log-probabilities as the model gave them: before penalties, masks and temperature."""

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.dispatch import kernel
from octavo.platforms.transfer import HostCopies
from octavo.records import TokenLogprobs

_CHUNK_ELEMENTS = 1 << 20


@dataclass(slots=True)
class LogprobTensors:
    """Log-probabilities of ``N`` tokens and of the likeliest beside each.

    Attributes:
        token_ids: ``[N, 1 + n]`` int64, the chosen token, then the ``n`` likeliest in falling order (which may contain
            the chosen one again).
        logprobs: ``[N, 1 + n]`` float32.
        ranks: ``[N]`` int64, 1 + the number of tokens that are strictly likelier than the chosen one.
        is_listed: whether the others are tokens that were asked for by their ids, in any order.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor
    is_listed: bool = False

    def to_host(self, copies: HostCopies) -> "LogprobTensors":
        """Copies that may be read once ``copies`` have arrived."""
        tensors = copies.add(self.token_ids), copies.add(self.logprobs), copies.add(self.ranks)
        return LogprobTensors(*tensors, self.is_listed)

    def read(self) -> list[TokenLogprobs]:
        """One record per row."""
        rows = zip(self.token_ids.tolist(), self.logprobs.tolist(), self.ranks.tolist(), strict=True)
        return [TokenLogprobs(ids, values, rank, self.is_listed) for ids, values, rank in rows]


@kernel
def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> LogprobTensors:
    """Log-probability and rank of one token per row, and the likeliest tokens beside it.

    Works in chunks of rows, so that a long prompt over a large vocabulary needs little memory.

    Args:
        logits: ``[N, V]`` of any float type, as they came from the model.
        token_ids: ``[N]`` int64, the chosen (or prompt) tokens.
        num_top: how many likeliest tokens to list; −1 is the whole vocabulary.
    """
    vocab_size = logits.shape[1]
    num_top = vocab_size if num_top < 0 else min(num_top, vocab_size)
    rows_per_chunk = max(1, _CHUNK_ELEMENTS // vocab_size)
    chunks = zip(logits.split(rows_per_chunk), token_ids.split(rows_per_chunk), strict=True)
    found = [_chunk_logprobs(chunk, chosen.unsqueeze(1), num_top) for chunk, chosen in chunks]
    return _joined(found)


def listed_logprobs(logits: Tensor, token_ids: Tensor, listed: Tensor) -> LogprobTensors:
    """The same with the tokens ``listed``, ``[n]`` int64, in place of the likeliest."""
    rows_per_chunk = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    found = []
    for chunk, chosen in zip(logits.split(rows_per_chunk), token_ids.split(rows_per_chunk), strict=True):
        logprobs = chunk.float().log_softmax(-1)
        ids = torch.cat((chosen.unsqueeze(1), listed.expand(len(chosen), -1)), 1)
        values = logprobs.gather(1, ids)
        ranks = 1 + (logprobs > values[:, :1]).sum(-1, dtype=torch.int64)
        found.append(LogprobTensors(ids, values, ranks, is_listed=True))
    return _joined(found)


def _joined(parts: list[LogprobTensors]) -> LogprobTensors:
    if len(parts) == 1:
        return parts[0]
    return LogprobTensors(
        torch.cat([part.token_ids for part in parts]),
        torch.cat([part.logprobs for part in parts]),
        torch.cat([part.ranks for part in parts]),
        parts[0].is_listed,
    )


def _chunk_logprobs(logits: Tensor, chosen: Tensor, num_top: int) -> LogprobTensors:
    """One chunk's results; ``chosen`` is ``[N, 1]``."""
    logprobs = logits.float().log_softmax(-1)
    values = logprobs.gather(1, chosen)
    if num_top == logprobs.shape[1]:
        top_values, top_ids = logprobs.sort(dim=-1, descending=True, stable=True)
    else:
        top_values, top_ids = logprobs.topk(num_top, dim=-1)
    ranks = 1 + logprobs.gt_(values).sum(-1, dtype=torch.int64)
    return LogprobTensors(torch.cat((chosen, top_ids), 1), torch.cat((values, top_values), 1), ranks)
