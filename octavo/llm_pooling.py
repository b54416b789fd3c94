"""The offline entry point for pooling models: embeddings, classes, scores."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from tqdm import tqdm

from octavo.engine.core import EngineCore
from octavo.errors import InvalidRequestError
from octavo.inputs.foreign import reject_foreign
from octavo.inputs.frontend import TextFrontend
from octavo.inputs.pooling import PoolingOptions, PoolingProcessor
from octavo.inputs.scoring import Outputs, Score, ScoringJob, ScoringOptions, make_pairs, proceed, score_pairs
from octavo.outputs.pooling import Pooled, PoolingOutputs, checked
from octavo.records import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingParams,
    PoolingTask,
    PreparedRequest,
    PromptType,
    ScoringOutput,
    ScoringRequestOutput,
)

Params = PoolingParams | Sequence[PoolingParams] | None
Bar = bool | Callable[..., tqdm]


class PoolingMixin:
    """The pooling methods of :class:`octavo.LLM`, with vLLM's interface."""

    _engine: EngineCore
    _frontend: TextFrontend
    _request_ids: "count[int]"

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: Params = None,
        *,
        use_tqdm: Bar = True,
        lora_request: object = None,
        pooling_task: PoolingTask | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[Pooled]:
        """Vectors as they come from the model.

        Args:
            prompts: one prompt or several, as :meth:`octavo.LLM.generate` takes them.
            pooling_params: for all prompts, or one for each.
            pooling_task: ``embed``, ``classify``, ``token_embed`` or ``token_classify``; None is what the model is for.
            tokenization_kwargs: ``truncate_prompt_tokens``, ``truncation_side`` and ``add_special_tokens``.
            lora_request: not supported.

        Returns:
            One output per prompt, in order; its tensor is at ``outputs.data``.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong, or the model generates text; nothing has run then.
            RequestFailedError: a request failed in the engine.
        """
        reject_foreign(lora_request=lora_request)
        items = as_prompts(prompts)
        given = one_each(pooling_params, len(items), "pooling_params")
        processor, options = self._pooling_processor(), _options(tokenization_kwargs)
        prepared = [
            processor.process(str(next(self._request_ids)), prompt, params, pooling_task, options)
            for prompt, params in zip(items, given, strict=True)
        ]
        return self._pool(prepared, use_tqdm)

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: Bar = True,
        pooling_params: Params = None,
        lora_request: object = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """An embedding for each prompt; arguments and errors as of :meth:`encode`."""
        options: dict[str, Any] = {"use_tqdm": use_tqdm, "tokenization_kwargs": tokenization_kwargs}
        outputs = self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="embed", **options)
        return [
            EmbeddingRequestOutput(name, EmbeddingOutput(values), token_ids, num_cached, True)
            for name, values, token_ids, num_cached in map(_fields, outputs)
        ]

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: object = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Probabilities of classes for each prompt; arguments and errors as of :meth:`encode`."""
        options: dict[str, Any] = {"use_tqdm": use_tqdm, "tokenization_kwargs": tokenization_kwargs}
        outputs = self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="classify", **options)
        return [
            ClassificationRequestOutput(name, ClassificationOutput(values), token_ids, num_cached, True)
            for name, values, token_ids, num_cached in map(_fields, outputs)
        ]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        use_tqdm: Bar = True,
        pooling_params: PoolingParams | None = None,
        lora_request: object = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts match: one with each of several, or text by text.

        A cross-encoder reads both texts at once; an embedding model gives the cosine of their embeddings, a
        late-interaction model the sum of each query token's best match.

        Raises:
            InvalidRequestError: as of :meth:`encode`; also if the numbers of texts do not go together.
        """
        reject_foreign(lora_request=lora_request)
        pairs = make_pairs(_as_texts(data_1, "data_1"), _as_texts(data_2, "data_2"))
        options = ScoringOptions(_options(tokenization_kwargs))
        ids = (str(next(self._request_ids)) for _ in count())
        job = score_pairs(self._pooling_processor(), pairs, ids.__next__, pooling_params, options)
        return [
            ScoringRequestOutput(
                str(next(self._request_ids)), ScoringOutput(score.value), score.token_ids, score.num_cached, True
            )
            for score in self._finish(job, use_tqdm)
        ]

    def _pooling_processor(self) -> PoolingProcessor:
        return PoolingProcessor(self._engine.info, self._frontend.tokenizer, self._frontend.own_template)

    def _finish(self, job: ScoringJob, use_tqdm: Bar) -> list[Score]:
        outputs: Outputs | None = None
        while True:
            requests, scores = proceed(job, outputs)
            if not requests:
                return scores
            outputs = self._pool(requests, use_tqdm)

    def _pool(self, prepared: list[PreparedRequest], use_tqdm: Bar) -> Outputs:
        """Run requests to their end, and none of them any further if one fails."""
        in_flight = PoolingOutputs()
        self._engine.check_awake()
        done: dict[str, Pooled] = {}
        try:
            with progress_bar(use_tqdm, len(prepared)) as bar:

                def take(output: Pooled) -> None:
                    done[output.request_id] = checked(output)
                    bar.update()

                for request in prepared:
                    in_flight.add_request(request, take)
                    self._engine.add_request(request.children[0])
                while len(in_flight):
                    in_flight.process(self._engine.step())
        finally:
            self._engine.abort(in_flight.abort([request.request_id for request in prepared]))
        return [done[request.request_id] for request in prepared]


def _fields(output: Pooled) -> tuple[str, list[float], list[int], int]:
    values = output.outputs.array.tolist()
    return output.request_id, values, output.prompt_token_ids, output.num_cached_tokens


def as_prompts(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """One prompt or several, as a list; a list of token ids is one prompt."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [items]  # type: ignore[list-item]
    return items  # type: ignore[return-value]


def one_each(value: Any, num_prompts: int, name: str) -> list[Any]:
    """One value per prompt, from one for all or a sequence.

    Raises:
        InvalidRequestError: the sequence has another length.
    """
    if not isinstance(value, Sequence):
        return [value] * num_prompts
    if len(value) != num_prompts:
        raise InvalidRequestError(f"There are {num_prompts} prompts but {len(value)} {name}.", name)
    return list(value)


class NoBar(AbstractContextManager["NoBar"]):
    """In place of a progress bar that nobody sees: tqdm's takes as long as a scheduler's step."""

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        """Show nothing."""


def progress_bar(use_tqdm: Bar, total: int, title: str = "Processed prompts") -> "tqdm | NoBar":
    """A progress bar over requests, of the given class if there is one."""
    if not use_tqdm:
        return NoBar()
    make = use_tqdm if callable(use_tqdm) else tqdm
    return make(total=total, desc=title, dynamic_ncols=True)


def _as_texts(texts: str | Sequence[str], name: str) -> list[str]:
    items = [texts] if isinstance(texts, str) else list(texts)
    if not all(isinstance(text, str) for text in items):
        raise InvalidRequestError(f"{name} must be a string or a list of texts.", name)
    return items


def _options(tokenization_kwargs: dict[str, Any] | None) -> PoolingOptions:
    kwargs = tokenization_kwargs or {}
    unknown = [
        name for name in kwargs if name not in ("truncate_prompt_tokens", "truncation_side", "add_special_tokens")
    ]
    if unknown:
        raise InvalidRequestError(f"tokenization_kwargs does not take {unknown[0]!r}.", "tokenization_kwargs")
    if kwargs.get("truncation_side", "right") not in ("left", "right"):
        raise InvalidRequestError("truncation_side must be 'left' or 'right'.", "truncation_side")
    return PoolingOptions(**kwargs)
