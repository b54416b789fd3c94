"""Drafts of n-grams, grammars and steps ahead at once: a text is always in its grammar, and the one without drafts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from running_llm import loaded_llm
from tiny_llama import write_model

from octavo import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from octavo.telemetry.reader import Counter

pytestmark = pytest.mark.usefixtures("shared_trials")

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["tea", "teas", 1]}},
    "required": ["a", "b"],
}

WORDS = st.sampled_from(["a", "b", "ab", "tea", "teas", "[a-f]", "[^a]"])
PATTERNS = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.builds("({}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds(
            lambda part, least, more: f"({part}){{{least},{least + more}}}", inner, st.integers(0, 6), st.integers(0, 6)
        ),
    ),
    max_leaves=5,
).filter(lambda pattern: regex.fullmatch(pattern, "") is None)
"""Texts that repeat themselves, so that drafts are found, some of which the grammar forbids."""

REQUESTS = st.fixed_dictionaries(
    {
        "pattern": st.none() | PATTERNS | st.just(json.dumps(SCHEMA)),
        "prompt": st.sampled_from(
            ["tea and tea and tea", "abababab", '{"a": 1, "b": "tea"} {"a": 1', "aaaaaaaaa", "f"]
        ),
        "temperature": st.sampled_from([0.0, 0.3, 1.0]),
        "presence_penalty": st.sampled_from([0.0, 0.6]),
        "min_tokens": st.sampled_from([0, 0, 7]),
        "max_tokens": st.integers(7, 24),
    }
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    """Without drafts, one step at a time; with drafts, a step ahead, in chunks and with few blocks."""
    folder: Path = write_model(tmp_path_factory.mktemp("tiny"))
    drafting = {"speculative_config": DRAFTS, "async_scheduling": True, "max_num_seqs": 3}
    few = {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 40, "max_model_len": 64}
    with loaded_llm(folder, max_model_len=64) as plain, loaded_llm(folder, **drafting, **few) as ahead:
        yield plain, ahead


def ask(llm: LLM, requests: list[dict[str, Any]]) -> list[RequestOutput]:
    prompts, params = [], []
    for index, request in enumerate(requests):
        wish = dict(request)
        pattern = wish.pop("pattern")
        prompts.append(wish.pop("prompt"))
        form = {"json": SCHEMA} if pattern == json.dumps(SCHEMA) else {"regex": pattern}
        bound = StructuredOutputsParams(**form) if pattern is not None else None
        params.append(SamplingParams(**wish, seed=index, structured_outputs=bound))
    return llm.generate(prompts, params, use_tqdm=False)


def assert_within(pattern: str, text: str, *, is_whole: bool) -> None:
    if pattern != json.dumps(SCHEMA):
        assert regex.fullmatch(pattern, text, partial=not is_whole), (pattern, text)
    elif is_whole:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.long
@settings(max_examples=48)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=5))
def test_texts_are_in_their_grammars(engines: tuple[LLM, LLM], requests: list[dict[str, Any]]) -> None:
    plain, ahead = engines
    for request, output, expected in zip(requests, ask(ahead, requests), ask(plain, requests), strict=True):
        completion = output.outputs[0]
        assert completion.token_ids == expected.outputs[0].token_ids
        assert completion.finish_reason in ("stop", "length")
        if request["pattern"] is not None and "\N{REPLACEMENT CHARACTER}" not in completion.text:
            assert_within(request["pattern"], completion.text, is_whole=completion.finish_reason == "stop")


def test_drafts_were_accepted(engines: tuple[LLM, LLM]) -> None:
    """Else the test above would show nothing."""
    _, ahead = engines
    request = {"pattern": "(ab){9,12}", "prompt": "abababab", "temperature": 0.0, "max_tokens": 24}
    (output,) = ask(ahead, [request])
    assert output.outputs[0].text.startswith("abab")
    figures = {metric.name: metric for metric in ahead.get_metrics()}
    accepted = figures["vllm:spec_decode_num_accepted_tokens"]
    assert isinstance(accepted, Counter) and accepted.value > 5
