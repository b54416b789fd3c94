"""Arrival of requests: rejects those that can never run, and prepares the others."""

from collections.abc import Sequence

import numpy as np

from octavo.cache import CacheManager, PrefixHasher, RequestCache
from octavo.errors import InvalidRequestError
from octavo.records import EngineRequest, KeySpan, Plan
from octavo.sampling.rules import TokenRule
from octavo.scheduling.completion import Completion, make_completion
from octavo.scheduling.request import Request


class RequestArrival:
    """Makes requests of what frontends send."""

    def __init__(self, plan: Plan, cache: CacheManager) -> None:
        self._plan = plan
        self._cache = cache

    def receive(self, source: EngineRequest, order: int, rules: Sequence[TokenRule] = ()) -> Request:
        """The request, as number ``order`` of all arrivals.

        Raises:
            InvalidRequestError: its prompt leaves no room for a token, or it can never fit the cache.
        """
        plan = self._plan
        completion = make_completion(source, plan.max_model_len, rules, has_routed_experts=plan.routing is not None)
        self._check_prompt(completion)
        if not self._cache.fits(completion.max_len):
            raise InvalidRequestError(
                f"The request may grow to {completion.max_len} tokens, more than the cache's "
                f"{self._plan.num_blocks - 1} blocks of {self._plan.block_size} tokens hold; lower max_tokens or give "
                "the engine more cache memory."
            )
        return Request(
            completion=completion,
            rank=(source.priority if self._plan.scheduling_policy == "priority" else 0, order),
            cache=self._new_cache(source),
            token_ids=np.concatenate((source.prompt_token_ids, source.output_token_ids)),
        )

    def _check_prompt(self, completion: Completion) -> None:
        """Check that the prompt leaves room for an answer.

        Raises:
            InvalidRequestError: it does not.
        """
        plan, num_prompt = self._plan, len(completion.source.prompt_token_ids)
        if num_prompt == 0:
            raise InvalidRequestError("The prompt is empty.", "prompt")
        if num_prompt + completion.min_new_tokens > plan.max_model_len:
            raise InvalidRequestError(
                f"The prompt has {num_prompt} tokens; the engine takes at most {plan.max_model_len}"
                + (", prompt and answer together." if completion.min_new_tokens else "."),
                "prompt",
            )
        if not plan.enable_chunked_prefill and num_prompt > plan.token_budget:
            raise InvalidRequestError(
                f"The prompt has {num_prompt} tokens; without chunked prefill at most {plan.token_budget} fit a step.",
                "prompt",
            )

    def _new_cache(self, source: EngineRequest) -> RequestCache:
        """An empty cache share. Without prefix caching, only completions of one prompt share blocks."""
        spans = [*source.key_spans]
        if source.cache_salt:
            spans.append(KeySpan.of_request(source.cache_salt, "cache_salt"))
        if not self._plan.enable_prefix_caching:
            if source.leader_id is None:
                return self._cache.new_request(None)
            spans.append(KeySpan.of_request(source.leader_id, "leader_id"))
        return self._cache.new_request(PrefixHasher(self._plan.block_size, spans, source.prompt_embeds))
