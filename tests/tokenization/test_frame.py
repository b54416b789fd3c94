"""Frames are what the library puts around texts, for every kind of post-processor."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from octavo.tokenization.frame import SpecialTokenFrame

SPECIAL = [("<s>", 0), ("</s>", 1), ("[CLS]", 2)]
PROCESSORS = {
    "none": None,
    "bert": processors.BertProcessing(("</s>", 1), ("<s>", 0)),
    "roberta": processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
    "byte level": processors.ByteLevel(trim_offsets=False),
    "template": processors.TemplateProcessing(
        single="<s>:0 <s>:0 $A:0 [CLS]:0", pair="[CLS]:0 $B:1 </s>:0 $A:0 </s>:1", special_tokens=SPECIAL
    ),
    "sequence": processors.Sequence(
        [processors.ByteLevel(), processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", SPECIAL)]
    ),
}
TEXTS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5).map(" ".join)


def tokenizer_with(kind: str) -> tokenizers.Tokenizer:
    words = ["<s>", "</s>", "[CLS]", "[UNK]", "b", "a"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if PROCESSORS[kind] is not None:
        tokenizer.post_processor = PROCESSORS[kind]
    return tokenizer


@pytest.mark.parametrize("kind", PROCESSORS)
@given(first=TEXTS, second=TEXTS)
def test_frames(kind: str, first: str, second: str) -> None:
    tokenizer = tokenizer_with(kind)
    bare = [tokenizer.encode(text, add_special_tokens=False).ids for text in (first, second)]
    single, pair = SpecialTokenFrame.of(tokenizer, 1), SpecialTokenFrame.of(tokenizer, 2)
    assert single.num_special_tokens == len(tokenizer.encode("a")) - 1
    assert pair.num_special_tokens == len(tokenizer.encode("a", "b")) - 2
    framed = tokenizer.encode(first)
    assert single.add_special_tokens(bare[0]) == framed.ids
    assert list(single.strip_special_tokens(framed.ids)) == bare[0]
    both = tokenizer.encode(first, second)
    assert pair.add_special_tokens(*bare) == both.ids
    assert pair.segment_start(*bare) == (both.type_ids.index(1) if 1 in both.type_ids else None)
