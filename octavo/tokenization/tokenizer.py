"""The tokenizer: text to token ids and back, on the ``tokenizers`` library."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tokenizers

from octavo.errors import ChatTemplateError, InvalidRequestError
from octavo.tokenization.decoding import DecodingScheme, decoding_scheme
from octavo.tokenization.frame import SpecialTokenFrame

PARALLEL_ENCODE_LENGTH = 1 << 14
DECODE_AT_ONCE = 1 << 15
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Special tokens, as text.

    Attributes:
        named: role (``bos_token``, ``eos_token``…) → token; chat templates see them under these names.
        others: further tokens that ``skip_special_tokens`` leaves out of texts.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()


class Tokenizer:
    """One model's tokenizer; thread-safe.

    Args:
        backend: the ``tokenizers`` object that splits and merges.
        special_tokens: tokens with a role; those in the vocabulary become special.
        chat_templates: name → template; the one called ``default`` is used unless another is requested.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: SpecialTokens = SpecialTokens(),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = special_tokens
        self.chat_templates = dict(chat_templates or {})
        _mark_special(backend, [*special_tokens.named.values(), *special_tokens.others])
        self.all_special_ids: list[int] = sorted(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.vocab_size: int = backend.get_vocab_size()
        self.scheme: DecodingScheme | None = decoding_scheme(
            backend.decoder.__getstate__() if backend.decoder else None
        )
        self._bytes_with_special = _TokenBytes(backend, self.scheme)
        self._bytes_without_special = _TokenBytes(backend, self.scheme)
        self._bytes_without_special.update(dict.fromkeys(self.all_special_ids, b""))

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; releases the GIL.

        Raises:
            InvalidRequestError: the text contains lone surrogates, which are not valid Unicode.
        """
        if len(text) >= PARALLEL_ENCODE_LENGTH:
            return self.encode_batch([text], add_special_tokens)[0]
        try:
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            raise _not_unicode(text) from None

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text, computed on all cores; raises as :meth:`encode`."""
        try:
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except TypeError:
            raise next((_not_unicode(text) for text in texts if not _is_unicode(text)), _not_unicode("")) from None
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; ids outside the vocabulary are skipped.

        Invalid UTF-8 becomes U+FFFD. This equals the tokenizer's own decoding with one exception: if SentencePiece byte
        tokens encode valid characters right before or after invalid bytes, the characters are kept.
        """
        if self.scheme is None:
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        token_bytes = self.byte_table(skip_special_tokens)
        # Other threads can run between the pieces.
        starts = range(0, len(ids), DECODE_AT_ONCE)
        pieces = [b"".join(map(token_bytes.__getitem__, ids[start : start + DECODE_AT_ONCE])) for start in starts]
        text = str(b"".join(pieces), "utf-8", self.scheme.errors)
        return strip_front(text, self.scheme.num_stripped)

    def byte_table(self, skip_special_tokens: bool) -> Mapping[int, bytes]:
        """Token id → the bytes of its text (empty for skipped special tokens); defined for every int."""
        return self._bytes_without_special if skip_special_tokens else self._bytes_with_special

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token's text, special tokens included; empty for an id outside the vocabulary."""
        return self._bytes_with_special[token_id]

    def token_text(self, token_id: int) -> str:
        """One token's text: its leading space is kept, invalid UTF-8 becomes U+FFFD."""
        return str(self._bytes_with_special[token_id], "utf-8", "replace")

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str | None]:
        """Tokens as written in the vocabulary; None for an id outside it."""
        return [self.backend.id_to_token(token_id) if token_id >= 0 else None for token_id in ids]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int | None]:
        """The reverse of :meth:`convert_ids_to_tokens`."""
        return [self.backend.token_to_id(token) for token in tokens]

    def get_vocab(self) -> dict[str, int]:
        """Token → id, added tokens included."""
        return self.backend.get_vocab()

    @cached_property
    def max_token_length(self) -> int:
        """Length of the longest token in characters; ``n`` tokens have at most ``n`` times as many."""
        return max(map(len, self.get_vocab()), default=1)

    @cached_property
    def frame(self) -> SpecialTokenFrame:
        """The special tokens around a text."""
        return SpecialTokenFrame.of(self.backend, 1)

    @cached_property
    def pair_frame(self) -> SpecialTokenFrame:
        """The special tokens around a pair of texts."""
        return SpecialTokenFrame.of(self.backend, 2)

    def _special(self, name: str) -> str | None:
        return self.special_tokens.named.get(name)

    def _special_id(self, name: str) -> int | None:
        token = self._special(name)
        return None if token is None else self.backend.token_to_id(token)

    @property
    def bos_token(self) -> str | None:
        """The beginning-of-sequence token, if there is one."""
        return self._special("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        """Its id."""
        return self._special_id("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The end-of-sequence token, if there is one."""
        return self._special("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Its id."""
        return self._special_id("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The padding token, if there is one."""
        return self._special("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        """Its id."""
        return self._special_id("pad_token")

    @property
    def unk_token(self) -> str | None:
        """The unknown token, if there is one."""
        return self._special("unk_token")

    @property
    def chat_template(self) -> str | None:
        """The default chat template."""
        return self.chat_templates.get("default")

    def select_chat_template(self, wanted: str | None = None, *, with_tools: bool = False) -> str:
        """The template to use: ``wanted`` (a name or the text itself), else the one for tools, else the default.

        Raises:
            ChatTemplateError: the model has no template.
        """
        if wanted is not None:
            return self.chat_templates.get(wanted, wanted)
        if with_tools and "tool_use" in self.chat_templates:
            return self.chat_templates["tool_use"]
        if self.chat_template is not None:
            return self.chat_template
        if self.chat_templates:
            names = ", ".join(sorted(self.chat_templates))
            raise ChatTemplateError(f"This model has several chat templates; choose one of {names}.", "chat_template")
        raise ChatTemplateError("This model has no chat template; give one with --chat-template.", "chat_template")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """A conversation as one prompt.

        Args:
            tools: JSON descriptions of functions that the model may call.
            add_generation_prompt: end with the header of the assistant's turn.
            continue_final_message: leave the last message open, to be continued.
            chat_template: name of one of the model's templates, or a template.
        """
        from octavo.tokenization.chat_template import render_chat

        return render_chat(
            self.select_chat_template(chat_template, with_tools=bool(tools)),
            messages,
            {**self.special_tokens.named, **kwargs, "tools": tools, "documents": documents},
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )


class _TokenBytes(dict[int, bytes]):
    """Token id → bytes, filled on demand: a whole vocabulary takes a good part of a second."""

    def __init__(self, backend: tokenizers.Tokenizer, scheme: DecodingScheme | None) -> None:
        super().__init__()
        self._backend = backend
        self._scheme = scheme

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        if token is None:
            return b""
        if self._scheme is not None:
            spelled = self._scheme.token_bytes(token)
        else:
            spelled = self._backend.decode([token_id], skip_special_tokens=False).encode()
        self[token_id] = spelled
        return spelled


def strip_front(text: str, num_spaces: int) -> str:
    """``text`` without up to ``num_spaces`` of its leading spaces."""
    while num_spaces and text.startswith(" "):
        text, num_spaces = text[1:], num_spaces - 1
    return text


def text_decoder(scheme: DecodingScheme) -> codecs.BufferedIncrementalDecoder:
    """A decoder from a stream of token bytes to text that holds back incomplete characters (3 bytes at most)."""
    decoder = codecs.getincrementaldecoder("utf-8")(scheme.errors)
    assert isinstance(decoder, codecs.BufferedIncrementalDecoder)
    return decoder


def _mark_special(backend: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    wanted = [token for token in dict.fromkeys(tokens) if token not in known and backend.token_to_id(token) is not None]
    if wanted:
        backend.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in wanted])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_unicode(text: str) -> InvalidRequestError:
    if not isinstance(text, str):
        return InvalidRequestError(f"A prompt must be text, got {type(text).__name__}.", "prompt")
    return InvalidRequestError(
        "The text holds lone surrogates (half characters), which are not valid Unicode.", "prompt"
    )
