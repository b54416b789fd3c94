"""How the tokens of a vocabulary turn into bytes, and bytes into text.

Nearly every generative tokenizer is one of two kinds: byte-level BPE, whose tokens encode bytes in an alphabet of
256 printable characters (GPT-2), and SentencePiece, whose tokens are text with ``▁`` for a space and ``<0xNN>`` for
a lone byte. For both, a token is a fixed string of bytes and text is their concatenation, so that decoding a stream
needs no look back. :func:`decoding_scheme` recognises the kind from the tokenizer's own description.
"""

import codecs
import json
import re
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
EACH_BYTE_REPLACED = "octavo-each-byte-replaced"


def byte_alphabet() -> dict[str, int]:
    """The 256 characters by which byte-level BPE represents bytes, character → byte (the GPT-2 convention).

    Printable Latin-1 characters represent themselves; the other bytes map to characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


@dataclass(frozen=True, slots=True)
class DecodingScheme:
    """How to turn tokens into text without the tokenizer's own decoder.

    Attributes:
        is_byte_level: tokens encode bytes in :func:`byte_alphabet`.
        has_byte_tokens: tokens ``<0xNN>`` represent one byte each.
        replacements: substrings of tokens and their meaning, such as ``▁`` for a space.
        num_stripped: number of leading spaces stripped at the beginning of a text.
        errors: codec error handler for bytes that are not UTF-8.
    """

    is_byte_level: bool
    has_byte_tokens: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    num_stripped: int = 0

    @property
    def errors(self) -> str:
        """Name of the codec error handler that replaces invalid bytes as the tokenizer's own decoder would."""
        return "replace" if self.is_byte_level else EACH_BYTE_REPLACED

    def token_bytes(self, token: str) -> bytes:
        """The bytes of ``token``'s text."""
        if self.is_byte_level:
            try:
                return bytes([_ALPHABET[char] for char in token])
            except KeyError:
                return token.encode()
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()


def decoding_scheme(decoder_state: bytes | None) -> DecodingScheme | None:
    """Recognise a decoder, given as the JSON that the ``tokenizers`` library describes it with.

    Returns:
        The scheme, or None if the decoder does something else (WordPiece and the like).
    """
    if decoder_state is None:
        return None
    description = json.loads(decoder_state)
    steps = description["decoders"] if description["type"] == "Sequence" else [description]
    kinds = [step["type"] for step in steps]
    if [kind for kind in kinds if kind != "Fuse"] == ["ByteLevel"]:
        return DecodingScheme(is_byte_level=True)
    if "ByteFallback" in kinds and "Fuse" in kinds:
        return _sentencepiece_scheme(steps, kinds)
    return None


def _sentencepiece_scheme(steps: list[dict[str, Any]], kinds: list[str]) -> DecodingScheme | None:
    replacements: list[tuple[str, str]] = []
    num_stripped = 0
    for index, step in enumerate(steps):
        match step:
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                if index > kinds.index("ByteFallback"):
                    return None
                replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                if index < kinds.index("Fuse"):
                    return None
                num_stripped += start
            case _:
                return None
    return DecodingScheme(False, True, tuple(replacements), num_stripped)


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\N{REPLACEMENT CHARACTER}" * (error.end - error.start), error.end


_ALPHABET = byte_alphabet()
codecs.register_error(EACH_BYTE_REPLACED, _replace_each_byte)
