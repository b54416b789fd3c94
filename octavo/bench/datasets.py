"""Prompts from local files: ShareGPT conversations, or one prompt per line."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from octavo.bench.workload import BenchPrompt
from octavo.errors import ConfigError

DatasetName = Literal["sharegpt", "custom"]
Encode = Callable[[str], list[int]]

# Conversations outside these lengths are skipped; they say little about a server.
_MIN_TOKENS, _MAX_PROMPT_TOKENS, _MAX_TOKENS = 4, 1024, 2048


@dataclass(frozen=True, slots=True)
class Dataset:
    """A file of prompts.

    Attributes:
        name: ``sharegpt``: a JSON list of conversations, of which the first message is the prompt and the second tells
            the answer's length. ``custom``: JSON lines, or a JSON list, with ``prompt`` and maybe ``output_tokens``.
        output_len: tokens to generate, overriding the file; None uses the file's.
        may_repeat: repeat the prompts if the file has too few.
    """

    name: DatasetName
    path: Path
    output_len: int | None = None
    is_shuffled: bool = True
    may_repeat: bool = True

    def prompts(self, count: int, encode: Encode, seed: int) -> list[BenchPrompt]:
        """The first ``count`` prompts that fit; fewer if the file has no more and may not be repeated."""
        entries = self._entries()
        if self.is_shuffled:
            random.Random(seed).shuffle(entries)
        read = self._read_conversations if self.name == "sharegpt" else self._read_lines
        prompts: list[BenchPrompt] = []
        for prompt in read(entries, encode):
            prompts.append(prompt)
            if len(prompts) == count:
                return prompts
        if not prompts:
            raise ConfigError(f"{self.path} holds no prompts of the format {self.name}.")
        if not self.may_repeat:
            return prompts
        return [prompts[index % len(prompts)] for index in range(count)]

    def _entries(self) -> list[Any]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the prompts in {self.path}: {error}.") from None
        try:
            if text.lstrip().startswith("["):
                entries = json.loads(text)
            else:
                entries = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.path} holds neither a JSON list nor JSON lines: {error}.") from None
        return [entry for entry in entries if isinstance(entry, dict)]

    def _read_conversations(self, entries: list[Any], encode: Encode) -> Iterator[BenchPrompt]:
        for entry in entries:
            turns = entry.get("conversations", entry.get("conversation"))
            texts = [turn.get("value") for turn in turns or () if isinstance(turn, dict)]
            if len(texts) < 2 or not isinstance(texts[0], str) or not isinstance(texts[1], str):
                continue
            token_ids = encode(texts[0])
            output_len = self.output_len or len(encode(texts[1]))
            fits = len(token_ids) <= _MAX_PROMPT_TOKENS and len(token_ids) + output_len <= _MAX_TOKENS
            if fits and len(token_ids) >= _MIN_TOKENS and (self.output_len or output_len >= _MIN_TOKENS):
                yield BenchPrompt(token_ids, output_len)

    def _read_lines(self, entries: list[Any], encode: Encode) -> Iterator[BenchPrompt]:
        for entry in entries:
            text, output_len = entry.get("prompt"), self.output_len or entry.get("output_tokens")
            if not isinstance(text, str) or not text:
                continue
            if not isinstance(output_len, int) or isinstance(output_len, bool) or output_len < 1:
                raise ConfigError(
                    f"{self.path} has a prompt without output_tokens, a whole number above 0; set --output-len."
                )
            yield BenchPrompt(encode(text), output_len)
