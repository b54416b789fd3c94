"""Prefix hashes: equal exactly when the tokens before, the block's tokens and the extra keys are equal."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo.cache import PrefixHasher
from octavo.records import KeySpan, PromptEmbeds, as_token_ids

TOKENS = st.lists(st.integers(0, 2), max_size=12)
SPANS = st.lists(
    st.builds(
        lambda start, length, key, source: KeySpan(start, start + length, key, source),
        st.integers(0, 10),
        st.integers(1, 6),
        st.sampled_from(["", "a", "ab", "b"]),
        st.sampled_from(["image", "salt"]),
    ),
    max_size=2,
)


def content(tokens: list[int], spans: list[KeySpan], end: int, size: int) -> object:
    """What the hash of the block that ends at ``end`` tells apart."""
    touching = [
        (index, span.start, span.key, span.source)
        for index in range(end // size)
        for span in spans
        if span.start < (index + 1) * size and span.end > index * size
    ]
    return tokens[:end], sorted(touching)


@settings(max_examples=300)
@given(first=TOKENS, second=TOKENS, first_spans=SPANS, second_spans=SPANS, size=st.integers(1, 4))
def test_hashes_are_equal_exactly_for_equal_prefixes(
    first: list[int], second: list[int], first_spans: list[KeySpan], second_spans: list[KeySpan], size: int
) -> None:
    hashes = PrefixHasher(size, first_spans).extend(as_token_ids(first), len(first))
    others = PrefixHasher(size, second_spans).extend(as_token_ids(second), len(second))
    assert len(hashes) == len(first) // size
    for index, (one, other) in enumerate(zip(hashes, others, strict=False)):
        end = (index + 1) * size
        is_same = content(first, first_spans, end, size) == content(second, second_spans, end, size)
        assert (one == other) == is_same


def test_text_before_a_span_is_shared_and_what_follows_is_not() -> None:
    tokens = list(range(24))
    plain = PrefixHasher(4).extend(as_token_ids(tokens), 24)
    cat = PrefixHasher(4, [KeySpan(9, 14, "cat", "image")]).extend(as_token_ids(tokens), 24)
    dog = PrefixHasher(4, [KeySpan(9, 14, "dog", "image")]).extend(as_token_ids(tokens), 24)
    assert plain[:2] == cat[:2] == dog[:2]
    assert all(len({*hashes}) == 3 for hashes in zip(plain[2:], cat[2:], dog[2:], strict=True))


def test_neighbouring_placeholders_split_in_another_place_differ() -> None:
    tokens = as_token_ids([7] * 4)
    even = [KeySpan(0, 2, "cat", "image"), KeySpan(2, 4, "dog", "image")]
    uneven = [KeySpan(0, 1, "cat", "image"), KeySpan(1, 4, "dog", "image")]
    assert PrefixHasher(4, even).extend(tokens, 4) != PrefixHasher(4, uneven).extend(tokens, 4)


def test_keys_of_other_sources_and_joined_texts_differ() -> None:
    spans = [
        [KeySpan(0, 1, "ab", "image")],
        [KeySpan(0, 1, "ab", "salt")],
        [KeySpan(0, 1, "a", "image"), KeySpan(0, 1, "b", "image")],
        [KeySpan(0, 1, "b", "imagea")],
    ]
    assert len({PrefixHasher(1, keys).extend(as_token_ids([5]), 1)[0] for keys in spans}) == len(spans)


def test_prompts_of_vectors_that_begin_alike_share_their_beginning() -> None:
    def hashes(vectors: NDArray[np.float32]) -> list[bytes]:
        prompt = PromptEmbeds(vectors.tobytes(), "float32", *vectors.shape)
        return PrefixHasher(4, vectors=prompt).extend(as_token_ids([0] * 16), 16)

    vectors = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    other = vectors.copy()
    other[5, 1] += 1
    assert hashes(vectors) == hashes(vectors.copy())
    assert hashes(other)[0] == hashes(vectors)[0]
    assert all(one != another for one, another in zip(hashes(other)[1:], hashes(vectors)[1:], strict=True))
    assert hashes(vectors[:8])[:2] == hashes(vectors)[:2], "a shorter prompt is a prefix of a longer one"
    assert hashes(vectors[:8])[2] != hashes(vectors)[2]
    reshaped = vectors.reshape(15, 2)
    assert hashes(reshaped)[0] != hashes(vectors)[0]
    as_half = PromptEmbeds(vectors.tobytes(), "float16", 10, 6)
    assert PrefixHasher(4, vectors=as_half).extend(as_token_ids([0] * 16), 16)[0] != hashes(vectors)[0]


def test_extra_keys_are_listed_by_block() -> None:
    vectors = PromptEmbeds(bytes(20), "float32", 5, 1)
    spans = [KeySpan(3, 9, "cat", "image"), KeySpan.of_request("tenant", "cache_salt")]
    hasher = PrefixHasher(4, spans, vectors)
    for num_tokens in (3, 8, 16):
        hasher.extend(as_token_ids([0] * 16), num_tokens)
    assert [[key[::2] for key in hasher.extra_keys.get(index, ())] for index in range(4)] == [
        [("cache_salt", 0), ("image", 3), ("prompt_embeds", 0)],
        [("image", -1), ("prompt_embeds", 0)],
        [("image", -5)],
        [],
    ]


@settings(max_examples=60)
@given(tokens=TOKENS, cuts=st.lists(st.integers(0, 12)), size=st.integers(1, 4))
def test_hashing_piece_by_piece_gives_what_hashing_at_once_gives(tokens: list[int], cuts: list[int], size: int) -> None:
    hasher, token_ids = PrefixHasher(size), as_token_ids(tokens)
    for cut in sorted(cuts):
        hasher.extend(token_ids, min(cut, len(tokens)))
    assert hasher.extend(token_ids, len(tokens)) == PrefixHasher(size).extend(token_ids, len(tokens))


def test_a_lone_surrogate_and_the_largest_token_id_are_hashed() -> None:
    span = KeySpan.of_request("\ud800", "cache_salt")
    assert len(PrefixHasher(1, [span]).extend(as_token_ids([2**31 - 1]), 1)) == 1


def test_long_prompts_are_hashed_as_block_by_block() -> None:
    """Also what is kept of prompts before, which differ in a token, a key or a vector."""
    tokens = as_token_ids([index * index % 97 for index in range(410)])
    changed = tokens.copy()
    changed[140] += 1
    spans = [KeySpan(300, 305, "cat", "image")]
    found = []
    for token_ids, keys in ((tokens, []), (changed, []), (tokens, spans), (tokens, []), (changed, spans)):
        slow = PrefixHasher(2, keys)
        for num_tokens in range(0, 411, 2):
            slow.extend(token_ids, num_tokens)
        found.append(PrefixHasher(2, keys).extend(token_ids, 410))
        assert found[-1] == slow.hashes
        assert len(set(found[-1])) == 205
    assert found[3] == found[0]
    assert [sum(a == b for a, b in zip(found[0], other, strict=True)) for other in found[1:]] == [70, 150, 205, 70]
