import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenization.tiny import byte_level_tokenizer

from octavo.engine import messages
from octavo.errors import InvalidRequestError, PromptTooLongError
from octavo.inputs.processor import InputProcessor
from octavo.records import EngineInfo, SamplingParams

TOKENIZER = byte_level_tokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size + 5
MAX_MODEL_LEN = 64


def make(tokenizer=TOKENIZER, **options):
    info = EngineInfo(
        max_model_len=MAX_MODEL_LEN,
        vocab_size=VOCAB_SIZE,
        num_blocks=8,
        block_size=16,
        max_num_seqs=4,
        supports_prefix_caching=True,
    )
    defaults = {"eos_token_ids": [7, 3, 7], "default_params": {}, "max_logprobs": 20, "seed": 0}
    return InputProcessor(info, tokenizer, **{**defaults, **options})


def process(prompt="The fox", params=None, processor=None, **options):
    return (processor or make()).process("r", prompt, params, **options)


@pytest.mark.parametrize(
    "prompt",
    [
        "The fox",
        {"prompt": "The fox"},
        TOKENIZER.encode("The fox"),
        tuple(TOKENIZER.encode("The fox")),
        {"prompt_token_ids": TOKENIZER.encode("The fox"), "prompt": "The fox"},
    ],
)
def test_every_shape_of_prompt_comes_to_the_same_tokens(prompt):
    prepared = process(prompt)
    assert prepared.prompt_token_ids == prepared.children[0].prompt_token_ids.tolist() == TOKENIZER.encode("The fox")
    assert prepared.prompt_text == (None if isinstance(prompt, (list, tuple)) else "The fox")
    assert prepared.children[0].eos_token_ids == [3, 7]


def test_numbers_of_other_libraries_become_plain():
    import numpy as np

    prepared = process(list(np.array([1, 2, 3])))
    assert [type(token_id) for token_id in prepared.prompt_token_ids] == [int] * 3
    assert messages.encode(messages.Add(prepared.children))


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ([], "empty"),
        ({"prompt_token_ids": []}, "empty"),
        ({}, "must be a string"),
        ({"prompt": 3}, "must be a string"),
        (None, "must be a string"),
        (b"bytes", "must be a string"),
        ([1, -1], "-1"),
        ([1, VOCAB_SIZE], str(VOCAB_SIZE)),
        ([1, 1 << 70], "out of vocabulary"),
        ([1.5], "list of integers"),
        (["a"], "list of integers"),
        ([True], "list of integers"),
        ([[1]], "list of integers"),
        ("half \ud800", "surrogates"),
    ],
)
def test_impossible_prompts_are_rejected_with_an_error(prompt, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        process(prompt)
    assert caught.value.param == "prompt"


def test_a_prompt_must_leave_room_for_a_token():
    assert process([1] * (MAX_MODEL_LEN - 1)).children[0].params.max_tokens == 1
    with pytest.raises(
        PromptTooLongError, match=f"However, your messages resulted in {MAX_MODEL_LEN} tokens, which leaves no room"
    ):
        process([1] * MAX_MODEL_LEN)
    with pytest.raises(
        PromptTooLongError, match=f"length is {MAX_MODEL_LEN} tokens.*resulted in {MAX_MODEL_LEN + 1} tokens"
    ):
        process([1] * (MAX_MODEL_LEN + 1))


def test_a_huge_text_is_refused_without_tokenizing_it(monkeypatch):
    processor = make()
    monkeypatch.setattr(TOKENIZER, "encode", lambda *args: pytest.fail("tokenized"))
    with pytest.raises(PromptTooLongError, match=f"length is {MAX_MODEL_LEN} tokens.*at least 454546 tokens"):
        process("x" * 10_000_000, processor=processor)


def test_truncation_keeps_the_end():
    ids = list(range(1, 50))
    assert process(ids, truncate_prompt_tokens=5).prompt_token_ids == ids[-5:]
    assert len(process([1] * 1000, truncate_prompt_tokens=-1).prompt_token_ids) == MAX_MODEL_LEN - 1
    assert len(process("fox " * 1000, truncate_prompt_tokens=9).prompt_token_ids) == 9
    for wrong in (0, -2, MAX_MODEL_LEN + 1, True):
        with pytest.raises(InvalidRequestError) as caught:
            process(ids, truncate_prompt_tokens=wrong)
        assert caught.value.param == "truncate_prompt_tokens"


def test_max_tokens_is_what_fits():
    room = MAX_MODEL_LEN - 10
    assert process([1] * 10, SamplingParams(max_tokens=None)).children[0].params.max_tokens == room
    assert process([1] * 10, SamplingParams(max_tokens=5)).children[0].params.max_tokens == 5
    assert process([1] * 10, SamplingParams(max_tokens=room + 1)).children[0].params.max_tokens == room
    with pytest.raises(InvalidRequestError, match=f"{MAX_MODEL_LEN}.*{MAX_MODEL_LEN + 1}") as caught:
        process([1] * 10, SamplingParams(max_tokens=room + 1), clip_max_tokens=False)
    assert caught.value.param == "max_tokens"
    assert process([1] * 10, SamplingParams(max_tokens=room), clip_max_tokens=False)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"min_tokens": 60, "max_tokens": None}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
        ({"allowed_token_ids": [0, VOCAB_SIZE]}, "allowed_token_ids"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
    ],
)
def test_parameters_the_model_cannot_honour_are_refused_by_name(params, param):
    with pytest.raises(InvalidRequestError) as caught:
        process([1] * 10, SamplingParams(**params))
    assert caught.value.param == param


