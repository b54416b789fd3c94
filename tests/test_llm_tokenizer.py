"""``get_tokenizer``: what it gives is used as Hugging Face's are."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_llm import SCENARIO_SECONDS, loaded_llm, running
from tiny_llama import EOS, VOCAB_SIZE, write_model
from transformers import AutoTokenizer

from octavo import LLM, SamplingParams

TEXTS = ["tea", "Grüße, 世界! 😀"]
TALK = [{"role": "user", "content": "tea"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with loaded_llm(folder) as llm:
        yield llm


def test_it_does_what_transformers_does(llm: LLM, folder: Path) -> None:
    ours, theirs = llm.get_tokenizer(), AutoTokenizer.from_pretrained(folder)
    assert ours(TEXTS[1]) == theirs(TEXTS[1])
    assert dict(ours(TEXTS)) == dict(theirs(TEXTS)) and set(ours(TEXTS)) >= {"input_ids", "attention_mask"}
    ids = theirs.encode(TEXTS[1])
    assert ours.encode(TEXTS[1]) == ids
    assert ours.encode("tea", add_special_tokens=False) == theirs.encode("tea", add_special_tokens=False)
    for skip in (False, True):
        assert ours.decode([*ids, EOS], skip_special_tokens=skip) == theirs.decode(
            [*ids, EOS], skip_special_tokens=skip
        )
    assert ours.batch_decode([ids, ids]) == theirs.batch_decode([ids, ids])
    assert ours.tokenize("tea") == theirs.tokenize("tea")
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(EOS) == theirs.convert_ids_to_tokens(EOS)
    assert ours.convert_tokens_to_ids(ours.eos_token) == ours.eos_token_id == theirs.eos_token_id == EOS
    assert sorted(ours.all_special_ids) == sorted(theirs.all_special_ids)
    assert ours.get_vocab() == theirs.get_vocab()
    assert (len(ours), ours.vocab_size) == (len(theirs), theirs.vocab_size)
    assert len(ours) <= VOCAB_SIZE and ours.is_fast
    assert (ours.name_or_path, ours.model_max_length) == (str(folder), 256)


def test_chat_templates_have_transformers_defaults(llm: LLM, folder: Path) -> None:
    ours, theirs = llm.get_tokenizer(), AutoTokenizer.from_pretrained(folder)
    assert ours.apply_chat_template(TALK, tokenize=False) == "<user>tea"
    for options in ({}, {"add_generation_prompt": True}, {"return_dict": False}):
        assert ours.apply_chat_template(TALK, **options) == theirs.apply_chat_template(TALK, **options)


def test_padding_and_truncation_do_not_reach_the_engine(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    (before,) = llm.generate("coffee and cake", params, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    padded = tokenizer(["coffee and cake", "w"], padding=True, truncation=True, max_length=3, return_tensors="pt")
    assert padded["input_ids"].shape == (2, 3)
    (after,) = llm.generate("coffee and cake", params, use_tqdm=False)
    assert after.prompt_token_ids == before.prompt_token_ids and len(before.prompt_token_ids) > 3
    assert llm.get_tokenizer() is tokenizer


@pytest.mark.long
def test_the_asynchronous_entry_point_has_it_too(folder: Path) -> None:
    async def main() -> list[int]:
        async with asyncio.timeout(SCENARIO_SECONDS), running(folder) as llm:
            return llm.get_tokenizer()("tea")["input_ids"]

    assert asyncio.run(main()) == AutoTokenizer.from_pretrained(folder)("tea")["input_ids"]
