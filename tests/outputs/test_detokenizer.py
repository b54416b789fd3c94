import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization.tiny import (
    byte_level_tokenizer,
    demo_tokenizer,
    sentencepiece_tokenizer,
    word_piece_tokenizer,
)

from octavo.outputs.detokenizer import MAX_HELD_TOKENS, PROMPT_TAIL, make_detokenizer

TOKENIZERS = {
    "byte-level": byte_level_tokenizer(),
    "sentencepiece": sentencepiece_tokenizer(),
    "sentencepiece-no-space": sentencepiece_tokenizer(add_space_prefix=False),
    "demo": demo_tokenizer(),
}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
NAMES = st.sampled_from(sorted(TOKENIZERS))


def stream(tokenizer, prompt_ids, pushes, skip_special_tokens=True):
    detokenizer = make_detokenizer(tokenizer, prompt_ids, skip_special_tokens)
    pieces = [detokenizer.decode_delta(push) for push in pushes]
    return [*pieces, detokenizer.flush()]


@st.composite
def pushes_of(draw, token_ids):
    """``token_ids`` cut into pushes at random."""
    pushes, start = [], 0
    while start < len(token_ids):
        count = draw(st.integers(1, 4))
        pushes.append(token_ids[start : start + count])
        start += count
    return pushes


@given(st.data(), NAMES, st.booleans())
@settings(max_examples=300)
def test_pieces_join_to_the_one_shot_text_of_any_tokens(data, name, skip_special_tokens):
    tokenizer = TOKENIZERS[name]
    ids = st.integers(0, min(tokenizer.vocab_size, 500) - 1) | st.integers(0, tokenizer.vocab_size - 1)
    outputs = data.draw(st.lists(ids, max_size=20))
    pieces = stream(tokenizer, [], data.draw(pushes_of(outputs)), skip_special_tokens)
    assert "".join(pieces) == tokenizer.decode(outputs, skip_special_tokens)


@given(st.data(), NAMES, st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=300)
def test_pieces_continue_the_prompts_text(data, name, prompt, continuation):
    tokenizer = TOKENIZERS[name]
    prompt_ids = tokenizer.encode(prompt)
    ids = [*prompt_ids, *tokenizer.encode(continuation, add_special_tokens=False)]
    cut = data.draw(st.integers(len(prompt_ids) // 2, len(ids)))
    known = tokenizer.decode(ids[:cut])
    pieces = stream(tokenizer, ids[:cut], data.draw(pushes_of(ids[cut:])))
    whole = tokenizer.decode(ids)
    # Where the cut is within a character, the whole character counts as output.
    if whole.startswith(known):
        assert "".join(pieces) == whole[len(known) :]
    assert whole.endswith("".join(pieces))
    if REPLACEMENT not in whole:
        assert not any(REPLACEMENT in piece for piece in pieces)


@given(st.sampled_from(["byte-level", "demo"]), st.data())
@settings(max_examples=200)
def test_byte_level_text_is_what_the_tokenizers_library_decodes(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@given(st.sampled_from(["sentencepiece", "sentencepiece-no-space"]), st.text(max_size=40), st.data())
@settings(max_examples=200)
def test_sentencepiece_text_is_what_the_tokenizers_library_decodes(name, text, data):
    tokenizer = TOKENIZERS[name]
    num_special_and_bytes = 259
    pieces = st.integers(num_special_and_bytes, tokenizer.vocab_size - 1)
    ids = [*data.draw(st.lists(pieces, max_size=5)), *tokenizer.encode(text)]
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("values", [[0xFF], [0xE4, 0xB8], [0xF0, 0x9F, 0x98], [0x80, 0x80], [0xC3, 0x28 + 0x80 + 0x50]])
def test_invalid_sentencepiece_bytes_are_replaced_one_by_one(values):
    tokenizer = TOKENIZERS["sentencepiece-no-space"]
    ids = tokenizer.convert_tokens_to_ids([f"<0x{value:02X}>" for value in values])
    assert tokenizer.decode(ids) == REPLACEMENT * len(values) == tokenizer.backend.decode(ids)


def test_valid_characters_beside_invalid_bytes_stay():
    tokenizer = TOKENIZERS["sentencepiece-no-space"]
    ids = tokenizer.convert_tokens_to_ids(["<0xC3>", "<0xA9>", "<0xFF>"])
    assert tokenizer.decode(ids) == "é" + REPLACEMENT


def test_a_character_is_held_back_until_it_is_whole():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.convert_tokens_to_ids([chr(0xF0), "Ł", "ĺ", "Ģ"])
    assert stream(tokenizer, [], [[token_id] for token_id in ids]) == ["", "", "", "😀", ""]
    assert stream(tokenizer, ids[:2], [ids[2:]]) == ["😀", ""]
    assert stream(tokenizer, [], [ids[:2]]) == ["", REPLACEMENT]


def test_nothing_is_held_back_for_long():
    tokenizer = byte_level_tokenizer()
    lead = tokenizer.convert_tokens_to_ids([chr(0xF0)])
    pieces = stream(tokenizer, [], [lead] * 1000)
    assert "".join(pieces[:-1]) == REPLACEMENT * 999


def test_a_token_costs_the_same_however_long_the_answer_is(monkeypatch):
    """Tokenizers of which only whole texts can be decoded are asked for a few tokens each time."""
    tokenizer = word_piece_tokenizer()
    assert tokenizer.scheme is None
    lengths, decode = [], type(tokenizer).decode
    monkeypatch.setattr(
        type(tokenizer), "decode", lambda self, ids, *how: lengths.append(len(ids)) or decode(self, ids, *how)
    )
    stream(tokenizer, [3, 4] * 300, [[index % tokenizer.vocab_size] for index in range(600)])
    assert max(lengths) <= PROMPT_TAIL + MAX_HELD_TOKENS
    assert len(lengths) == 2 * 601


def test_the_space_at_the_front_goes_only_where_nothing_stands_before():
    tokenizer = sentencepiece_tokenizer()
    bos, fox = tokenizer.bos_token_id, tokenizer.encode("fox", add_special_tokens=False)
    assert "".join(stream(tokenizer, [bos], [fox])) == "fox"
    assert "".join(stream(tokenizer, [bos, *fox], [fox])) == " fox"
    assert "".join(stream(tokenizer, [bos], [fox], skip_special_tokens=False)) == " fox"


@given(st.data(), st.lists(st.integers(0, 7), max_size=30), st.lists(st.integers(0, 7), max_size=30))
@settings(max_examples=100)
def test_other_kinds_of_tokenizer_stream_as_well(data, prompt_ids, outputs):
    tokenizer = word_piece_tokenizer()
    pieces = stream(tokenizer, prompt_ids, data.draw(pushes_of(outputs)))
    whole = tokenizer.decode([*prompt_ids, *outputs])
    assert "".join(pieces) == whole[len(tokenizer.decode(prompt_ids)) :]
