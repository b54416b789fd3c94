"""The offline entry point's queue: requests are added first and answered later, all together."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from octavo.engine.core import EngineCore
from octavo.errors import InvalidRequestError
from octavo.garbage import give_memory_back
from octavo.inputs.foreign import reject_foreign
from octavo.llm_engine import LLMEngine
from octavo.llm_pooling import Bar, as_prompts, progress_bar
from octavo.outputs.pooling import Pooled
from octavo.outputs.processor import error_of
from octavo.records import PreparedRequest, PromptType, RequestOutput, SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None


class QueueMixin(ABC):
    """The request queue of :class:`octavo.LLM`, with vLLM's interface."""

    llm_engine: LLMEngine
    _engine: EngineCore
    _enqueued: list[str]

    @abstractmethod
    def _prepare(
        self,
        prompts: list[PromptType],
        sampling_params: Params,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: dict[str, Any] | None,
    ) -> Iterator[PreparedRequest]:
        """Check arguments at once, then check and tokenise one request after the other."""

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        lora_request: object = None,
        priority: int | Sequence[int] | None = None,
        use_tqdm: Bar = True,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: object = None,
    ) -> list[str]:
        """Add requests that :meth:`wait_for_completion` answers.

        The arguments are those of :meth:`octavo.LLM.generate`, but for one.

        Args:
            use_tqdm: show a progress bar while they are tokenised, or the class to show it with.

        Returns:
            Their ids, in order.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; none of these requests is added then.
        """
        reject_foreign(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        items = as_prompts(prompts)
        prepared: list[PreparedRequest] = []
        with progress_bar(use_tqdm, len(items), "Rendering prompts") as bar:
            for request in self._prepare(items, sampling_params, priority, tokenization_kwargs):
                prepared.append(request)
                bar.update()
        request_ids = [request.request_id for request in prepared]
        try:
            for request in prepared:
                self.llm_engine.submit(request)
        except BaseException:
            self.llm_engine.abort_request(request_ids)
            raise
        self._enqueued += request_ids
        return request_ids

    def wait_for_completion(
        self, output_type: type[Any] | tuple[type[Any], ...] | None = None, *, use_tqdm: Bar = True
    ) -> list[Any]:
        """Run all requests of the engine to their ends.

        Args:
            output_type: what the outputs are expected to be.
            use_tqdm: show a progress bar, or the class to show it with.

        Returns:
            Outputs of enqueued requests in their order, then those of requests that were added to ``llm_engine``.

        Raises:
            InvalidRequestError: the engine sleeps, or an output is of another type.
            RequestFailedError: a request failed in the engine. In any case no request is left behind, unless the
                engine sleeps.
        """
        self._engine.check_awake()
        engine = self.llm_engine
        order = {request_id: place for place, request_id in enumerate(self._enqueued)}
        done: list[RequestOutput | Pooled] = []
        try:
            with progress_bar(use_tqdm, engine.get_num_unfinished_requests()) as bar:
                while engine.has_unfinished_requests():
                    finished = [output for output in engine.step() if output.finished]
                    done += (_checked(output, output_type) for output in finished)
                    bar.update(len(finished))
        finally:
            engine.abort_all_requests()
            self._enqueued = []
            give_memory_back()
        return sorted(done, key=lambda output: order.get(output.request_id, len(order)))


def _checked(output: RequestOutput | Pooled, output_type: type[Any] | tuple[type[Any], ...] | None) -> Any:
    if (error := error_of(output)) is not None:
        raise error
    if output_type is not None and not isinstance(output, output_type):
        raise InvalidRequestError(f"The output of {output.request_id!r} is a {type(output).__name__}.", "output_type")
    return output
