"""Beam search of the offline entry point."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from tqdm import tqdm

from octavo.errors import InvalidRequestError
from octavo.inputs.foreign import reject_foreign
from octavo.inputs.frontend import TextFrontend
from octavo.inputs.processor import InputProcessor
from octavo.llm_pooling import NoBar, as_prompts, one_each
from octavo.outputs.beam_search import PromptSearch
from octavo.records import (
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
    PreparedRequest,
    PromptType,
    RequestOutput,
    SamplingParams,
    TokensPrompt,
)


class BeamSearchMixin(ABC):
    """The beam search of :class:`octavo.LLM`, with vLLM's interface."""

    _frontend: TextFrontend
    _inputs: InputProcessor
    _request_ids: "count[int]"

    @abstractmethod
    def _run(
        self, prepared: Iterable[PreparedRequest], total: int, use_tqdm: bool | Callable[..., tqdm]
    ) -> list[RequestOutput]:
        """Run the requests to completion."""

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: object = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of prompts, by beam search.

        Each token of each text is one request; the prefix cache makes them cheap.

        Args:
            lora_request: not supported.
            use_tqdm: show a progress bar over the prompts.
            concurrency_limit: most prompts to work on at a time; None is all.
            priority: for all prompts, or one for each.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing has run then.
            RequestFailedError: a request failed in the engine.
        """
        reject_foreign(lora_request=lora_request)
        items = as_prompts(prompts)
        priorities = one_each(priority or 0, len(items), "priority")
        if concurrency_limit is not None and concurrency_limit < 1:
            raise InvalidRequestError(
                f"concurrency_limit must be at least 1, got {concurrency_limit}.", "concurrency_limit"
            )
        params.verify()
        jobs = [
            self._begin_search(prompt, params, priority) for prompt, priority in zip(items, priorities, strict=True)
        ]
        size = concurrency_limit or max(1, len(jobs))
        with tqdm(total=len(jobs), desc="Beam search", dynamic_ncols=True, disable=not use_tqdm) as bar:
            for start in range(0, len(jobs), size):
                self._search(jobs[start : start + size], bar)
        return [BeamSearchOutput(self._sequences(prepared, search)) for prepared, search in jobs]

    def _begin_search(
        self, prompt: PromptType, params: BeamSearchParams, priority: int
    ) -> tuple[PreparedRequest, PromptSearch]:
        request_id = str(next(self._request_ids))
        asked = SamplingParams(temperature=0.0, max_tokens=params.max_tokens)
        prepared = self._inputs.process(request_id, prompt, asked, priority=priority)
        return prepared, PromptSearch.of(prepared, params, self._inputs.max_logprobs)

    def _search(self, jobs: list[tuple[PreparedRequest, PromptSearch]], bar: tqdm | NoBar) -> None:
        """Run searches to their ends, a token of each of their texts at a time."""
        while running := [job for job in jobs if not job[1].is_over]:
            requests: list[PreparedRequest] = []
            sizes = []
            for prepared, search in running:
                prompts = search.prompts
                sizes.append(len(prompts))
                requests += [self._step_request(prepared, prompt, search.step_params) for prompt in prompts]
            outputs = self._run(requests, len(requests), False)
            for (_, search), size in zip(running, sizes, strict=True):
                search.advance(outputs[:size])
                del outputs[:size]
                bar.update(search.is_over)

    def _step_request(self, prepared: PreparedRequest, prompt: TokensPrompt, params: SamplingParams) -> PreparedRequest:
        request = prepared.children[0]
        return self._inputs.process(
            str(next(self._request_ids)), prompt, params, priority=request.priority, cache_salt=request.cache_salt
        )

    def _sequences(self, prepared: PreparedRequest, search: PromptSearch) -> list[BeamSearchSequence]:
        prompt = TokensPrompt(prompt_token_ids=prepared.prompt_token_ids)
        if prepared.prompt_text is not None:
            prompt["prompt"] = prepared.prompt_text
        tokenizer = self._frontend.tokenizer
        prompt_text = (
            "" if tokenizer is None else tokenizer.decode(prepared.prompt_token_ids, search.skip_special_tokens)
        )
        return [
            BeamSearchSequence(
                prompt,
                [*prepared.prompt_token_ids, *beam.token_ids],
                list(beam.logprobs),
                cum_logprob=beam.cum_logprob,
                text=None if tokenizer is None else prompt_text + completion.text,
                finish_reason=completion.finish_reason,
                stop_reason=beam.end_token,
            )
            for beam, completion in zip(search.best(), search.completions(tokenizer, None), strict=True)
        ]
