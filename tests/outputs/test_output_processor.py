import msgspec
import pytest
from engine_requests import engine_request
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization.tiny import byte_level_tokenizer, sentencepiece_tokenizer

from octavo.outputs import OutputProcessor
from octavo.records import (
    EngineOutput,
    Logprob,
    PreparedRequest,
    RequestOutputKind,
    RequestTimes,
    SamplingParams,
    StepOutputs,
    TokenLogprobs,
)

TOKENIZER = byte_level_tokenizer()
CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


def prepared(request_id="r", prompt="The", **options):
    params = SamplingParams(**{"max_tokens": 100, **options})
    prompt_ids = TOKENIZER.encode(prompt)
    ids = [request_id] if params.n == 1 else [f"{index}_{request_id}" for index in range(params.n)]
    child_params = msgspec.structs.replace(params, n=1)
    children = [
        engine_request(name, prompt_ids, child_params, leader_id=ids[0] if index else None)
        for index, name in enumerate(ids)
    ]
    return PreparedRequest(request_id, prompt, prompt_ids, params, children, 100.0)


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def step(outputs):
    """Outputs as the engine sends them: what is tokens and nothing else, in columns."""
    plain = [
        output
        for output in outputs
        if output.new_token_ids
        and output == EngineOutput(output.request_id, output.new_token_ids, logprobs=output.logprobs)
    ]
    counts = [len(output.new_token_ids) for output in plain]
    return StepOutputs(
        [output.request_id for output in plain],
        [token_id for output in plain for token_id in output.new_token_ids],
        [output for output in outputs if output not in plain],
        counts if any(count > 1 for count in counts) else [],
        {index: output.logprobs for index, output in enumerate(plain) if output.logprobs is not None},
    )


def run(processor, pushes, request_id="r", finish="length"):
    """Feed lists of tokens, the last with a finish reason; returns outputs and aborts."""
    outputs, aborts = [], []
    for index, push in enumerate(pushes):
        reason = finish if index == len(pushes) - 1 else None
        processed = processor.process(step([EngineOutput(request_id, list(push), finish_reason=reason)]))
        outputs += processed.outputs
        aborts += processed.aborts
    return outputs, aborts


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_each_kind_of_output_tells_the_same_story(kind):
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(output_kind=kind))
    token_ids = ids_of(" fox 😀 jumps")
    outputs, aborts = run(processor, [[token_id] for token_id in token_ids])
    assert aborts == []
    assert not processor.has("r") and processor.num_unfinished == 0
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    completions = [output.outputs[0] for output in outputs]
    assert len(completions) == (1 if kind is FINAL_ONLY else len(token_ids))
    if kind is DELTA:
        assert "".join(completion.text for completion in completions) == " fox 😀 jumps"
        assert [i for completion in completions for i in completion.token_ids] == token_ids
    else:
        assert completions[-1].text == " fox 😀 jumps"
        assert completions[-1].token_ids == token_ids
    assert completions[-1].finish_reason == "length"
    assert outputs[-1].prompt == "The" and outputs[-1].prompt_token_ids == TOKENIZER.encode("The")


def test_cumulative_outputs_do_not_change_afterwards():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(logprobs=0))
    row = TokenLogprobs([1], [-1.0], 1)
    first = processor.process(step([EngineOutput("r", ids_of("a"), logprobs=[row])])).outputs[0].outputs[0]
    processor.process(step([EngineOutput("r", ids_of("b"), logprobs=[row])]))
    assert (first.text, first.token_ids, len(first.logprobs)) == ("a", ids_of("a"), 1)


@pytest.mark.parametrize("kind", list(RequestOutputKind))
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_the_text_and_aborts_in_the_engine(kind, include):
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(output_kind=kind, stop=["x j"], include_stop_str_in_output=include))
    token_ids = ids_of(" the fox jumps over")
    outputs, aborts = run(processor, [[token_id] for token_id in token_ids])
    assert aborts == ["r"]
    last = outputs[-1].outputs[0]
    text = "".join(output.outputs[0].text for output in outputs) if kind is DELTA else last.text
    assert text == (" the fox j" if include else " the fo")
    assert (last.finish_reason, last.stop_reason) == ("stop", "x j")
    taken = [i for output in outputs for i in output.outputs[0].token_ids] if kind is DELTA else last.token_ids
    assert taken == token_ids[: len(taken)]
    assert "x j" in TOKENIZER.decode(taken) and "x j" not in TOKENIZER.decode(taken[:-1])
    assert outputs[-1].finished and processor.num_unfinished == 0
    assert processor.process(step([EngineOutput("r", [5])])).outputs == []


