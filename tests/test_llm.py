"""The offline face, on small random models and on the demo model."""

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import EOS, SETTINGS, VOCAB_SIZE, write_model

from octavo import LLM, SamplingParams
from octavo.errors import ChatTemplateError, ConfigError, InvalidRequestError, RequestFailedError
from octavo.execution.executor import InProcessExecutor
from octavo.records import EngineRequest, EngineStats, FlatLogprobs, RequestOutput, Step, StepOutputs
from octavo.sampling import AdapterLogitsProcessor
from octavo.scheduling.request import Request

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
Start = Callable[..., LLM]


def seeded(seed: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**({"seed": seed, "max_tokens": 12, "ignore_eos": True} | changes))


def ids_of(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[list(completion.token_ids) for completion in output.outputs] for output in outputs]


def texts_of(outputs: list[RequestOutput]) -> list[str]:
    return [completion.text for output in outputs for completion in output.outputs]


def stats_of(llm: LLM) -> EngineStats:
    return llm._engine.stats


def assert_nothing_left(llm: LLM) -> None:
    stats = stats_of(llm)
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks
    assert not llm._engine.has_work
    assert llm._outputs.num_unfinished == 0


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    started: list[LLM] = []

    def start_on(source: Path = folder, **settings: Any) -> LLM:
        started.append(LLM(str(source), **(SETTINGS | settings)))
        return started[-1]

    yield start_on
    for llm in started:
        llm.shutdown()


def test_the_callers_threads_stay(start: Start) -> None:
    before = torch.get_num_threads()
    llm = start(num_threads=before + 1)
    assert torch.get_num_threads() == before
    assert llm.collective_rpc(lambda worker: torch.get_num_threads()) == [before + 1]
    llm.generate(["text"], GREEDY, use_tqdm=False)
    assert torch.get_num_threads() == before


@pytest.fixture(scope="module")
def _shared(folder: Path) -> Iterator[LLM]:
    llm = LLM(str(folder), **SETTINGS)
    yield llm
    llm.shutdown()


@pytest.fixture
def llm(_shared: LLM) -> Iterator[LLM]:
    """One model for tests that need no settings of their own; each has to leave it clean."""
    yield _shared
    assert_nothing_left(_shared)
    assert _shared.reset_prefix_cache()


