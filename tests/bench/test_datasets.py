"""Prompts from files."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.datasets import Dataset
from octavo.errors import ConfigError


def encode(text: str) -> list[int]:
    """A token a word."""
    return [len(word) for word in text.split()]


def write(path: Path, entries: list[Any]) -> Path:
    path.write_text(json.dumps(entries))
    return path


def conversation(prompt: str, answer: str) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]}


def test_conversations_that_fit(tmp_path: Path) -> None:
    entries = [
        conversation("one two three four", "a b c d e"),
        conversation("too short", "a b c d e"),
        conversation("one two three four five", "short"),
        conversation("w " * 1025, "a b c d e"),
        conversation("w " * 1000, "a " * 1049),
        {"conversations": [{"value": "alone and nothing else"}]},
        {"conversations": None},
        "no conversation",
    ]
    path = write(tmp_path / "s.json", entries)
    prompts = Dataset("sharegpt", path, may_repeat=False).prompts(10, encode, 0)
    assert [(len(prompt.token_ids), prompt.output_len) for prompt in prompts] == [(4, 5)]
    longer = Dataset("sharegpt", path, output_len=7, may_repeat=False, is_shuffled=False).prompts(10, encode, 0)
    assert [(len(prompt.token_ids), prompt.output_len) for prompt in longer] == [(4, 7), (5, 7), (1000, 7)]


def test_lines_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt": "a b", "output_tokens": 3}\n\n{"prompt": "c", "output_tokens": 4}\n{"other": 1}\n')
    prompts = Dataset("custom", path, is_shuffled=False).prompts(5, encode, 0)
    assert [(len(prompt.token_ids), prompt.output_len) for prompt in prompts] == [
        (2, 3),
        (1, 4),
        (2, 3),
        (1, 4),
        (2, 3),
    ]
    assert len(Dataset("custom", path, may_repeat=False).prompts(5, encode, 0)) == 2
    assert [prompt.output_len for prompt in Dataset("custom", path, output_len=9).prompts(2, encode, 0)] == [9, 9]


def test_a_seed_decides_the_order(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", [{"prompt": "w " * n, "output_tokens": 1} for n in range(1, 30)])

    def lengths(seed: int) -> list[int]:
        return [len(prompt.token_ids) for prompt in Dataset("custom", path).prompts(29, encode, seed)]

    assert lengths(0) == lengths(0) != lengths(1)
    assert sorted(lengths(0)) == list(range(1, 30))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no prompts"),
        ("{", "neither a JSON list nor JSON lines"),
        ("[" * 100_000, "neither a JSON list nor JSON lines"),
        ('{"text": "a"}', "holds no prompts"),
        ('{"prompt": "a"}', "without output_tokens"),
        ('{"prompt": "a", "output_tokens": "3"}', "without output_tokens"),
        (None, "Cannot read"),
    ],
)
def test_files_without_prompts_are_rejected(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "c.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        Dataset("custom", path).prompts(1, encode, 0)