def test_a_stop_string_in_the_engines_last_tokens_needs_no_abort():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(stop=["fox"]))
    outputs, aborts = run(processor, [ids_of(" the fox jumps")])
    assert aborts == []
    assert (outputs[0].outputs[0].text, outputs[0].outputs[0].stop_reason) == (" the ", "fox")


def test_stop_strings_wait_for_min_tokens():
    processor = OutputProcessor(TOKENIZER)
    token_ids = ids_of("fox fox fox")
    processor.add_request(prepared(stop=["fox"], min_tokens=len(ids_of("fox fox"))))
    outputs, _ = run(processor, [[token_id] for token_id in token_ids])
    assert outputs[-1].outputs[0].text == "fox fox "


@pytest.mark.parametrize("kind", [CUMULATIVE, FINAL_ONLY])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_kept_as_token_but_not_as_text(kind, include):
    processor = OutputProcessor(TOKENIZER)
    stop_token = ids_of("<think>")[0]
    processor.add_request(prepared(output_kind=kind, stop_token_ids=[stop_token], include_stop_str_in_output=include))
    token_ids = [*ids_of(" fox"), stop_token]
    processor.process(step([EngineOutput("r", token_ids[:-1])]))
    output = EngineOutput("r", token_ids[-1:], finish_reason="stop", stop_reason=stop_token)
    completion = processor.process(step([output])).outputs[0].outputs[0]
    assert completion.token_ids == token_ids
    assert completion.text == (" fox<think>" if include else " fox")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop_token)


def test_text_that_might_have_become_a_stop_string_comes_at_the_end():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(output_kind=DELTA, stop=["foxes"]))
    outputs, _ = run(processor, [ids_of("the fox"), ids_of("")], finish="length")
    assert [output.outputs[0].text for output in outputs] == ["the ", "fox"]


def test_without_detokenizing_there_are_only_tokens():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared("a", detokenize=False))
    outputs, _ = run(processor, [ids_of("fox")], "a")
    assert (outputs[0].outputs[0].text, outputs[0].outputs[0].token_ids) == ("", ids_of("fox"))
    processor = OutputProcessor(None)
    processor.add_request(prepared("b", logprobs=0))
    outputs = processor.process(step([EngineOutput("b", [7], logprobs=[TokenLogprobs([7], [-1.0], 3)])])).outputs
    assert outputs[0].outputs[0].logprobs == [{7: Logprob(-1.0, 3, None)}]


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize("has_late_logprobs", [False, True])
def test_without_detokenizing_no_token_is_spelled(monkeypatch, kind, has_late_logprobs):
    tokenizer = byte_level_tokenizer()

    def spell(*_):
        raise AssertionError("a token was spelled")

    for name in ("decode", "byte_table", "token_bytes", "token_text", "convert_ids_to_tokens"):
        monkeypatch.setattr(tokenizer, name, spell)
    processor = OutputProcessor(tokenizer, has_late_logprobs=has_late_logprobs)
    options = {"output_kind": kind, "logprobs": 1, "prompt_logprobs": 1}
    request = prepared("a", "The", detokenize=False, **options)
    processor.add_request(request)
    rows = [TokenLogprobs([7, 8], [-1.0, -2.0], 1)]
    prompt_rows = [TokenLogprobs([token], [-1.0], 1) for token in request.prompt_token_ids[1:]]
    outputs = processor.process(step([EngineOutput("a", [7], logprobs=rows, prompt_logprobs=prompt_rows)])).outputs
    outputs += processor.process(step([EngineOutput("a", [9], logprobs=rows, finish_reason="length")])).outputs
    assert all(output.outputs[0].text == "" and output.error is None for output in outputs)
    assert outputs[-1].finished and outputs[-1].outputs[0].token_ids[-1] == 9
    assert outputs[-1].outputs[0].logprobs[-1] == {7: Logprob(-1.0, 1, None), 8: Logprob(-2.0, 1, None)}
    assert [None, *({row.token_ids[0]: Logprob(-1.0, 1, None)} for row in prompt_rows)] == outputs[0].prompt_logprobs
    with pytest.raises(AssertionError, match="a token was spelled"):
        processor.add_request(prepared("b", "The"))


