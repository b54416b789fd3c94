"""The plain PyTorch runner, used on CPUs: a step in, tokens out. ``device_runner.py`` derives the GPU's from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from octavo.execution.kv_cache import allocate_kv_caches
from octavo.execution.prompt_embeds import PromptVectors
from octavo.execution.results import HeldStep, SampledStep
from octavo.execution.state import BatchState
from octavo.hub.model_config import ModelConfig
from octavo.kernels import AttentionBackend, AttentionInputs, mask_logits, padded_rows
from octavo.layers.attention import StepAttention
from octavo.models.base import CausalLM
from octavo.platforms.transfer import HostCopies, to_device
from octavo.records import CacheGroup, NewRow, Plan, Step
from octavo.sampling.logprobs import LogprobTensors, token_logprobs
from octavo.sampling.processors import LogitsProcessor
from octavo.sampling.sampler import Sampler, Samples

_PROMPT_LOGPROB_ROWS = 128
"""Prompt positions whose logits are computed at a time: 128 × 262,144 float32 values are 128 MiB."""


TokenMasks = NDArray[np.int32]
"""``[M, ceil(V / 32)]``, one bit per token, lowest bit first: whether the token is allowed."""


@dataclass(slots=True)
class _Inputs:
    """Tensors of one step over ``T`` tokens and ``R`` rows.

    Attributes:
        slots: ``[R]`` int64.
        token_ids, positions: ``[T]`` int64.
        token_slots: ``[T]`` int64, each token's row in device state.
        last_tokens: ``[R]`` int64, index among the T of each row's last token.
    """

    slots: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    token_slots: torch.Tensor
    last_tokens: torch.Tensor


class ModelRunner:
    """A model, its cache and the state of the requests in the batch.

    Args:
        backend: implementation of attention.
    """

    def __init__(
        self,
        model: CausalLM,
        config: ModelConfig,
        plan: Plan,
        dtype: torch.dtype,
        device: torch.device,
        backend: AttentionBackend,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.model = model
        self.plan = plan
        self.dtype = dtype
        self.device = device
        self.state = BatchState(plan, device)
        self.kv_caches = allocate_kv_caches(plan, config, dtype, device)
        self.backend = backend
        self.num_kv_heads = config.num_kv_heads
        self.sampler = Sampler(plan.max_num_seqs, config.vocab_size, device, processors=list(processors))
        by_layer = {layer: index for index, group in enumerate(plan.groups) for layer in group.layers}
        self.group_of_layer = [by_layer[layer] for layer in range(config.num_layers)]
        self.windows = [_effective_window(group, plan.max_model_len) for group in plan.groups]
        self._prompt_logprob_rows: dict[int, NewRow] = {}
        self.prompt_vectors = PromptVectors(model, dtype, device)

    @torch.inference_mode()
    def execute(self, step: Step) -> SampledStep | HeldStep:
        """Run one step; on asynchronous devices, queue it."""
        self._take_changes(step)
        draw = self._run(step)
        return draw(None) if step.masked_rows is None else HeldStep(torch.inference_mode()(draw))

    def _run(self, step: Step) -> Callable[[TokenMasks | None], SampledStep]:
        """Run the model; the returned function draws the tokens, given the masks of ``masked_rows`` if any."""
        inputs = self._prepare_inputs(step)
        with self.prompt_vectors.put_in_place(step):
            hidden = self._forward(inputs, self._plan_attention(step, inputs))
        self.state.advance(inputs.slots, self.state.row_num_new[: len(step.slots)])
        return partial(self._draw_tokens, step, inputs, hidden)

    def _draw_tokens(self, step: Step, inputs: _Inputs, hidden: torch.Tensor, masks: TokenMasks | None) -> SampledStep:
        copies = HostCopies(self.device)
        sampling = step.num_drawn.nonzero()[0]
        samples = self._sample(step, sampling, inputs, hidden, masks).to_host(copies) if len(sampling) else None
        return self._finish(step, sampling, samples, hidden, copies)

    def _finish(
        self, step: Step, sampling: np.ndarray, samples: Samples | None, hidden: torch.Tensor, copies: HostCopies
    ) -> SampledStep:
        prompt_logprobs = []
        if self._prompt_logprob_rows:
            found = self._collect_prompt_logprobs(step, hidden)
            prompt_logprobs = [(row, logprobs.to_host(copies)) for row, logprobs in found]
        copies.seal()
        return SampledStep(len(step.slots), sampling, samples, copies, prompt_logprobs)

    def _take_changes(self, step: Step) -> None:
        for slot in step.freed_slots:
            self.sampler.remove(slot)
            self.prompt_vectors.remove(slot)
            self._prompt_logprob_rows.pop(slot, None)
        for row in step.new_rows:
            self.sampler.add(row)
            self.prompt_vectors.add(row)
            if row.params.prompt_logprobs is not None and row.prompt_logprobs_from < row.prompt_len:
                self._prompt_logprob_rows[row.slot] = row
        if step.blocks_to_wipe:
            blocks = to_device(np.array(step.blocks_to_wipe, np.int64), self.device)
            for cache in self.kv_caches:
                cache[:, blocks] = 0
        self.state.apply(step)

    def _prepare_inputs(self, step: Step) -> _Inputs:
        """The model's inputs, from device state."""
        num_rows = len(step.slots)
        state = self.state
        slots = state.row_slots[:num_rows].long()
        num_new = state.row_num_new[:num_rows].long()
        positions = state.num_computed[slots].long()
        last_tokens = num_new.cumsum(0) - 1
        token_slots = slots
        if step.num_tokens > num_rows:
            row_of_token = torch.repeat_interleave(num_new, output_size=step.num_tokens)
            first_tokens = last_tokens - num_new + 1
            offsets = torch.arange(step.num_tokens, device=self.device) - first_tokens[row_of_token]
            token_slots = slots[row_of_token]
            positions = positions[row_of_token] + offsets
        token_ids = state.token_ids[token_slots, positions].long()
        return _Inputs(slots, token_ids, positions, token_slots, last_tokens)

    def _forward(self, inputs: _Inputs, attention: StepAttention) -> torch.Tensor:
        """Hidden states of the step's tokens, ``[T, hidden]``; the model runs on a padded number of tokens."""
        num_tokens = len(inputs.token_ids)
        padding = (0, padded_rows(self.device, num_tokens) - num_tokens)
        return self.model(F.pad(inputs.token_ids, padding), F.pad(inputs.positions, padding), attention)[:num_tokens]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, hidden] → [N, vocab]``, padded in the same way."""
        num_rows = len(hidden)
        return self.model.logits(F.pad(hidden, (0, 0, 0, padded_rows(self.device, num_rows) - num_rows)))[:num_rows]

    def _plan_attention(self, step: Step, inputs: _Inputs) -> StepAttention:
        query_lens = step.num_new.tolist()
        seq_lens = (step.num_computed + step.num_new).tolist()
        size = self.plan.block_size
        block_index, offset = inputs.positions // size, inputs.positions % size
        plans = []
        for index, window in enumerate(self.windows):
            tables = self.state.block_tables[index]
            mapping = tables[inputs.token_slots, block_index].long() * size + offset
            attention = AttentionInputs(
                tables, inputs.slots, mapping, query_lens, seq_lens, size, self.num_kv_heads, window
            )
            plans.append(self.backend.plan(attention, self.dtype))
        return StepAttention(self.backend, self.kv_caches, [plans[group] for group in self.group_of_layer])

    def _sample(
        self, step: Step, sampling: np.ndarray, inputs: _Inputs, hidden: torch.Tensor, masks: TokenMasks | None
    ) -> Samples:
        """Draw for the rows ``sampling`` and append the tokens to device state."""
        slots, last_tokens = inputs.slots, inputs.last_tokens
        if len(sampling) < len(step.slots):
            chosen = to_device(sampling, self.device)
            slots, last_tokens = slots[chosen], last_tokens[chosen]
        rows = hidden if len(sampling) == len(hidden) else hidden.index_select(0, last_tokens)
        lengths = inputs.positions[last_tokens] + 1
        logits = self._logits(rows)
        if masks is not None:
            assert step.masked_rows is not None
            self._mask(logits, np.searchsorted(sampling, step.masked_rows), masks)
        samples = self._draw(step, sampling, logits, slots, lengths)
        self.state.append(slots, lengths, samples.token_ids)
        return samples

    def _mask(self, logits: torch.Tensor, rows: np.ndarray, masks: TokenMasks) -> None:
        """Mask tokens that are not allowed in these rows of the logits."""
        mask_logits(logits, to_device(rows, self.device), to_device(masks, self.device))

    def _draw(
        self, step: Step, sampling: np.ndarray, logits: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor
    ) -> Samples:
        longest = int((step.num_computed + step.num_new).max())
        return self.sampler.sample(logits, slots, lengths, self.state.token_ids, step.slots[sampling].tolist(), longest)

    def _collect_prompt_logprobs(self, step: Step, hidden: torch.Tensor) -> list[tuple[int, LogprobTensors]]:
        """Pairs of a row and log-probabilities of prompt positions, for rows that asked for them."""
        found: list[tuple[int, LogprobTensors]] = []
        start = 0
        for index, (slot, num_new) in enumerate(zip(step.slots.tolist(), step.num_new.tolist(), strict=True)):
            row = self._prompt_logprob_rows.get(slot)
            if row is not None:
                first = int(step.num_computed[index])
                logprobs = self._row_logprobs(row, first, hidden[start : start + num_new])
                found.extend((index, part) for part in logprobs)
            start += num_new
        return found

    def _row_logprobs(self, row: NewRow, first: int, hidden: torch.Tensor) -> list[LogprobTensors]:
        """Log-probabilities of the prompt tokens that follow a chunk's positions.

        Args:
            first: position of the chunk's first token.
            hidden: ``[tokens of the chunk, hidden]``.
        """
        # The hidden state at position p predicts the token at p + 1.
        begin = max(first, row.prompt_logprobs_from - 1)
        end = min(first + len(hidden), row.prompt_len - 1)
        assert row.params.prompt_logprobs is not None
        collected = []
        for start in range(begin, end, _PROMPT_LOGPROB_ROWS):
            stop = min(start + _PROMPT_LOGPROB_ROWS, end)
            logits = self._logits(hidden[start - first : stop - first])
            targets = to_device(np.array(row.token_ids[start + 1 : stop + 1], np.int64), self.device)
            collected.append(token_logprobs(logits, targets, row.params.prompt_logprobs))
        if first + len(hidden) >= row.prompt_len - 1:
            del self._prompt_logprob_rows[row.slot]
        return collected


def _effective_window(group: CacheGroup, max_model_len: int) -> int | None:
    """A group's window; None if it spans ``max_model_len`` and so masks nothing."""
    return None if group.window is None or group.window >= max_model_len else group.window
