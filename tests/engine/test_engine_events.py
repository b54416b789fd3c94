"""Cache events of a whole engine, for a small random model."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_requests import engine_request
from event_subscriber import AllBlocksCleared, BlockRemoved, BlockStored, Event, decode, replay_until
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
Start = Callable[..., LLM]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[LLM] = []

    def start_on(**settings: Any) -> LLM:
        events = {
            "enable_kv_cache_events": True,
            "endpoint": f"ipc://{tmp_path}/events",
            "replay_endpoint": f"ipc://{tmp_path}/replay",
        }
        started.append(LLM(str(folder), kv_events_config=events, **{**SETTINGS, **settings}))
        return started[-1]

    yield start_on
    for llm in started:
        llm.shutdown()


def generate(llm: LLM, *prompts: list[int], **settings: Any) -> None:
    for prompt in prompts:
        llm.generate({"prompt_token_ids": prompt, **settings}, PARAMS, use_tqdm=False)


def events_of(tmp_path: Path, is_last: Callable[[list[Event]], bool]) -> list[Event]:
    """All events from the first on, once the expected ones are among them."""
    messages = replay_until(
        f"ipc://{tmp_path}/replay",
        lambda messages: is_last([event for message in messages for event in decode(message[2]).events]),
    )
    assert [int.from_bytes(message[1], "big") for message in messages] == list(range(len(messages)))
    return [event for message in messages for event in decode(message[2]).events]


def test_two_requests_with_a_common_prefix(start: Start, tmp_path: Path) -> None:
    llm = start()
    common, tails = list(range(8)), [[20, 21, 22, 23, 24], [30, 31, 32, 33, 34]]
    generate(llm, *(common + tail for tail in tails))
    first, second = events_of(tmp_path, lambda events: len(events) >= 2)
    assert isinstance(first, BlockStored) and isinstance(second, BlockStored)
    assert first.token_ids == [*common, *tails[0][:4]]
    assert first.parent_block_hash is None
    assert second.token_ids == tails[1][:4], "the common part is known already"
    assert second.parent_block_hash == first.block_hashes[1]
    assert first.extra_keys == [None, None, None]
    assert (first.block_size, first.group_idx) == (4, 0)


def test_a_salt_is_told_with_the_first_block(start: Start, tmp_path: Path) -> None:
    generate(start(), list(range(9)), cache_salt="tenant")
    (stored,) = events_of(tmp_path, bool)
    assert isinstance(stored, BlockStored)
    assert stored.extra_keys == [("tenant",), None]


def test_generated_tokens_are_told_when_the_request_ends(start: Start, tmp_path: Path) -> None:
    llm = start()
    llm.generate({"prompt_token_ids": [5] * 6}, SamplingParams(temperature=0, max_tokens=7, ignore_eos=True))
    stored = events_of(tmp_path, lambda events: len(events) >= 2)
    assert [len(event.token_ids) for event in stored if isinstance(event, BlockStored)] == [4, 8]


def test_what_is_gone_is_told(start: Start, tmp_path: Path) -> None:
    llm = start(num_gpu_blocks_override=9, max_model_len=32)
    generate(llm, *([number] * 17 for number in range(4)))
    assert llm.reset_prefix_cache()
    *events, last = events_of(tmp_path, lambda events: AllBlocksCleared() in events)
    assert last == AllBlocksCleared()
    held: set[bytes | int] = set()
    num_removed = 0
    for event in events:
        match event:
            case BlockStored(block_hashes=hashes):
                assert not held & set(hashes)
                held |= set(hashes)
            case BlockRemoved(block_hashes=hashes):
                assert held >= set(hashes)
                held -= set(hashes)
                num_removed += len(hashes)
    assert num_removed >= 8
    assert 0 < len(held) <= 8


def test_what_an_aborted_request_leaves_is_told_at_once(start: Start, tmp_path: Path) -> None:
    llm = start()
    engine = llm._engine
    engine.add_request(engine_request("r", [5] * 6, SamplingParams(max_tokens=200, ignore_eos=True)))
    for _ in range(8):
        engine.step()
    engine.abort(["r"])
    prompt, generated = events_of(tmp_path, lambda events: len(events) >= 2)
    assert isinstance(prompt, BlockStored) and isinstance(generated, BlockStored)
    assert prompt.token_ids == [5] * 4
    assert len(generated.token_ids) >= 4


def test_there_are_none_without_prefix_caching(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        llm = start(enable_prefix_caching=False)
    assert "prefix caching is off" in caplog.text
    assert llm._engine.info.kv_event_source == {}


def test_the_source_is_told(start: Start, tmp_path: Path) -> None:
    source = start()._engine.info.kv_event_source
    assert source["endpoint"] == f"ipc://{tmp_path}/events"
    assert source["buffer_steps"] == 10_000