def test_logprobs_have_the_sampled_token_first_and_ranks():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(logprobs=2, prompt_logprobs=1))
    a, b, c = ids_of("a")[0], ids_of("b")[0], ids_of("c")[0]
    prompt_rows = [TokenLogprobs([b, a], [-2.0, -1.0], 2)] * (len(TOKENIZER.encode("The")) - 1)
    assert processor.process(step([EngineOutput("r", prompt_logprobs=prompt_rows, num_cached_tokens=3)])).outputs == []
    rows = [TokenLogprobs([c, a, b], [-3.0, -1.0, -2.0], 9), TokenLogprobs([a, a, b], [-0.5, -0.5, -4.0], 1)]
    outputs = processor.process(step([EngineOutput("r", [c, a], logprobs=rows)])).outputs
    completion = outputs[0].outputs[0]
    assert completion.logprobs == [
        {c: Logprob(-3.0, 9, "c"), a: Logprob(-1.0, 1, "a"), b: Logprob(-2.0, 2, "b")},
        {a: Logprob(-0.5, 1, "a"), b: Logprob(-4.0, 2, "b")},
    ]
    assert completion.cumulative_logprob == -3.5
    assert outputs[0].num_cached_tokens == 3
    assert outputs[0].prompt_logprobs[0] is None
    assert outputs[0].prompt_logprobs[1:] == [{b: Logprob(-2.0, 2, "b"), a: Logprob(-1.0, 1, "a")}] * len(prompt_rows)


def test_late_prompt_logprobs_are_those_made_at_once():
    request = prepared(prompt="The end of the tale", prompt_logprobs=1)
    rows = [TokenLogprobs([i, 70], [-1.0, -2.0], 2) for i in range(len(request.prompt_token_ids) - 1)]
    assert len(rows) > 2
    found = []
    for is_late in (True, False):
        processor = OutputProcessor(TOKENIZER, has_late_logprobs=is_late)
        processor.add_request(request)
        processor.process(step([EngineOutput("r", prompt_logprobs=rows)]))
        outputs, _ = run(processor, [[6]])
        found.append(outputs[-1].prompt_logprobs)
    late, made = found
    assert isinstance(made, list) and not isinstance(late, list)
    assert late == made and made == late and list(late) == made and len(late) == len(made)
    assert late[0] is None and late[-1] == made[-1] and late[1:] == made[1:] and late[::-2] == made[::-2]
    assert late != made[1:] and late != "x"
    with pytest.raises(IndexError):
        late[len(made)]


@pytest.mark.parametrize("is_cut", [False, True])
def test_prompt_logprobs_come_in_parts(is_cut):
    """And begin again, if the engine is lost between two of them."""
    processor = OutputProcessor(TOKENIZER)
    request = prepared(prompt="The end of the tale", prompt_logprobs=0)
    rows = [TokenLogprobs([place], [-1.0], 1) for place in range(len(request.prompt_token_ids) - 1)]
    processor.add_request(request)
    if is_cut:
        processor.process(step([EngineOutput("r", prompt_logprobs=rows[:3])]))
        assert [again.params.prompt_logprobs for again in processor.replays()] == [0]
    for part in (rows[:2], rows[2:]):
        assert processor.process(step([EngineOutput("r", prompt_logprobs=part)])).outputs == []
    assert [again.params.prompt_logprobs for again in processor.replays()] == [None]
    outputs, _ = run(processor, [[6]])
    found = outputs[-1].prompt_logprobs
    assert [position and list(position) for position in found] == [None, *[row.token_ids for row in rows]]


def test_the_first_prompt_token_has_no_logprobs_even_if_it_is_alone():
    processor = OutputProcessor(TOKENIZER)
    request = prepared(prompt="T", prompt_logprobs=0)
    assert len(request.prompt_token_ids) == 1
    processor.add_request(request)
    outputs, _ = run(processor, [[6]])
    assert outputs[-1].prompt_logprobs == [None]


