"""Builds a tokenizer from the metadata of a GGUF file.

A GGUF file contains a vocabulary, not a tokenizer: normalisation and pre-tokenisation are given by a name
(``tokenizer.ggml.pre``) that every reader has to know. The names and their meaning are llama.cpp's.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from octavo.errors import UnsupportedModelError
from octavo.tokenization.gguf_file import GGUFStrings
from octavo.tokenization.tokenizer import SpecialTokens, Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD_IN_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
}
_SPACE = "▁"
_T = TypeVar("_T")


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _PreTokenization:
    """The pre-tokenisation of byte-level BPE.

    Attributes:
        pattern: regex of a word; None is GPT-2's.
        earlier: regexes of words that are split off before, in their order.
        splits_digits: every digit is a word.
        is_nfc: text is normalised to NFC first.
        ignores_merges: a word that is in the vocabulary is one token, whatever the merges.
        adds_bos: texts begin with the bos token, unless the file says otherwise.
    """

    pattern: str | None = None
    earlier: tuple[str, ...] = ()
    splits_digits: bool = False
    is_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_GPT2 = _PreTokenization()
_SPLIT_DIGITS = _PreTokenization(splits_digits=True)
_QWEN2 = _PreTokenization(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    is_nfc=True,
)
_GLM4 = _PreTokenization(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_LLAMA3 = replace(_GLM4, ignores_merges=True, adds_bos=True)
_DEEPSEEK3 = _PreTokenization(
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    earlier=(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+"),
)
_TEKKEN = _PreTokenization(
    rf"{_WORD_IN_CASES % ('', '')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}", ignores_merges=True, adds_bos=True
)
_GPT4O = _PreTokenization(
    rf"{_WORD_IN_CASES % (_CONTRACTIONS + '?', _CONTRACTIONS + '?')}"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_PRE_TOKENIZATIONS: dict[str, _PreTokenization] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "olmo", "dolma"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _SPLIT_DIGITS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT4O),
    **dict.fromkeys(("glm4", "chatglm-bpe"), _GLM4),
    "deepseek-v3": _DEEPSEEK3,
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer described by a GGUF file's metadata.

    Args:
        metadata: the file's keys and values.

    Raises:
        UnsupportedModelError: no tokenizer in the file, one of an unknown kind, or one that contradicts itself.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"The GGUF file's tokenizer is of kind {kind!r}; gpt2 (byte-level BPE) and llama (SentencePiece) are known."
            if kind
            else "The GGUF file holds no tokenizer; name a folder with one by --tokenizer."
        )
    vocabulary = _Vocabulary.read(metadata)
    try:
        backend = _byte_level(metadata, vocabulary) if kind == "gpt2" else _sentencepiece(metadata, vocabulary)
        _add_unmerged_tokens(backend, vocabulary)
        _add_bos_and_eos(backend, metadata, vocabulary, adds_bos=_adds_bos_by_default(kind, metadata))
    except (ValueError, TypeError, OverflowError) as error:
        raise UnsupportedModelError(f"The GGUF file's tokenizer contradicts itself: {error}.") from None
    except Exception as error:  # The tokenizers library raises plain Exception.
        raise UnsupportedModelError(f"The GGUF file's tokenizer cannot be built: {error}.") from None
    named = {role: token for role in _ROLES if (token := vocabulary.special(metadata, role)) is not None}
    return Tokenizer(backend, SpecialTokens(named), _chat_templates(metadata))


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Tokens by id, with their types (1 for normal) and SentencePiece scores (empty if there are none)."""

    tokens: list[str]
    types: list[int]
    scores: list[float]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> "_Vocabulary":
        tokens = _list_of(str, metadata, "tokens")
        types = _list_of(int, metadata, "token_type") or [int(_TokenType.NORMAL)] * len(tokens)
        scores = _list_of(float, metadata, "scores")
        if not tokens or len(types) != len(tokens) or (scores and len(scores) != len(tokens)):
            raise UnsupportedModelError(
                f"The GGUF file's tokenizer is damaged: {len(tokens)} tokens, {len(types)} types, {len(scores)} scores."
            )
        return cls(tokens, types, scores)

    def special(self, metadata: Mapping[str, Any], role: str) -> str | None:
        token_id = metadata.get(f"tokenizer.ggml.{_ROLES[role]}")
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
            raise UnsupportedModelError(
                f"The GGUF file's {role} has id {token_id}, which its vocabulary does not hold."
            )
        return self.tokens[token_id]

    def ids(self, token_type: _TokenType) -> Iterator[int]:
        return (token_id for token_id, kind in enumerate(self.types) if kind == token_type)


