from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.errors import UnsupportedModelError
from octavo.tokenization import load_tokenizer
from octavo.tokenization.decoding import byte_alphabet
from octavo.tokenization.gguf_file import GGUFFile
from octavo.tokenization.gguf_tokenizer import tokenizer_from_gguf

from .tiny import (
    TEXTS,
    demo_metadata,
    demo_model_file,
    demo_tokenizer,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
)

VARIED = (
    *TEXTS,
    "",
    " ",
    "  two spaces",
    "trailing space ",
    "I'll we've DON'T it's",
    "3.14159 1000000 0x1F 12 ",
    "<|im_start|>user\nHi<|im_end|>\n",
    "tabs\t\tand\r\nlines\n\n\n",
    "العربية हिन्दी ไทย",
    "e\u0301 \u00e9 \u200b \ufeff",
    "x" * 500,
)


@pytest.mark.long
def test_the_demo_model_tokenizes_as_transformers_does():
    from transformers import AutoTokenizer

    file = demo_model_file()
    reference = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = demo_tokenizer()
    for text in VARIED:
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"], text
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True), text
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    assert tokenizer.render_chat(messages) == reference.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.all_special_ids == sorted(i for i, t in reference.added_tokens_decoder.items() if t.special)
    # The file's own words: not every version of transformers reads them.
    ends = [GGUFFile.open(file).metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")]
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id] == ends
    assert len(tokenizer) == len(reference)


@given(st.text(max_size=60))
@settings(max_examples=200)
def test_any_text_comes_back_from_the_demo_model(text):
    tokenizer = demo_tokenizer()
    # Its vocabulary lacks a few rare bytes; nothing can bring those back.
    missing = {byte for token, byte in byte_alphabet().items() if tokenizer.backend.token_to_id(token) is None}
    assume(missing.isdisjoint(text.encode()))
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_digits_stand_alone_for_smollm():
    tokenizer = demo_tokenizer()
    assert len(tokenizer.encode("2024")) == 4


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("glm4", "It's 12345!", ["It", "'s", "Ġ", "123", "45", "!"]),
        ("deepseek-v3", "a12345漢字b.x .", ["a", "123", "45", "漢字", "b", ".x", "Ġ."]),
        ("olmo", "It's 12345", ["It", "'s", "Ġ12345"]),
    ],
)
def test_words_by_the_name_of_the_rules(name, text, words):
    split = tokenizer_from_gguf(demo_metadata() | {"tokenizer.ggml.pre": name}).backend.pre_tokenizer
    assert [word for word, _ in split.pre_tokenize_str(text)] == [_byte_level(word) for word in words]


def _byte_level(word):
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    return word if "Ġ" in word else "".join(letters[byte] for byte in word.encode())


def _merge_like_sentencepiece(metadata, text):
    """The definition: again and again merge the neighbours that make the token of the highest score, leftmost first."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ids = {token: index for index, token in enumerate(tokens)}
    scores = {t: s for t, s, k in zip(tokens, metadata["tokenizer.ggml.scores"], types, strict=True) if k == 1}
    pieces = list(("▁" if metadata["tokenizer.ggml.add_space_prefix"] else "") + text.replace(" ", "▁"))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            break
        place = min(pairs)[1]
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]
    return [i for p in pieces for i in ([ids[p]] if p in scores else [ids[f"<0x{b:02X}>"] for b in p.encode()])]


@given(st.text(alphabet="the quickfoxrin é世😀", min_size=1, max_size=40), st.booleans())
@settings(max_examples=200)
def test_sentencepiece_merges_by_score(text, add_space_prefix):
    metadata = sentencepiece_metadata(add_space_prefix=add_space_prefix)
    tokenizer = sentencepiece_tokenizer(add_space_prefix=add_space_prefix)
    assert tokenizer.encode(text) == [1, *_merge_like_sentencepiece(metadata, text)]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_begin_and_end_tokens_follow_the_file():
    metadata = sentencepiece_metadata(add_space_prefix=True)
    tokenizer = tokenizer_from_gguf(
        metadata | {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    )
    assert tokenizer.encode("the")[-1] == tokenizer.eos_token_id
    assert tokenizer.encode("the")[0] != tokenizer.bos_token_id
    assert tokenizer.encode("the", add_special_tokens=False) == tokenizer.encode("the")[:-1]


def test_control_and_user_defined_tokens_are_found_whole():
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)
    ids = tokenizer.encode("the</s>fox<mark>", add_special_tokens=False)
    assert tokenizer.eos_token_id in ids
    assert tokenizer.convert_ids_to_tokens(ids)[-1] == "<mark>"
    assert tokenizer.decode(ids) == "thefox<mark>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "the</s>fox<mark>"


def test_named_chat_templates_are_kept():
    metadata = sentencepiece_metadata(add_space_prefix=True)
    metadata |= {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with tools"}
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.select_chat_template() == "plain"
    assert tokenizer.select_chat_template(with_tools=True) == "with tools"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.model": None}, "no tokenizer"),
        ({"tokenizer.ggml.scores": [0.0]}, "damaged"),
        ({"tokenizer.ggml.tokens": []}, "damaged"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "damaged"),
        ({"tokenizer.ggml.token_type": "normal"}, "damaged"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "1000000"),
        ({"tokenizer.ggml.eos_token_id": "last"}, "last"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "brand-new"}, "brand-new"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["not there"]}, "not"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["lonely"]}, "tokenizer"),
    ],
)
def test_a_broken_or_unknown_tokenizer_is_rejected_with_an_error(change, words):
    with pytest.raises(UnsupportedModelError, match=words):
        tokenizer_from_gguf(sentencepiece_metadata(add_space_prefix=True) | change)


_VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
_VALUES |= st.lists(st.text(max_size=3) | st.integers(0, 7) | st.floats(), max_size=3)
_KEYS = [*sentencepiece_metadata(add_space_prefix=True), "tokenizer.ggml.merges", "tokenizer.ggml.pre"]


@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, min_size=1), st.sampled_from(["llama", "gpt2"]))
@settings(max_examples=200)
def test_whatever_the_metadata_says_it_works_or_is_refused(change, kind):
    metadata = sentencepiece_metadata(add_space_prefix=True) | {"tokenizer.ggml.model": kind} | change
    try:
        tokenizer = tokenizer_from_gguf(metadata)
    except UnsupportedModelError:
        return
    tokenizer.decode(tokenizer.encode("the fox"))


def test_the_demo_model_loads_from_its_file():
    tokenizer = load_tokenizer(demo_model_file())
    assert tokenizer.encode("Hello 42") == demo_tokenizer().encode("Hello 42")
    assert tokenizer.chat_template == demo_metadata()["tokenizer.chat_template"]