def test_prompt_logprobs_are_streamed_once():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(output_kind=DELTA, prompt_logprobs=0))
    processor.process(step([EngineOutput("r", prompt_logprobs=[TokenLogprobs([5], [-1.0], 1)])]))
    outputs, _ = run(processor, [[6], [7]])
    assert [output.prompt_logprobs is not None for output in outputs] == [True, False]


def test_n_completions_are_merged_by_kind():
    for kind in RequestOutputKind:
        processor = OutputProcessor(TOKENIZER)
        processor.add_request(prepared(n=2, output_kind=kind))
        first = processor.process(step([EngineOutput("1_r", ids_of("b")), EngineOutput("0_r", ids_of("a"))])).outputs
        second = processor.process(step([EngineOutput("1_r", ids_of("d"), finish_reason="length")])).outputs
        third = processor.process(step([EngineOutput("0_r", ids_of("c"), finish_reason="length")])).outputs
        shown = [
            [[(completion.index, completion.text) for completion in output.outputs] for output in outputs]
            for outputs in (first, second, third)
        ]
        assert (
            shown
            == {
                DELTA: [[[(1, "b")], [(0, "a")]], [[(1, "d")]], [[(0, "c")]]],
                CUMULATIVE: [[[(0, "a"), (1, "b")]], [[(0, "a"), (1, "bd")]], [[(0, "ac"), (1, "bd")]]],
                FINAL_ONLY: [[], [], [[(0, "ac"), (1, "bd")]]],
            }[kind]
        )
        assert [output.finished for output in (*first, *second, *third)][-1]
        assert sum(output.finished for output in (*first, *second, *third)) == 1


def test_an_aborted_request_is_forgotten():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(n=2))
    processor.process(
        step([EngineOutput("0_r", ids_of("a"), finish_reason="length"), EngineOutput("1_r", ids_of("b"))])
    )
    last = processor.abort_output("r")
    assert last.finished
    assert [(c.text, c.finish_reason) for c in last.outputs] == [("a", "length"), ("b", "abort")]
    assert processor.abort("r") == ["1_r"]
    assert processor.abort("r") == []
    assert processor.abort_output("r") is None
    assert processor.process(step([EngineOutput("1_r", [5])])).outputs == []
    assert processor.replays() == []


def test_errors_reach_their_request_only():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared("a"))
    processor.add_request(prepared("b"))
    outputs = processor.process(step([EngineOutput("a", finish_reason="error", error="It broke.")])).outputs
    assert [(o.request_id, o.finished, o.error, o.outputs[0].finish_reason) for o in outputs] == [
        ("a", True, "It broke.", "error")
    ]
    outputs, _ = run(processor, [ids_of("fine")], "b")
    assert [(o.error, o.outputs[0].text) for o in outputs] == [(None, "fine")]
    assert processor.num_unfinished == 0


def test_metrics_follow_the_engine():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared())
    processor.process(step([EngineOutput("r", [5], times=RequestTimes(101.0, 102.0, 103.0))]))
    # An engine that was restarted counts from anew; the user's first token stays the first.
    times = RequestTimes(201.0, 202.0, 203.0, 204.0, 1)
    metrics = (
        processor.process(step([EngineOutput("r", [5, 6], finish_reason="length", times=times)])).outputs[0].metrics
    )
    assert (metrics.queued_ts, metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts) == (
        101,
        102,
        103,
        204,
    )
    assert (metrics.first_token_latency, metrics.num_generation_tokens, metrics.num_preemptions) == (3.0, 3, 1)


def test_replays_go_on_where_the_tokens_ended():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared("a", n=2, prompt_logprobs=1))
    processor.add_request(prepared("b", prompt_logprobs=1))
    rows = [TokenLogprobs([5, 6], [-1.0, -2.0], 1)]
    processor.process(step([EngineOutput("0_a", [11], prompt_logprobs=rows), EngineOutput("1_a", [12])]))
    leader, follower, other = processor.replays()
    assert (leader.output_token_ids.tolist(), leader.params.prompt_logprobs, leader.leader_id) == ([11], None, None)
    assert (follower.output_token_ids.tolist(), follower.leader_id) == ([12], "0_a")
    assert (other.output_token_ids.tolist(), other.params.prompt_logprobs) == ([], 1)
    processor.process(step([EngineOutput("0_a", [13], finish_reason="length")]))
    assert [(replay.request_id, replay.leader_id) for replay in processor.replays()] == [("1_a", None), ("b", None)]


@given(st.data(), st.sampled_from(list(RequestOutputKind)))
@settings(max_examples=150)
def test_any_cut_of_the_tokens_gives_the_same_result(data, kind):
    tokenizer = data.draw(st.sampled_from([TOKENIZER, sentencepiece_tokenizer()]))
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=30))
    text = tokenizer.decode(token_ids)
    starts = st.integers(0, max(0, len(text) - 1))
    stops = [text[i : i + data.draw(st.integers(1, 3))] for i in data.draw(st.lists(starts, max_size=2))]
    options = {"stop": [stop for stop in stops if stop], "output_kind": kind, "logprobs": 0}
    min_tokens = data.draw(st.integers(0, 3))

    def result(cuts):
        processor = OutputProcessor(tokenizer)
        processor.add_request(prepared(min_tokens=min_tokens, **options))
        outputs, position = [], 0
        for cut in cuts:
            new = token_ids[position : position + cut]
            position += cut
            rows = [TokenLogprobs([token_id], [-float(token_id)], 1) for token_id in new]
            reason = "length" if position >= len(token_ids) else None
            outputs += processor.process(step([EngineOutput("r", new, finish_reason=reason, logprobs=rows)])).outputs
            if position >= len(token_ids):
                break
        assert outputs[-1].finished
        completions = [output.outputs[0] for output in (outputs if kind is DELTA else outputs[-1:])]
        joined = "".join(completion.text for completion in completions)
        tokens = [token_id for completion in completions for token_id in completion.token_ids]
        rows = [row for completion in completions for row in completion.logprobs]
        assert [next(iter(row)) for row in rows] == tokens
        last = completions[-1]
        return joined, tokens, last.finish_reason, last.stop_reason, last.cumulative_logprob

    cuts = data.draw(st.lists(st.integers(1, 5), min_size=len(token_ids), max_size=len(token_ids)))
    assert result(cuts) == result([1] * len(token_ids))


@given(st.data(), st.sampled_from(list(RequestOutputKind)))
@settings(max_examples=100)
def test_tokens_in_columns_give_what_tokens_one_by_one_give(data, kind):
    streams = data.draw(
        st.lists(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=8), max_size=4)
    )
    kinds = [data.draw(st.sampled_from([kind, FINAL_ONLY])) for _ in streams]
    text = "".join(map(TOKENIZER.decode, streams))
    stops = [text[i : i + 2] for i in data.draw(st.lists(st.integers(0, max(0, len(text) - 2)), max_size=1))]
    gone = data.draw(st.sets(st.integers(0, 3)))

    def results(wrap):
        processor = OutputProcessor(TOKENIZER)
        for number, output_kind in enumerate(kinds):
            num_logprobs = number % 3 or None
            processor.add_request(
                prepared(
                    str(number),
                    output_kind=output_kind,
                    stop=[stop for stop in stops if stop],
                    logprobs=num_logprobs,
                )
            )
        shown, aborts = [], []
        for position in range(max(map(len, streams), default=0)):
            if position == 2:
                for number in gone:
                    processor.abort(str(number))
            outputs = [
                EngineOutput(
                    str(number),
                    [stream[position]],
                    "length" if position == len(stream) - 1 else None,
                    logprobs=[TokenLogprobs([stream[position], 5], [-0.5, -1.5], 2)] if number % 3 else None,
                )
                for number, stream in enumerate(streams)
                if position < len(stream)
            ]
            processed = processor.process(wrap(outputs))
            aborts.append(sorted(processed.aborts))
            shown.append(sorted(processed.outputs, key=lambda output: output.request_id))
        assert processor.num_unfinished == 0 or stops or gone
        return shown, aborts

    assert results(step) == results(lambda outputs: StepOutputs(others=outputs))


