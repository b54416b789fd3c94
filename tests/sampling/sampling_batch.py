"""A small batch to sample from, built in a line or two."""

from collections.abc import Sequence

import torch

from octavo.records import NewRow, SamplingParams, TokenLogprobs, as_token_ids
from octavo.sampling import LogitsProcessor
from octavo.sampling.device_sampler import DeviceSampler
from octavo.sampling.sampler import Sampler, Samples

CPU = torch.device("cpu")


def read_logprobs(samples: Samples) -> dict[int, TokenLogprobs]:
    """Log-probabilities by row, of the rows that asked."""
    return {row: values for rows, found in samples.logprobs for row, values in zip(rows, found.read(), strict=True)}


class Batch:
    """A sampler with its token matrix; requests are named by their slot."""

    def __init__(
        self,
        vocab_size: int,
        max_num_seqs: int = 16,
        max_len: int = 64,
        processors: Sequence[LogitsProcessor] = (),
        device: torch.device = CPU,
        *,
        is_on_device: bool = False,
    ) -> None:
        self.device = device
        make = DeviceSampler if is_on_device else None
        self.sampler = Sampler(max_num_seqs, vocab_size, device, processors=processors, draw_on_device=make)
        # Garbage past the end of a row must not matter: neither valid ids nor invalid ones.
        generator = torch.Generator().manual_seed(0)
        self.token_ids = torch.randint(
            -5, vocab_size + 5, (max_num_seqs, max_len), dtype=torch.int32, generator=generator
        )
        self.lengths = [0] * max_num_seqs

    def add(
        self,
        slot: int,
        params: SamplingParams,
        prompt: Sequence[int] = (0,),
        output: Sequence[int] = (),
        seed: int = 0,
        stop: Sequence[int] = (),
        bad_words: Sequence[list[int]] = (),
    ) -> None:
        tokens = [*prompt, *output]
        self.sampler.add_row(NewRow(slot, as_token_ids(tokens), len(prompt), params, seed, list(stop), list(bad_words)))
        self.token_ids[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.lengths[slot] = len(tokens)

    def sample(self, logits: torch.Tensor, slots: Sequence[int]) -> Samples:
        """One step, without appending the tokens."""
        logits = logits.to(self.device)
        lengths = torch.tensor([self.lengths[slot] for slot in slots], dtype=torch.int64)
        before = logits.clone()
        samples = self.sampler.sample(
            logits,
            torch.tensor(slots, dtype=torch.int64, device=self.device),
            lengths.to(self.device),
            lambda slots, positions: self.token_ids[slots.cpu(), positions.cpu()].to(self.device),
            list(slots),
        )
        assert torch.equal(logits.nan_to_num(), before.nan_to_num()), "the model's logits were changed"
        return samples

    def append(self, slot: int, token: int) -> None:
        self.token_ids[slot, self.lengths[slot]] = token
        self.lengths[slot] += 1

    def step(self, logits: torch.Tensor, slots: Sequence[int]) -> list[int]:
        """One step whose tokens are appended."""
        tokens = self.sample(logits, slots).token_ids.tolist()
        if tokens:
            self.count(slots, [[token] for token in tokens])
        for slot, token in zip(slots, tokens, strict=True):
            self.append(slot, token)
        return tokens

    def count(self, slots: Sequence[int], token_ids: Sequence[Sequence[int]]) -> None:
        """Tell the sampler which tokens stay, the same number for each request."""
        new_tokens = torch.tensor(token_ids, dtype=torch.int64, device=self.device).view(len(slots), -1)
        num_tokens = torch.full((len(slots),), new_tokens.shape[1], device=self.device)
        self.sampler.count(torch.tensor(slots, device=self.device), new_tokens, num_tokens)
