"""A vocabulary as bytes, for grammars.

The engine process has no tokenizer; :func:`load_vocabulary` reads one from the model's files when it is first needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.tokenization.load import load_tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token id.

    Attributes:
        token_bytes: by id, one per logit of the model; empty for ids that the tokenizer does not know.
        special_ids: tokens that are not text, such as end tokens and turn separators; their bytes are their names.
        encode: token ids of a text, without special tokens.
    """

    token_bytes: list[bytes]
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]
    encode: Callable[[str], list[int]]

    @property
    def size(self) -> int:
        """Number of logits."""
        return len(self.token_bytes)

    def special_id(self, token: str) -> int | None:
        """The id of a special token by its name."""
        name = token.encode()
        return next((token_id for token_id in sorted(self.special_ids) if self.token_bytes[token_id] == name), None)


def load_vocabulary(path: Path, vocab_size: int, eos_ids: tuple[int, ...]) -> Vocabulary:
    """Load the vocabulary of a Hugging Face folder or a GGUF file.

    Args:
        vocab_size: the model's number of logits; ids beyond are left out.
    """
    tokenizer = load_tokenizer(path)
    spelled = tokenizer.byte_table(skip_special_tokens=False)
    return Vocabulary(
        token_bytes=[spelled[token_id] for token_id in range(vocab_size)],
        special_ids=frozenset(i for i in (*tokenizer.all_special_ids, *eos_ids) if i < vocab_size),
        eos_ids=tuple(token_id for token_id in eos_ids if token_id < vocab_size),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )
