"""Texts and pairs are cut as transformers cuts them."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiny_bert import WORDS, write_bert
from transformers import AutoTokenizer

from octavo.errors import InvalidRequestError
from octavo.inputs.texts import bare_text, encode_pair, encode_text, write_pair
from octavo.tokenization import Tokenizer, load_tokenizer
from octavo.tokenization.tokenizer import PARALLEL_ENCODE_LENGTH

texts = st.lists(st.sampled_from([*WORDS, "unknown", "é"]), max_size=12).map(" ".join)


@cache
def _tokenizers() -> tuple[Tokenizer, Any]:
    folder = write_bert(Path(mkdtemp()))
    return load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)


@given(text=texts, limit=st.integers(3, 16), side=st.sampled_from(["left", "right"]))
def test_texts(text: str, limit: int, side: Any) -> None:
    ours, theirs = _tokenizers()
    theirs.truncation_side = side
    wanted = theirs(text, truncation=True, max_length=limit)["input_ids"]
    assert encode_text(ours, text, limit=limit, side=side) == wanted


@given(first=texts, second=texts, limit=st.integers(5, 30))
def test_pairs(first: str, second: str, limit: int) -> None:
    ours, theirs = _tokenizers()
    backend = tokenizers.Tokenizer.from_str(theirs.backend_tokenizer.to_str())
    backend.no_padding()
    backend.enable_truncation(limit, strategy="longest_first")
    wanted = backend.encode(first, second)
    found = encode_pair(ours, first, second, limit=limit)
    assert found.token_ids == wanted.ids
    assert found.segment_start == wanted.type_ids.index(1)


@given(first=texts, second=texts, most=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_each_text_of_a_pair_has_its_own_limit(first: str, second: str, most: tuple[int, int]) -> None:
    ours, _ = _tokenizers()
    found = encode_pair(ours, first, second, limit=None, max_first=most[0], max_second=most[1])
    alone = [
        ours.encode(text, add_special_tokens=False)[:count] for text, count in zip((first, second), most, strict=True)
    ]
    marks = ours.encode("")
    assert found.token_ids == [marks[0], *alone[0], marks[1], *alone[1], marks[1]]


def test_what_is_no_text_and_what_leaves_no_room_is_refused() -> None:
    ours, _ = _tokenizers()
    with pytest.raises(InvalidRequestError, match="half characters"):
        encode_pair(ours, "\ud800", "a", limit=None)
    with pytest.raises(InvalidRequestError, match="no room for two texts"):
        encode_pair(ours, "a", "a", limit=4)


@given(first=texts, seconds=st.lists(texts, max_size=3), limit=st.integers(5, 30), most=st.integers(0, 5))
def test_a_text_encoded_once_stands_in_many_pairs(first: str, seconds: list[str], limit: int, most: int) -> None:
    ours, _ = _tokenizers()
    bare = bare_text(ours, first, limit=limit, most=most)
    for second in [*seconds, *seconds]:
        wanted = encode_pair(ours, first, second, limit=limit, max_first=most)
        assert encode_pair(ours, bare, second, limit=limit) == wanted


def test_of_a_long_text_only_what_can_stay_is_kept() -> None:
    ours, _ = _tokenizers()
    bare = bare_text(ours, "unknown " * 10_000, limit=5)
    assert len(bare.token_ids) == 5 and bare.num_tokens >= 10_000


@pytest.mark.parametrize("limit", [None, 5])
def test_other_threads_run_while_a_long_text_is_tokenised(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = _tokenizers()
    _ = ours.frame, ours.pair_frame
    # The library lets them only where it takes texts in batches.
    monkeypatch.setattr(ours, "backend", _OnlyBatches(ours.backend))
    long = "a cat " * PARALLEL_ENCODE_LENGTH
    encode_text(ours, long, limit=limit)
    bare_text(ours, long, limit=limit, most=3)
    encode_pair(ours, long, long, limit=limit)


class _OnlyBatches:
    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.encode_batch_fast = backend.encode_batch_fast


@pytest.mark.parametrize(("most", "wanted"), [((0, 0), "cat purrs and stocks fell"), ((1, 2), "cat and stocks fell")])
def test_a_pair_is_written_by_a_template(most: tuple[int, int], wanted: str) -> None:
    ours, _ = _tokenizers()
    template = "{{ messages[0].content }} and {{ messages[1].content }}"
    limits = {"limit": None, "max_first": most[0], "max_second": most[1]}
    pair = write_pair(ours, template, "cat purrs", "stocks fell", **limits)
    assert pair.token_ids == ours.encode(wanted)
    assert pair.segment_start is None
