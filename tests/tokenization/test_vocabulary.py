"""A vocabulary spells what its tokenizer spells."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from octavo.hub.source import resolve
from octavo.tokenization import load_tokenizer
from octavo.tokenization.vocabulary import load_vocabulary


def test_bytes_of_a_gguf_vocabulary_join_to_the_text() -> None:
    path = resolve("bundled:smollm2").path
    vocabulary = load_vocabulary(path, 49152 + 8, (2,))
    assert vocabulary.size == 49160 and vocabulary.token_bytes[49152:] == [b""] * 8
    text = "Naïve 日本 — 12,5 €\n\t{}"
    assert b"".join(vocabulary.token_bytes[i] for i in vocabulary.encode(text)).decode() == text
    assert vocabulary.special_id("<|im_end|>") == 2 and vocabulary.special_id("nothing") is None
    assert set(load_tokenizer(path).all_special_ids) <= vocabulary.special_ids


def test_bytes_of_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b"]
    backend = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path, 256, (1, 999))
    assert vocabulary.token_bytes[2:5] == [b"\x00", b"\x01", b"\x02"] and vocabulary.size == 256
    assert vocabulary.eos_ids == (1,) and 1 in vocabulary.special_ids
    assert load_vocabulary(tmp_path, 260, (1,)).token_bytes[258:] == [b" a", b"b"]


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        load_vocabulary(tmp_path, 10, (1,))
