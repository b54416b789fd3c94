"""A drafter for tests: it knows how each text goes on, and is wrong as often as it is told to be."""

from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from octavo.kernels import DeviceState, DraftTensors
from octavo.speculation.ngram import NgramDrafter

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}
WISHES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.9, "presence_penalty": 0.7, "logprobs": 0},
    {"temperature": 1.1, "min_p": 0.03, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 12, "logit_bias": {70: 3.0, 71: -100.0}},
    {"temperature": 0.7, "min_tokens": 20, "stop_token_ids": list(range(60, 120)), "logit_bias": {66: 4.0}},
    {"temperature": 1.0, "stop": ["e", "a", "0"], "min_tokens": 3},
    {"temperature": 0.9, "structured_outputs": StructuredOutputsParams(regex="[a-f ]{5,30}")},
    {"temperature": 0, "structured_outputs": StructuredOutputsParams(choice=["tea", "a cup of tea"])},
    {"temperature": 0.8, "bad_words": ["e", "te"], "allowed_token_ids": list(range(40, 200))},
    {"temperature": 1.0, "ignore_eos": True, "max_tokens": 37},
]


class TableDrafter:
    """Drafts from a table on the device; the host neither waits nor knows.

    Texts are told by their first token. The draft of a position is right or wrong whenever it is made.

    Args:
        texts: prompts with their answers, each with a first token of its own.
        acceptance: share of drafts that are right.
    """

    def __init__(self, texts: list[list[int]], acceptance: float, vocab_size: int, device: str = "cpu") -> None:
        length = max(map(len, texts))
        random = np.random.default_rng(0)
        table = np.zeros((vocab_size, length), np.int32)
        for text in texts:
            table[text[0], : len(text)] = text
        is_wrong = random.random(table.shape) >= acceptance
        self._table = torch.from_numpy(np.where(is_wrong, (table + 1) % vocab_size, table)).to(device)

    def propose(self, state: DeviceState, drafts: DraftTensors, num_rows: int) -> None:
        """Draft behind each row's tokens; see :meth:`Drafter.propose`."""
        most = drafts.drafts.shape[1]
        draws = (torch.arange(num_rows, device=state.header.device) < state.header[0]) & (
            state.row_num_drawn[:num_rows] > 0
        )
        slots = torch.where(draws, state.row_slots[:num_rows], 0).long()
        places = state.num_computed[slots, None] + 1 + torch.arange(most, device=slots.device)
        counts = torch.where(draws, (state.max_len - 1 - places[:, 0]).clamp(0, most), 0).int()
        known = self._table[state.recent_tokens[slots, :1].long(), places.clamp(max=self._table.shape[1] - 1)]
        # Rows that draft nothing write to the last place of all, which belongs to no text.
        is_draft = torch.arange(most, device=slots.device) < counts[:, None]
        assert state.max_len < state.num_recent, "each text stands there from its first token on"
        places = torch.where(is_draft, slots[:, None] * state.num_recent + places, state.recent_tokens.numel() - 1)
        state.recent_tokens.view(-1)[places] = known
        of_slot = torch.zeros_like(state.num_drafts).index_add_(0, slots, counts)
        is_there = torch.zeros_like(state.num_drafts).index_add_(0, slots, draws.int())
        state.num_drafts.copy_(torch.where(is_there > 0, of_slot, state.num_drafts))
        drafts.drafts[:num_rows], drafts.num_drafts[:num_rows] = known, counts


def use(drafter: TableDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it draft in engines that are made for drafts from n-grams."""
    monkeypatch.setattr(NgramDrafter, "propose", lambda _, *step: drafter.propose(*step))


def ask(llm: LLM, wishes: list[dict[str, Any]] = WISHES) -> list[RequestOutput]:
    prompts: list[Any] = [
        {"prompt_token_ids": [index, *((7 * index + place) % 250 for place in range(1 + 5 * (index % 5)))]}
        for index in range(len(wishes))
    ]
    params = [SamplingParams(**({"max_tokens": 32, "seed": index} | wish)) for index, wish in enumerate(wishes)]
    return llm.generate(prompts, params, use_tqdm=False)


def texts(outputs: list[RequestOutput]) -> list[list[int]]:
    """Prompts with their answers."""
    return [[*(output.prompt_token_ids or []), *output.outputs[0].token_ids] for output in outputs]


def abort_and_check(llm: LLM, expected: list[RequestOutput]) -> None:
    """Abort every other request in its middle: all blocks come back, and the rest goes on undisturbed."""
    engine, index = llm.llm_engine, dict(enumerate(expected))
    for number, output in index.items():
        wish = {"max_tokens": 32, "seed": number} | WISHES[number]
        engine.add_request(str(number), {"prompt_token_ids": output.prompt_token_ids}, SamplingParams(**wish))
    found: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[output.request_id] = list(output.outputs[0].token_ids)
            number = int(output.request_id)
            if number % 2 and len(found[output.request_id]) > 2 + number and not output.finished:
                engine.abort_request(output.request_id)
    for number, output in index.items():
        tokens, plain = found[str(number)], list(output.outputs[0].token_ids)
        assert tokens == (plain[: len(tokens)] if number % 2 else plain)
    assert any(len(found[str(number)]) < len(output.outputs[0].token_ids) for number, output in index.items())
    stats = engine.core.stats
    assert (stats.num_free_blocks, stats.num_running) == (stats.num_blocks, 0)
