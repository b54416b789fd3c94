"""Presence, frequency and repetition penalties, computed afresh each step from the tokens themselves.

Nothing is counted along the way, so preemption and replay cannot lose or double a count.
"""

import torch
from torch import Tensor

from octavo.kernels.dispatch import kernel


@kernel
def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    slots: Tensor,
    lengths: Tensor,
    token_ids: Tensor,
    prompt_len: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    spare: Tensor,
) -> None:
    """Penalise tokens that occurred already, in place: repetition first, then frequency and presence.

    Args:
        logits: ``[N, V]`` float32, contiguous.
        rows: ``[P]`` int64, the distinct rows of ``logits`` to penalise.
        slots, lengths: ``[P]`` int64, the slot and the number of known tokens of each.
        token_ids: ``[S, L]`` int32, known tokens by slot; entries from a request's length on are garbage.
        prompt_len: ``[S]`` int64, by slot; frequency and presence count only tokens after the prompt.
        repetition, frequency, presence: ``[S]`` float64, by slot, neutral at 1, 0, 0.
        spare: ``[≥P, V]`` float32, contiguous, overwritten.
    """
    vocab_size = logits.shape[1]
    known = token_ids.index_select(0, slots).long()
    tokens, seen, generated = _occurrences(known, lengths, prompt_len.index_select(0, slots), vocab_size)
    counts = spare[: len(rows)].zero_()
    count = counts.scatter_add_(1, tokens, generated).gather(1, tokens)  # [P, L]

    def of_rows(penalty: Tensor) -> Tensor:
        return penalty.index_select(0, slots).to(logits.dtype).unsqueeze(1)

    flat = logits.view(-1)
    places = tokens + rows.unsqueeze(1) * vocab_size
    old = flat[places]
    factor = of_rows(repetition)
    # A division by a tiny penalty must not make an infinity, which would count as the model's fault.
    new = torch.where(old > 0, old / factor, old * factor).clamp_(max=torch.finfo(logits.dtype).max)
    new -= of_rows(frequency) * count
    new -= of_rows(presence) * (count > 0)
    flat[places] = torch.where(seen, new, old)


def _occurrences(
    token_ids: Tensor, lengths: Tensor, prompt_lens: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Valid token ids, whether each occurs among the known tokens, and 1.0 where it was generated; all ``[P, L]``.

    Garbage becomes token 0, seen only if token 0 is: then all entries of one token get the same new logit, and it
    does not matter which of them is written last.
    """
    position = torch.arange(token_ids.shape[1], device=token_ids.device)
    seen = (position < lengths.unsqueeze(1)) & (token_ids >= 0) & (token_ids < vocab_size)
    generated = (seen & (position >= prompt_lens.unsqueeze(1))).to(torch.float32)
    tokens = token_ids * seen
    is_zero_seen = (seen & (tokens == 0)).any(-1, keepdim=True)
    return tokens, seen | ((tokens == 0) & is_zero_seen), generated