def _byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Backend:
    pre_tokenization = _pre_tokenization(metadata)
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    own = _own_strings(ids).get
    pairs = (merge.partition(" ") for merge in _list_of(str, metadata, "merges"))
    merges = [(own(left, left), own(right, right)) for left, _, right in pairs]
    backend = Backend(models.BPE(vocab=ids, merges=merges, ignore_merges=pre_tokenization.ignores_merges))
    if pre_tokenization.is_nfc:
        backend.normalizer = normalizers.NFC()
    words: list[pre_tokenizers.PreTokenizer] = []
    if pre_tokenization.splits_digits:
        words.append(pre_tokenizers.Digits(individual_digits=True))
    pattern = pre_tokenization.pattern
    for regex in (*pre_tokenization.earlier, *(() if pattern is None else (pattern,))):
        words.append(pre_tokenizers.Split(Regex(regex), behavior="isolated"))
    words.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(words)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenization(metadata: Mapping[str, Any]) -> _PreTokenization:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in _PRE_TOKENIZATIONS:
        known = ", ".join(sorted(_PRE_TOKENIZATIONS))
        raise UnsupportedModelError(f"The GGUF file splits text as {name!r}, which is not known; known are {known}.")
    return _PRE_TOKENIZATIONS[name]


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Backend:
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.special(metadata, "unk_token")
    merges = _merges_from_scores(vocabulary)
    backend = Backend(models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if adds_space else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    return backend


def _own_strings(tokens: Iterable[str]) -> dict[str, str]:
    """Each token's own string by an equal one.

    The parts of merges are tokens: sharing their strings halves the memory that a start takes for a moment, and leaves
    in pieces.
    """
    return {token: token for token in tokens}


def _merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """All pairs of tokens that concatenate to a token, ordered by that token's score, best first.

    SentencePiece merges the neighbours that form the token with the highest score; rank-based BPE does the same with
    merges in this order. Only normal tokens are formed by merging.
    """
    normal = [vocabulary.tokens[token_id] for token_id in vocabulary.ids(_TokenType.NORMAL)]
    scores = (
        [vocabulary.scores[token_id] for token_id in vocabulary.ids(_TokenType.NORMAL)] if vocabulary.scores else []
    )
    order = sorted(range(len(normal)), key=scores.__getitem__, reverse=True) if scores else range(len(normal))
    own = _own_strings(normal).get
    merges: list[tuple[str, str]] = []
    for index in order:
        token = normal[index]
        for cut in range(len(token) - 1, 0, -1):
            if (left := own(token[:cut])) is not None and (right := own(token[cut:])) is not None:
                merges.append((left, right))
    return merges


def _add_unmerged_tokens(backend: Backend, vocabulary: _Vocabulary) -> None:
    """Match tokens that merging never forms directly in the text, longest first."""
    control = vocabulary.ids(_TokenType.CONTROL)
    backend.add_special_tokens([AddedToken(vocabulary.tokens[i], normalized=False, special=True) for i in control])
    defined = vocabulary.ids(_TokenType.USER_DEFINED)
    backend.add_tokens([AddedToken(vocabulary.tokens[i], normalized=False, special=False) for i in defined])


def _adds_bos_by_default(kind: str, metadata: Mapping[str, Any]) -> bool:
    return kind == "llama" or _pre_tokenization(metadata).adds_bos


def _add_bos_and_eos(backend: Backend, metadata: Mapping[str, Any], vocabulary: _Vocabulary, *, adds_bos: bool) -> None:
    bos = vocabulary.special(metadata, "bos_token") if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    eos = vocabulary.special(metadata, "eos_token") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    set_bos_and_eos(backend, bos, eos)


def set_bos_and_eos(backend: Backend, bos: str | None, eos: str | None) -> None:
    """Add ``bos`` and ``eos``, if given, around texts that are encoded with special tokens."""
    around = {token: backend.token_to_id(token) for token in (bos, eos) if token is not None}
    template = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    if around:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(around.items()))


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    return {
        key.removeprefix(prefix).removeprefix(".") or "default": value
        for key, value in metadata.items()
        if (key == prefix or key.startswith(prefix + ".")) and isinstance(value, str)
    }


def _list_of(kind: type[_T], metadata: Mapping[str, Any], name: str) -> list[_T]:
    """An array of the metadata, empty if there is none."""
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return []
    listed: list[Any] | None = list(values) if isinstance(values, list | array | GGUFStrings) else None
    if listed is None or not set(map(type, listed)) <= {kind}:
        raise UnsupportedModelError(f"The GGUF file's tokenizer is damaged: {name} is no array of {kind.__name__}.")
    return listed
