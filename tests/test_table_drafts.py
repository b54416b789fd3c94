"""Drafts of which a known share is right, with everything that a request may ask for: the outputs of a plain engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_llm import loaded_llm
from table_drafter import DRAFTS, TableDrafter, abort_and_check, ask, texts, use
from tiny_llama import VOCAB_SIZE, write_model

from octavo import RequestOutput
from octavo.telemetry.reader import Counter, Vector

pytestmark = pytest.mark.usefixtures("shared_trials")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[RequestOutput]:
    with loaded_llm(folder) as llm:
        return ask(llm)


def logprobs(output: RequestOutput) -> list[float]:
    rows = [*(output.prompt_logprobs or []), *(output.outputs[0].logprobs or [])]
    return [entry.logprob for row in rows if row is not None for entry in row.values()]


@pytest.mark.long
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"async_scheduling": True},
        {"async_scheduling": True, "max_num_batched_tokens": 64, "max_num_seqs": 5, "num_gpu_blocks_override": 90},
    ],
)
@pytest.mark.usefixtures("hasty_admission")
def test_outputs_are_those_without_drafts(
    folder: Path,
    expected: list[RequestOutput],
    settings: dict[str, Any],
    acceptance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(TableDrafter(texts(expected), acceptance, VOCAB_SIZE), monkeypatch)
    with loaded_llm(folder, speculative_config=DRAFTS, **settings) as llm:
        for output, other in zip(ask(llm), expected, strict=True):
            found, plain = output.outputs[0], other.outputs[0]
            assert list(found.token_ids) == list(plain.token_ids), other.request_id
            assert (found.text, found.finish_reason, found.stop_reason) == (
                plain.text,
                plain.finish_reason,
                plain.stop_reason,
            )
            assert logprobs(output) == pytest.approx(logprobs(other), abs=1e-4)
        figures = {metric.name.removeprefix("vllm:spec_decode_num_"): metric for metric in llm.get_metrics()}
    accepted, drafted, by_position = (
        figures[name] for name in ("accepted_tokens", "draft_tokens", "accepted_tokens_per_pos")
    )
    assert isinstance(accepted, Counter) and isinstance(drafted, Counter) and isinstance(by_position, Vector)
    assert sum(by_position.values) == accepted.value
    # An accepted draft presupposes those before it.
    share = sum(acceptance**place for place in (1, 2, 3)) / 3
    assert accepted.value / drafted.value == pytest.approx(share, abs=0.12)


@pytest.fixture(scope="module")
def many(folder: Path) -> Iterator[tuple[list[dict[str, Any]], list[list[int]]]]:
    """Requests that sample freely and tell the whole distribution of each token, and their texts."""
    wish = {"temperature": 1.5, "max_tokens": 16, "logprobs": VOCAB_SIZE, "ignore_eos": True}
    wishes = [wish | {"seed": 1000 + index} for index in range(150)]
    with loaded_llm(folder, max_logprobs=VOCAB_SIZE) as llm:
        yield wishes, texts(ask(llm, wishes))


@pytest.mark.sample(2)
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
def test_tokens_follow_the_models_distribution(
    folder: Path,
    many: tuple[list[dict[str, Any]], list[list[int]]],
    acceptance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place of each token in its cumulative distribution is uniform, whether or not it is a draft."""
    wishes, known = many
    use(TableDrafter(known, acceptance, VOCAB_SIZE), monkeypatch)
    random = np.random.default_rng(5)
    places = []
    with loaded_llm(folder, speculative_config=DRAFTS, max_logprobs=VOCAB_SIZE, async_scheduling=True) as llm:
        for output in ask(llm, wishes):
            completion = output.outputs[0]
            for token, row in zip(completion.token_ids, completion.logprobs or [], strict=True):
                uniforms = np.exp([row[other].logprob / 1.5 for other in range(VOCAB_SIZE)])
                uniforms /= uniforms.sum()
                places.append(uniforms[:token].sum() + random.random() * uniforms[token])
    counts = np.histogram(places, 20, (0, 1))[0]
    mean = len(places) / 20
    # 99.9 % of the chi-square distribution with 19 degrees of freedom.
    assert ((counts - mean) ** 2 / mean).sum() < 43.8


@pytest.mark.parametrize("acceptance", [0.5, 1.0])
def test_aborted_requests_leave_nothing_behind(
    folder: Path, expected: list[RequestOutput], acceptance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(TableDrafter(texts(expected), acceptance, VOCAB_SIZE), monkeypatch)
    with loaded_llm(folder, speculative_config=DRAFTS, async_scheduling=True) as llm:
        abort_and_check(llm, expected)