def test_any_number_of_logprobs_if_there_is_no_limit():
    processor = make(max_logprobs=-1)
    assert process(params=SamplingParams(logprobs=-1), processor=processor).children[0].params.logprobs == -1
    assert process(params=SamplingParams(logprobs=10**6), processor=processor)


def test_parameters_changed_after_construction_are_checked_too():
    params = SamplingParams()
    params.temperature = math.nan
    with pytest.raises(InvalidRequestError) as caught:
        process(params=params)
    assert caught.value.param == "temperature"
    params = SamplingParams()
    params.stop = "end"
    assert process(params=params).params.stop_strings == ["end"]
    with pytest.raises(InvalidRequestError, match="SamplingParams"):
        process(params={"temperature": 1})


def test_the_users_parameters_are_left_alone():
    params = SamplingParams(
        n=3, max_tokens=1000, prompt_logprobs=1, stop=["x"], logit_bias={1: 1.0}, extra_args={"a": [1]}
    )
    before = msgspec.json.encode(params)
    prepared = process(params=params)
    prepared.children[0].params.stop.append("y")
    prepared.children[0].params.logit_bias[2] = 1.0
    prepared.params.extra_args["a"].append(2)
    assert msgspec.json.encode(params) == before


def test_without_a_tokenizer_only_tokens_work():
    processor = make(tokenizer=None)
    assert process([1, 2], processor=processor).prompt_text is None
    for prompt, params, param in (
        ("text", None, "prompt"),
        ([1], SamplingParams(stop="x"), "stop"),
        ([1], SamplingParams(bad_words=["x"]), "bad_words"),
    ):
        with pytest.raises(InvalidRequestError, match="tokenizer") as caught:
            process(prompt, params, processor)
        assert caught.value.param == param


def test_bad_words_are_forbidden_in_both_spellings():
    words = process(params=SamplingParams(bad_words=["fox", " dog"])).children[0].bad_words_token_ids
    assert {TOKENIZER.decode(word) for word in words} == {"fox", " fox", " dog"}
    with pytest.raises(InvalidRequestError, match="the most are 128"):
        process(params=SamplingParams(bad_words=["fox dog " * 70]))


def test_a_cache_salt_has_a_length():
    assert process({"prompt": "fox", "cache_salt": "a"}).children[0].cache_salt == "a"
    assert process({"prompt": "fox", "cache_salt": "a"}, cache_salt="b").children[0].cache_salt == "b"
    for wrong in ("", "x" * 257, 3):
        with pytest.raises(InvalidRequestError) as caught:
            process(cache_salt=wrong)
        assert caught.value.param == "cache_salt"


def test_n_forks_the_request():
    prepared = process(
        params=SamplingParams(n=3, seed=5, prompt_logprobs=1), priority=2, client_index=1, arrival_time=9.0
    )
    leader, *others = prepared.children
    assert [child.request_id for child in prepared.children] == ["0_r", "1_r", "2_r"]
    assert {child.leader_id for child in prepared.children} == {"0_r"}
    assert [child.seed for child in prepared.children] == [5, 6, 7]
    assert {child.params.n for child in prepared.children} == {1}
    assert (leader.params.prompt_logprobs, others[0].params.prompt_logprobs) == (1, None)
    assert {(child.priority, child.client_index, child.arrival_time) for child in prepared.children} == {(2, 1, 9.0)}
    assert prepared.params.n == 3
    assert process().children[0].request_id == "r"


def test_seeds_fit_64_bits_and_differ_between_requests_and_frontends():
    processor = make()
    assert process(params=SamplingParams(seed=-2), processor=processor).children[0].seed == (1 << 64) - 2
    assert process(params=SamplingParams(n=2, seed=(1 << 64) - 1), processor=processor).children[1].seed == 0
    seeds = [process(processor=processor, client_index=index % 2).children[0].seed for index in range(20)]
    assert len(set(seeds)) == 20 and all(0 <= seed < 1 << 64 for seed in seeds)
    assert process(processor=make(seed=1)).children[0].seed == process(processor=make(seed=1)).children[0].seed
    first, second = (process(processor=make(), client_index=index).children[0].seed for index in (0, 1))
    assert first != second


def test_defaults_come_from_the_generation_config():
    generation = {
        "temperature": 0.6,
        "top_k": 40,
        "max_new_tokens": 30,
        "do_sample": False,
        "top_p": None,
        "bos_token_id": 1,
    }
    processor = make(default_params=generation)
    params = processor.default_sampling_params()
    assert (params.temperature, params.top_k, params.max_tokens, params.top_p) == (0.6, 40, 30, 1.0)
    params.temperature = 2.0
    assert process(processor=processor).params.temperature == 0.6
    assert process(params=SamplingParams(), processor=processor).params.temperature == 1.0
    with pytest.raises(InvalidRequestError, match="temperature"):
        make(default_params={"temperature": -1.0})


@given(st.lists(st.integers(-2, VOCAB_SIZE + 1), max_size=MAX_MODEL_LEN + 2), st.none() | st.integers(1, 200))
def test_what_is_accepted_fits_the_model(prompt, max_tokens):
    try:
        child = process(prompt, SamplingParams(max_tokens=max_tokens)).children[0]
    except InvalidRequestError:
        assert not 0 < len(prompt) < MAX_MODEL_LEN or min(prompt) < 0 or max(prompt) >= VOCAB_SIZE
    else:
        assert 1 <= child.params.max_tokens <= MAX_MODEL_LEN - len(child.prompt_token_ids)
        assert child.prompt_token_ids.tolist() == prompt


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("multi_modal_data", {"image": object()}),
        ("mm_processor_kwargs", {"num_crops": 4}),
        ("encoder_prompt", "a"),
        ("token_type_ids", [0, 0]),
        ("promt", "a slip"),
    ],
)
def test_what_a_prompt_holds_besides_is_rejected_by_name(key, value):
    with pytest.raises(InvalidRequestError, match=f"'{key}' is not supported") as caught:
        process({"prompt": "The fox", key: value})
    assert caught.value.param == key
    # What says nothing may be there.
    for nothing in (None, {}, []):
        assert process({"prompt": "The fox", key: nothing}).prompt_token_ids == TOKENIZER.encode("The fox")