@given(
    text=st.text("aé😀 stop", min_size=1, max_size=20),
    taken=st.lists(st.booleans(), min_size=1, max_size=30),
    stop=st.none() | st.just("st"),
    n=st.integers(1, 2),
)
def test_text_that_is_taken_at_once_and_text_in_outputs_add_up(text, taken, stop, n):
    def texts(take_text):
        processor = OutputProcessor(TOKENIZER)
        request = prepared(output_kind=DELTA, stop=stop, n=n, temperature=1.0)
        processor.add_request(request, take_text)
        found, reasons, aborts = [""] * n, {}, []
        names = [child.request_id for child in request.children]
        ids = ids_of(text)
        for position, token_id in enumerate(ids):
            reason = "length" if position == len(ids) - 1 else None
            processed = processor.process(
                step([EngineOutput(name, [token_id], finish_reason=reason) for name in names])
            )
            aborts += processed.aborts
            for output in processed.outputs:
                for completion in output.outputs:
                    found[completion.index] += completion.text
                    reasons[completion.index] = completion.finish_reason
            for index in range(n):
                found[index] += "".join(relayed.pop(index, []))
        assert processor.num_unfinished == 0
        return found, reasons, aborts

    relayed, choices = {}, iter(taken * 100)

    def take_text(index, token_id, text):
        if is_taken := next(choices):
            relayed.setdefault(index, []).append(text)
        return is_taken

    assert texts(take_text) == texts(None)


def test_tokens_that_say_more_than_text_are_not_offered():
    def take_text(index, token_id, text):
        raise AssertionError("offered")

    for options in ({"logprobs": 1}, {"output_kind": CUMULATIVE}, {"output_kind": FINAL_ONLY}, {"detokenize": False}):
        processor = OutputProcessor(TOKENIZER)
        processor.add_request(prepared(**{"output_kind": DELTA, **options}), take_text)
        run(processor, [[token_id] for token_id in ids_of("The cat")])


def test_replays_know_what_was_taken():
    processor = OutputProcessor(TOKENIZER)
    processor.add_request(prepared(output_kind=DELTA), lambda index, token_id, text: True)
    for token_id in ids_of("abc"):
        assert not processor.process(step([EngineOutput("r", [token_id])])).outputs
    assert processor.replays()[0].output_token_ids.tolist() == ids_of("abc")
    outputs, _ = run(processor, [ids_of("d")])
    assert outputs[-1].outputs[0].text == "d"
    assert outputs[-1].metrics.num_generation_tokens == len(ids_of("abc")) + 1


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize("in_columns", [True, False])
def test_a_request_whose_text_cannot_be_made_fails_alone(kind, in_columns, monkeypatch):
    processor = OutputProcessor(TOKENIZER)
    for name in ("bad", "good"):
        processor.add_request(prepared(name, output_kind=kind, n=2, stop=["never"]))
    detokenizer = processor._completions["0_bad"][1]._detokenizer
    monkeypatch.setattr(type(detokenizer), "decode_delta", fails_at(detokenizer, type(detokenizer).decode_delta))
    token_id = ids_of("a")[0]
    names = ["1_bad", "0_bad", "1_bad", "0_good", "1_good"]
    if in_columns:
        processed = processor.process(StepOutputs(names, [token_id] * 5))
    else:
        processed = processor.process(StepOutputs(others=[EngineOutput(name, [token_id]) for name in names]))
    (failed,) = [output for output in processed.outputs if output.error is not None]
    assert (failed.request_id, failed.finished, failed.is_refused) == ("bad", True, False)
    assert sorted(processed.aborts) == ["0_bad", "1_bad"] and not processor.has("bad")
    finished = [EngineOutput(f"{index}_good", [token_id], finish_reason="length") for index in range(2)]
    outputs = [*processed.outputs, *processor.process(StepOutputs(others=finished)).outputs]
    assert sum(output.finished for output in outputs if output.request_id == "good") == 1


def fails_at(bad, decode_delta):
    def maybe_decode(detokenizer, token_ids):
        if detokenizer is bad:
            raise RuntimeError("no such token")
        return decode_delta(detokenizer, token_ids)

    return maybe_decode