class TestPrompts:
    def test_every_form_of_a_prompt_means_the_same(self, llm: LLM) -> None:
        text = "the tea is on"
        ids = llm.get_tokenizer().encode(text)
        forms: list[Any] = [
            text,
            ids,
            {"prompt": text},
            {"prompt_token_ids": ids},
            {"prompt_token_ids": ids, "prompt": text},
        ]
        (alone,) = llm.generate(text, GREEDY, use_tqdm=False)
        assert alone.prompt == text and alone.prompt_token_ids == ids and alone.finished
        assert ids_of(llm.generate(forms, GREEDY, use_tqdm=False)) == [[list(alone.outputs[0].token_ids)]] * len(forms)
        for form in forms:
            assert texts_of(llm.generate(form, GREEDY, use_tqdm=False)) == [alone.outputs[0].text]

    def test_outputs_come_in_the_order_of_prompts(self, llm: LLM) -> None:
        prompts = [[number + 1] * (3 + number) for number in range(20)]
        params = [seeded(number, max_tokens=1 + 7 * number % 13) for number in range(20)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == prompts
        assert [len(output.outputs[0].token_ids) for output in outputs] == [param.max_tokens for param in params]
        assert {output.outputs[0].finish_reason for output in outputs} == {"length"}

    def test_no_prompts_no_outputs(self, llm: LLM) -> None:
        assert llm.generate([], GREEDY, use_tqdm=False) == []

    def test_defaults_apply_without_parameters(self, llm: LLM) -> None:
        (output,) = llm.generate("a", use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 16 or output.outputs[0].finish_reason == "stop"

    def test_max_tokens_none_fills_the_context(self, llm: LLM) -> None:
        (output,) = llm.generate([5] * 240, seeded(1, max_tokens=None), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 16
        assert output.outputs[0].finish_reason == "length"

    @pytest.mark.parametrize("wrong", ["", [], [VOCAB_SIZE], [-1], [1] * 256, {"text": "a"}, 3.5, [1, "a"]], ids=str)
    def test_a_wrong_prompt_among_good_ones_leaves_nothing_behind(self, llm: LLM, wrong: Any) -> None:
        with pytest.raises(InvalidRequestError):
            llm.generate(["good", wrong, "also good"], GREEDY, use_tqdm=False)
        assert_nothing_left(llm)

    def test_prompts_are_made_ready_while_others_run(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        llm = start(max_num_seqs=2, max_num_batched_tokens=32)
        prompts = [[number + 10] * 30 for number in range(12)]
        expected = ids_of([llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in prompts])
        seen: list[int] = []
        step = llm._engine.step

        def noting_step() -> StepOutputs:
            seen.append(len(llm._engine.scheduler.requests))
            return step()

        monkeypatch.setattr(llm._engine, "step", noting_step)
        assert ids_of(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
        assert seen[0] < 3 and max(seen) <= 2 + 3
        seen.clear()
        with pytest.raises(InvalidRequestError):
            llm.generate([*prompts, [-1]], GREEDY, use_tqdm=False)
        assert seen
        assert_nothing_left(llm)

    def test_priorities_hold_over_all_prompts(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        llm = start(max_num_seqs=1, max_num_batched_tokens=32, scheduling_policy="priority")
        ends: list[str] = []
        process = llm._outputs.process

        def noting_process(outputs: StepOutputs) -> Any:
            processed = process(outputs)
            ends.extend(output.request_id for output in processed.outputs if output.finished)
            return processed

        monkeypatch.setattr(llm._outputs, "process", noting_process)
        llm.generate([[20] * 30] * 4, GREEDY, use_tqdm=False, priority=[3, 2, 1, 0])
        assert ends == sorted(ends, key=int, reverse=True)

    def test_one_parameter_object_for_each_prompt(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequestError, match="2 prompts but 3 sampling_params"):
            llm.generate(["a", "b"], [GREEDY] * 3, use_tqdm=False)

    def test_parameters_of_the_caller_stay_as_they_are(self, llm: LLM) -> None:
        params = seeded(1, stop="x", bad_words=["tea"], logit_bias={3: 1.0})
        before = repr(params)
        llm.generate(["a", "b"], params, use_tqdm=False)
        assert repr(params) == before

    def test_without_a_tokenizer(self, start: Start) -> None:
        llm = start(skip_tokenizer_init=True)
        (output,) = llm.generate([1, 2, 3], GREEDY, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 12 and output.outputs[0].text == ""
        with pytest.raises(InvalidRequestError, match="without a tokenizer"):
            llm.generate("text", GREEDY, use_tqdm=False)
        with pytest.raises(ConfigError):
            llm.get_tokenizer()
        with pytest.raises(ConfigError):
            llm.chat([{"role": "user", "content": "hi"}])


class TestChat:
    def test_conversations_are_rendered(self, llm: LLM) -> None:
        messages = [{"role": "user", "content": "tea"}]
        (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
        assert output.prompt_token_ids == llm.get_tokenizer().encode("<user>tea<A>")
        (bare,) = llm.chat(messages, GREEDY, use_tqdm=False, add_generation_prompt=False)
        assert bare.prompt_token_ids == llm.get_tokenizer().encode("<user>tea")
        both = llm.chat([messages, [*messages, {"role": "assistant", "content": "no"}]], GREEDY, use_tqdm=False)
        assert texts_of(both)[0] == output.outputs[0].text and len(both) == 2

    def test_a_template_of_the_call(self, llm: LLM) -> None:
        messages = [{"role": "user", "content": "tea"}]
        (output,) = llm.chat(
            messages,
            GREEDY,
            use_tqdm=False,
            chat_template="{{ mood }}{{ messages[0].content }}",
            chat_template_kwargs={"mood": "sad"},
        )
        assert output.prompt_token_ids == llm.get_tokenizer().encode("sadtea")

    @pytest.mark.parametrize(
        "template", ["{{ raise_exception('no') }}", "{% for i in range(10**12) %}x{% endfor %}", "{{", "{{ x.y.z }}"]
    )
    def test_a_template_that_fails_is_an_error_of_the_call(self, llm: LLM, template: str) -> None:
        with pytest.raises(ChatTemplateError):
            llm.chat([{"role": "user", "content": "tea"}], GREEDY, use_tqdm=False, chat_template=template)

    def test_an_empty_conversation_is_refused(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequestError):
            llm.chat([], GREEDY, use_tqdm=False)


class TestSampling:
    def test_one_seed_gives_one_text_in_any_batch(self, llm: LLM) -> None:
        (alone,) = llm.generate("tea", seeded(5), use_tqdm=False)
        crowd = [seeded(number) for number in range(4)] + [seeded(5)] + [SamplingParams(max_tokens=20)] * 20
        outputs = llm.generate(["tea"] * 25, crowd, use_tqdm=False)
        assert ids_of(outputs)[4] == ids_of([alone])[0]
        assert len({str(ids) for ids in ids_of(outputs)[:5]}) == 5

    def test_requests_without_a_seed_differ(self, llm: LLM) -> None:
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        assert len(set(texts_of(llm.generate(["tea"] * 8, params, use_tqdm=False)))) > 4

    def test_completions_of_one_prompt_share_its_blocks(self, start: Start) -> None:
        # 64 tokens of prompt take 16 blocks; eight copies and what follows would not fit 50.
        llm = start(num_gpu_blocks_override=50, max_model_len=80, enable_prefix_caching=False)
        (output,) = llm.generate([7] * 64, seeded(3, n=8, max_tokens=8), use_tqdm=False)
        assert [completion.index for completion in output.outputs] == list(range(8))
        assert len({tuple(completion.token_ids) for completion in output.outputs}) == 8
        assert stats_of(llm).num_preemptions == 0
        assert_nothing_left(llm)

    def test_completion_i_is_that_of_seed_plus_i(self, llm: LLM) -> None:
        (output,) = llm.generate("tea", seeded(10, n=3), use_tqdm=False)
        singles = llm.generate(["tea"] * 3, [seeded(10 + index) for index in range(3)], use_tqdm=False)
        assert texts_of([output]) == texts_of(singles)

    def test_logprobs(self, llm: LLM) -> None:
        params = seeded(1, logprobs=3, prompt_logprobs=2, max_tokens=5)
        (output,) = llm.generate([9, 8, 7, 6], params, use_tqdm=False)
        (completion,) = output.outputs
        assert completion.logprobs is not None and output.prompt_logprobs is not None
        assert len(completion.logprobs) == 5
        for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
            assert token_id in position and 3 <= len(position) <= 4
            top = [entry.rank for other, entry in position.items() if other != token_id or len(position) == 3]
            assert sorted(rank for rank in top if rank is not None) == [1, 2, 3]
        total = sum(
            position[token_id].logprob
            for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True)
        )
        assert completion.cumulative_logprob == pytest.approx(total)
        assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == 4
        assert [
            token_id in (position or {})
            for token_id, position in zip([8, 7, 6], output.prompt_logprobs[1:], strict=True)
        ] == [True] * 3

    def test_flat_logprobs_are_the_same(self, llm: LLM) -> None:
        plain, flat = (
            llm.generate([[8, 7, 6]], seeded(1, logprobs=3, prompt_logprobs=2, flat_logprobs=is_flat), use_tqdm=False)[
                0
            ]
            for is_flat in (False, True)
        )
        logprobs, prompt_logprobs = flat.outputs[0].logprobs, flat.prompt_logprobs
        assert isinstance(logprobs, FlatLogprobs) and isinstance(prompt_logprobs, FlatLogprobs)
        assert list(logprobs) == plain.outputs[0].logprobs
        assert plain.prompt_logprobs is not None
        assert list(prompt_logprobs) == [{}, *plain.prompt_logprobs[1:]]

    def test_prompt_logprobs_are_the_same_behind_a_cached_prefix(self, llm: LLM) -> None:
        params = seeded(1, prompt_logprobs=0)
        prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
        first, second = (llm.generate(prompt, params, use_tqdm=False)[0].prompt_logprobs for _ in range(2))
        assert first == second and first is not None and len(first) == 14

    def test_the_whole_vocabulary(self, start: Start) -> None:
        llm = start(max_logprobs=-1)
        (output,) = llm.generate([1], seeded(1, logprobs=-1, max_tokens=1), use_tqdm=False)
        (position,) = output.outputs[0].logprobs or []
        assert len(position) == VOCAB_SIZE
        assert sum(math.exp(entry.logprob) for entry in position.values()) == pytest.approx(1, abs=1e-4)

    def test_more_logprobs_than_allowed(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequestError, match="at most 20"):
            llm.generate("a", SamplingParams(logprobs=21), use_tqdm=False)

    def test_stop_string_across_tokens(self, llm: LLM) -> None:
        (free,) = llm.generate("tea", seeded(4, max_tokens=40), use_tqdm=False)
        text = free.outputs[0].text
        # Where the stop string begins and ends has nothing to do with where tokens do.
        for begin, end in ((5, 8), (9, 16), (11, 12)):
            stop = text[begin:end]
            (cut,) = llm.generate("tea", seeded(4, max_tokens=40, stop=["never seen", stop]), use_tqdm=False)
            (kept,) = llm.generate(
                "tea", seeded(4, max_tokens=40, stop=stop, include_stop_str_in_output=True), use_tqdm=False
            )
            expected = text[: text.index(stop)]
            assert (cut.outputs[0].text, kept.outputs[0].text) == (expected, expected + stop)
            assert cut.outputs[0].finish_reason == "stop" and cut.outputs[0].stop_reason == stop
            assert len(cut.outputs[0].token_ids) < 40

    def test_stop_token(self, llm: LLM) -> None:
        (free,) = llm.generate([1], seeded(4), use_tqdm=False)
        stop = free.outputs[0].token_ids[5]
        (output,) = llm.generate([1], seeded(4, stop_token_ids=[stop]), use_tqdm=False)
        assert list(output.outputs[0].token_ids) == list(
            free.outputs[0].token_ids[: list(free.outputs[0].token_ids).index(stop) + 1]
        )
        assert output.outputs[0].stop_reason == stop

    def test_end_of_sequence(self, llm: LLM) -> None:
        wanted = {"logit_bias": {EOS: 100.0}, "ignore_eos": False, "max_tokens": 6}
        (output,) = llm.generate([1], seeded(1, **wanted), use_tqdm=False)
        assert list(output.outputs[0].token_ids) == [EOS]
        assert output.outputs[0].finish_reason == "stop" and output.outputs[0].stop_reason is None
        (later,) = llm.generate([1], seeded(1, **wanted, min_tokens=3), use_tqdm=False)
        assert len(later.outputs[0].token_ids) == 4 and EOS not in later.outputs[0].token_ids[:3]
        (never,) = llm.generate([1], seeded(1, **(wanted | {"ignore_eos": True})), use_tqdm=False)
        assert list(never.outputs[0].token_ids) == [EOS] * 6 and never.outputs[0].text == ""

    def test_masks(self, llm: LLM) -> None:
        allowed = [40, 41, 42]
        (output,) = llm.generate([1], seeded(1, allowed_token_ids=allowed, max_tokens=30), use_tqdm=False)
        assert set(output.outputs[0].token_ids) == set(allowed)
        (biased,) = llm.generate([1], seeded(1, logit_bias={77: 100.0}), use_tqdm=False)
        assert set(biased.outputs[0].token_ids) == {77}

    def test_bad_words(self, llm: LLM) -> None:
        only = llm.get_tokenizer().encode("x y")
        params = seeded(1, allowed_token_ids=only, max_tokens=60, n=4)
        assert "x y" in "|".join(texts_of(llm.generate("a", params, use_tqdm=False)))
        params.bad_words = ["x y"]
        text = "|".join(texts_of(llm.generate("a", params, use_tqdm=False)))
        assert "x y" not in text and set(text) == set("x y|")

    def test_without_text(self, llm: LLM) -> None:
        (output,) = llm.generate("tea", seeded(1, detokenize=False), use_tqdm=False)
        assert output.outputs[0].text == "" and len(output.outputs[0].token_ids) == 12

    def test_text_is_that_of_all_tokens_at_once(self, llm: LLM) -> None:
        # Random bytes: many characters begin in one token and end in another, or never.
        for number in range(10):
            (output,) = llm.generate("tea", seeded(number, max_tokens=40, stop=["never seen"]), use_tqdm=False)
            assert output.outputs[0].text == llm.get_tokenizer().decode(
                list(output.outputs[0].token_ids), skip_special_tokens=True
            )


class OnlyToken(AdapterLogitsProcessor):
    """Lets a request that asks for it have one token only."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if (sampling_params.extra_args or {}).get("only") == "nonsense":
            raise ValueError("only must be a token id")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        token_id = (params.extra_args or {}).get("only")
        if token_id is None:
            return None

        def process(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if token_id == "raise":
                raise RuntimeError("a bug in the processor")
            mask = torch.full_like(logits, -torch.inf)
            mask[token_id] = 0
            return mask

        return process


def test_custom_logits_processor(start: Start) -> None:
    llm = start(logits_processors=[OnlyToken])
    params = [seeded(1, extra_args={"only": 33}), seeded(2), seeded(3, extra_args={"only": 44}, max_tokens=3)]
    first, free, second = llm.generate([[1], [2], [3]], params, use_tqdm=False)
    assert list(first.outputs[0].token_ids) == [33] * 12
    assert list(second.outputs[0].token_ids) == [44] * 3
    assert list(free.outputs[0].token_ids) == ids_of(llm.generate([2], seeded(2), use_tqdm=False))[0][0]
    with pytest.raises(RequestFailedError):
        llm.generate([[1], [2]], [seeded(1, extra_args={"only": "raise"}), seeded(2)], use_tqdm=False)
    assert_nothing_left(llm)
    assert ids_of(llm.generate([2], seeded(2), use_tqdm=False)) == ids_of([free])


class TestInterruption:
    def test_ctrl_c_leaves_the_model_usable(self, llm: LLM) -> None:
        before = texts_of(llm.generate(["tea", "sea"], GREEDY, use_tqdm=False))
        step = llm._engine.step
        num_steps = 0

        def interrupted_step() -> Any:
            nonlocal num_steps
            num_steps += 1
            if num_steps == 4:
                raise KeyboardInterrupt
            return step()

        llm._engine.step = interrupted_step  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["tea", "sea", "a" * 50] * 10, SamplingParams(max_tokens=50), use_tqdm=False)
        finally:
            del llm._engine.step
        assert_nothing_left(llm)
        assert texts_of(llm.generate(["tea", "sea"], GREEDY, use_tqdm=False)) == before

    @pytest.mark.parametrize("is_ahead", [False, True])
    def test_ctrl_c_within_a_step_does_so_too(self, start: Start, is_ahead: bool) -> None:
        llm = start(async_scheduling=is_ahead)
        before = texts_of(llm.generate(["tea", "sea"], GREEDY, use_tqdm=False))
        executor = llm._engine.executor
        submit = executor.submit
        num_steps = 0

        def interrupted_submit(step: Step) -> Any:
            nonlocal num_steps
            num_steps += 1
            if num_steps == 4:
                raise KeyboardInterrupt
            return submit(step)

        executor.submit = interrupted_submit  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["tea", "sea", "a" * 50] * 10, SamplingParams(max_tokens=50), use_tqdm=False)
        del executor.submit
        assert texts_of(llm.generate(["tea", "sea"], GREEDY, use_tqdm=False)) == before
        assert_nothing_left(llm)


class TestPrefixCache:
    PROMPT = tuple(range(10, 31))  # five blocks of four, and one token

    def cached(self, llm: LLM, prompt: Any, **changes: Any) -> int | None:
        return llm.generate(prompt, seeded(1, **changes), use_tqdm=False)[0].num_cached_tokens

    def test_prefixes_are_found(self, llm: LLM) -> None:
        assert self.cached(llm, self.PROMPT) == 0
        assert self.cached(llm, self.PROMPT) == 20
        assert self.cached(llm, [*self.PROMPT[:9], 99, 98]) == 8
        assert self.cached(llm, self.PROMPT[:20]) == 16  # one token has to be computed
        assert self.cached(llm, self.PROMPT, skip_reading_prefix_cache=True) == 0

    def test_salts_keep_tenants_apart(self, llm: LLM) -> None:
        def salted(salt: str) -> dict[str, Any]:
            return {"prompt_token_ids": self.PROMPT, "cache_salt": salt}

        assert [self.cached(llm, salted(salt)) for salt in ("one", "two", "one")] == [0, 0, 20]
        assert self.cached(llm, self.PROMPT) == 0

    def test_answers_are_found_too(self, llm: LLM) -> None:
        (output,) = llm.generate(self.PROMPT, GREEDY, use_tqdm=False)
        conversation = [*self.PROMPT, *output.outputs[0].token_ids, 5, 6]
        assert self.cached(llm, conversation) == 32

    def test_reset_forgets(self, llm: LLM) -> None:
        self.cached(llm, self.PROMPT)
        assert llm.reset_prefix_cache()
        assert self.cached(llm, self.PROMPT) == 0

    def test_switched_off(self, start: Start) -> None:
        llm = start(enable_prefix_caching=False)
        assert [self.cached(llm, self.PROMPT) for _ in range(2)] == [0, 0]

    def test_hits_change_nothing(self, start: Start, llm: LLM) -> None:
        prompts = [self.PROMPT, self.PROMPT[:15], [*self.PROMPT[:8], 3, 4, 5]]
        cold = ids_of(start(enable_prefix_caching=False).generate(prompts, GREEDY, use_tqdm=False))
        for _ in range(3):
            assert ids_of(llm.generate(prompts, GREEDY, use_tqdm=False)) == cold


class TestScarceBlocks:
    @pytest.mark.usefixtures("hasty_admission")
    def test_preempted_requests_get_the_same_text(self, start: Start, llm: LLM) -> None:
        prompts = [[number + 5] * 20 for number in range(10)]
        params = [seeded(number, max_tokens=30, logprobs=1) for number in range(10)]
        scarce = start(num_gpu_blocks_override=40, max_model_len=64)
        outputs = scarce.generate(prompts, params, use_tqdm=False)
        assert stats_of(scarce).num_preemptions > 0
        assert ids_of(outputs) == ids_of(llm.generate(prompts, params, use_tqdm=False))
        assert all(len(output.outputs[0].logprobs or []) == 30 for output in outputs)
        assert_nothing_left(scarce)

    def test_sliding_windows_give_blocks_back(self, start: Start, tmp_path: Path) -> None:
        # Eight sequences of 200 tokens would take 400 blocks of full attention.
        windowed = write_model(tmp_path / "windowed", window=16)
        llm = start(windowed, num_gpu_blocks_override=120, max_num_batched_tokens=32)
        outputs = llm.generate([[number + 1] * 100 for number in range(8)], seeded(1, max_tokens=100), use_tqdm=False)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [100] * 8
        assert stats_of(llm).num_preemptions == 0
        assert_nothing_left(llm)


class TestBrokenWeights:
    BAD_TOKEN = 99

    @pytest.fixture
    def broken(self, tmp_path: Path) -> Path:
        """A model in which one token's embedding is not a number."""
        folder = write_model(tmp_path / "broken")
        tensors = load_file(folder / "model.safetensors")
        tensors["model.embed_tokens.weight"][self.BAD_TOKEN] = torch.nan
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def test_only_the_request_that_meets_it_fails(self, start: Start, llm: LLM, broken: Path) -> None:
        prompts = [[number + 1] * 9 for number in range(6)]
        params = seeded(1, logit_bias={self.BAD_TOKEN: -100.0}, max_tokens=20)
        expected = ids_of(llm.generate(prompts, params, use_tqdm=False))
        damaged = start(broken, num_gpu_blocks_override=60, max_model_len=40)
        assert ids_of(damaged.generate(prompts, params, use_tqdm=False)) == expected
        poisoned = [*prompts[:3], [1, 1, 1, 1, 1, self.BAD_TOKEN, 1, 1], *prompts[3:]]
        with pytest.raises(RequestFailedError, match="not a number"):
            damaged.generate(poisoned, params, use_tqdm=False)
        assert_nothing_left(damaged)
        # The blocks in which it wrote are used again and again.
        for _ in range(3):
            assert ids_of(damaged.generate(prompts, params, use_tqdm=False)) == expected
        with pytest.raises(RequestFailedError, match="not a number"):
            damaged.generate([poisoned[3]], params, use_tqdm=False)


@pytest.fixture(scope="module")
def demo() -> Iterator[LLM]:
    llm = LLM(
        "bundled:smollm2", max_model_len=256, kv_cache_memory_bytes=64 << 20, num_threads=1, use_tqdm_on_load=False
    )
    yield llm
    llm.shutdown()


class TestDemoModel:
    def test_it_knows_a_capital(self, demo: LLM) -> None:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        (output,) = demo.chat(messages, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
        assert "Paris" in output.outputs[0].text
        assert output.metrics is not None and output.metrics.num_generation_tokens == len(output.outputs[0].token_ids)

    def test_final_message_goes_on(self, demo: LLM) -> None:
        messages = [
            {"role": "user", "content": "What is the capital of France?"},
            {"role": "assistant", "content": "The capital of France is"},
        ]
        (output,) = demo.chat(
            messages,
            SamplingParams(temperature=0, max_tokens=3),
            use_tqdm=False,
            add_generation_prompt=False,
            continue_final_message=True,
        )
        assert output.outputs[0].text.startswith(" Paris")

    def test_defaults_come_from_the_model(self, demo: LLM) -> None:
        params = demo.get_default_sampling_params()
        assert isinstance(params, SamplingParams)
        assert (params.temperature, params.top_p) == (0.2, 0.9), "the model card's values"
        assert SamplingParams().temperature == 1.0
        (prepared,) = demo._prepare(["One plus one is"], SamplingParams(), None, None)
        assert (prepared.params.temperature, prepared.params.top_p) == (1.0, 1.0), "explicit ones stay as they are"
        (output,) = demo.generate("One plus one is", use_tqdm=False)
        assert output.outputs[0].text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_seq": 3}, "max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 4096}, "512"),
        ({"num_gpu_blocks_override": 3}, "does not fit"),
        ({"logits_processors": [int]}, "LogitsProcessor"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(start: Start, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start(**settings)


def test_shutdown_gives_the_model_back_at_once(folder: Path) -> None:
    llm = LLM(str(folder), **SETTINGS)
    executor = llm._engine.executor
    assert isinstance(executor, InProcessExecutor) and executor.worker._runner is not None
    model = weakref.ref(executor.worker.model)
    gc.disable()
    try:
        llm.shutdown()
        assert model() is None
    finally:
        gc.enable()


def test_finished_requests_are_freed_by_reference_counting(folder: Path) -> None:
    llm = LLM(str(folder), **SETTINGS)
    gc.collect()
    gc.disable()
    try:
        llm.generate(["one", "two"], SamplingParams(max_tokens=3, ignore_eos=True))
        alive = [found for found in gc.get_objects() if isinstance(found, (EngineRequest, Request))]
    finally:
        gc.enable()
        llm.shutdown()
    assert alive == []
