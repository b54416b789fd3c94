"""Grammars in the engine: they bind their own requests, wait for nobody, and fail alone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_requests import engine_request
from running_llm import loaded_llm
from tiny_llama import EOS, write_model

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.engine.core import EngineCore
from octavo.errors import InvalidRequestError
from octavo.records import EngineOutput
from octavo.sampling.grammar.xgrammar_backend import XGrammar

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPT = "Describe a person: "

pytestmark = pytest.mark.usefixtures("shared_trials")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=[False, True], ids=["in-turn", "ahead"])
def llm(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    with loaded_llm(folder, max_num_seqs=8, max_num_batched_tokens=128, async_scheduling=request.param) as llm:
        yield llm


@pytest.fixture(scope="module", params=[False, True], ids=["in-turn", "ahead"])
def demo_llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """A real model, which writes names and not just any characters."""
    llm = LLM(
        "bundled:smollm2",
        max_model_len=512,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=64 << 20,
        async_scheduling=request.param,
        num_threads=1,
        use_tqdm_on_load=False,
    )
    yield llm
    llm.shutdown()


def bound(seed: int = 0, *, temperature: float = 0.9, max_tokens: int = 120, **form: Any) -> SamplingParams:
    constraint = StructuredOutputsParams(**form)
    return SamplingParams(
        temperature=temperature, seed=seed, max_tokens=max_tokens, structured_outputs=constraint, logprobs=0
    )


def drain(engine: EngineCore) -> list[EngineOutput]:
    """Run until nothing is left to do; what that brought."""
    outputs: list[EngineOutput] = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


@pytest.mark.long
def test_every_kind_binds_its_own_request_and_no_other(demo_llm: LLM) -> None:
    free = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    alone = demo_llm.generate(PROMPT, free, use_tqdm=False)[0].outputs[0].text
    params = [
        bound(1, json=SCHEMA),
        bound(2, json=SCHEMA, backend="guidance"),
        bound(3, regex="[a-c]{3}-[0-9]{2}"),
        bound(4, choice=["yes", "no", "perhaps"]),
        bound(5, grammar='root ::= "<" [0-9]+ ">"', max_tokens=200),
        free,
    ]
    texts = [output.outputs[0].text for output in demo_llm.generate([PROMPT] * len(params), params, use_tqdm=False)]
    for text in texts[:2]:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", texts[2])
    assert texts[3] in {"yes", "no", "perhaps"}
    assert re.fullmatch("<[0-9]+>?", texts[4])
    assert texts[5] == alone


def test_completions_of_one_prompt_go_their_own_ways(llm: LLM) -> None:
    params = SamplingParams(
        n=4, temperature=1.2, seed=7, max_tokens=60, structured_outputs=StructuredOutputsParams(regex="[0-9]{6}")
    )
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    texts = [completion.text for completion in output.outputs]
    assert all(re.fullmatch("[0-9]{6}", text) for text in texts)
    assert len(set(texts)) > 1
    assert {completion.finish_reason for completion in output.outputs} == {"stop"}


def test_limits_and_penalties_hold_within_a_grammar(llm: LLM) -> None:
    many = StructuredOutputsParams(regex="(ab )*")
    params = SamplingParams(
        temperature=0, min_tokens=9, max_tokens=40, presence_penalty=0.5, structured_outputs=many, ignore_eos=True
    )
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) >= 9
    assert re.fullmatch("(ab )*(a|ab)?", output.outputs[0].text)
    short = SamplingParams(temperature=0, max_tokens=3, structured_outputs=StructuredOutputsParams(json=SCHEMA))
    (output,) = llm.generate(PROMPT, short, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"
    # The grammar ends before as many tokens as are asked for: then it wins.
    word = SamplingParams(
        temperature=0, min_tokens=30, max_tokens=40, structured_outputs=StructuredOutputsParams(choice=["yes"])
    )
    (output,) = llm.generate(PROMPT, word, use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("yes", "stop")


def test_a_grammar_can_begin_after_a_mark(llm: LLM) -> None:
    free = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    tokens = list(llm.generate(PROMPT, free, use_tqdm=False)[0].outputs[0].token_ids)
    mark = tokens[3:5]
    assert mark not in [tokens[at : at + 2] for at in range(3)]
    form = StructuredOutputsParams(choice=["one", "two"], start_after=mark)
    params = SamplingParams(temperature=0, max_tokens=80, structured_outputs=form)
    (completion,) = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs
    assert list(completion.token_ids[:5]) == tokens[:5]
    decoded = llm.get_tokenizer().decode(list(completion.token_ids[5:]), skip_special_tokens=True)
    assert decoded in {"one", "two"}
    assert completion.finish_reason == "stop"


def test_a_bad_grammar_ends_its_own_request_only(llm: LLM) -> None:
    engine = llm._engine
    free = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0].outputs[0].text
    left_recursive = StructuredOutputsParams(grammar="root ::= root")
    with pytest.raises(InvalidRequestError):
        llm.generate(
            [PROMPT, PROMPT],
            [SamplingParams(structured_outputs=left_recursive), SamplingParams(temperature=0, max_tokens=8)],
            use_tqdm=False,
        )
    drain(engine)
    assert llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0].outputs[0].text == free


def test_a_request_can_be_aborted_while_its_grammar_is_compiled(llm: LLM) -> None:
    engine = llm._engine
    params = SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(regex="[x-z]{3}[0-9]{7}q"))
    engine.add_request(engine_request("gone", [1, 2, 3], params, eos_token_ids=[EOS]))
    assert engine.has_work
    (output,) = engine.abort(["gone"])
    assert (output.request_id, output.finish_reason) == ("gone", "abort")
    assert not drain(engine)


def test_one_that_can_never_run_is_refused_though_its_grammar_is_good(llm: LLM) -> None:
    engine = llm._engine
    params = SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(choice=["a"]))
    engine.add_request(engine_request("long", [1] * 600, params, eos_token_ids=[EOS]))
    (output,) = drain(engine)
    assert output.is_refused and output.finish_reason == "error" and "600 tokens" in (output.error or "")


@pytest.mark.long
@pytest.mark.usefixtures("hasty_admission")
def test_a_grammar_follows_a_request_through_preemption(folder: Path) -> None:
    settings = {"max_model_len": 64, "max_num_seqs": 4, "num_gpu_blocks_override": 12, "block_size": 8}
    with loaded_llm(folder, enable_prefix_caching=False, **settings) as llm:
        params = [bound(seed, regex="([0-9]{3},){40}", max_tokens=40) for seed in range(3)]
        outputs = llm.generate([PROMPT] * 3, params, use_tqdm=False)
        assert llm._engine.stats.num_preemptions > 0
    for output in outputs:
        assert re.fullmatch("([0-9]{3},)*[0-9]{0,3}", output.outputs[0].text), output.outputs[0].text


def test_a_grammar_that_cannot_begin_ends_its_own_request_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object) -> None:
        raise RuntimeError("out of something")

    engine = llm._engine
    params = SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(choice=["b"]))
    with monkeypatch.context() as patch:
        patch.setattr(XGrammar, "start", fails)
        engine.add_request(engine_request("bad", [1, 2, 3], params, eos_token_ids=[EOS]))
        (output,) = drain(engine)
    assert output.finish_reason == "error" and not output.is_refused
    engine.add_request(engine_request("good", [1, 2, 3], params, eos_token_ids=[EOS]))
    assert drain(engine)[-1].finish_reason == "stop"
