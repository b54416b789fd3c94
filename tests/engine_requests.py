"""Engine requests with token ids as lists, which tests write."""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.records import EngineRequest, SamplingParams, as_token_ids


def engine_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    output_token_ids: Sequence[int] = (),
    **rest: Any,
) -> EngineRequest:
    """An :class:`EngineRequest`, whose token ids are arrays."""
    return EngineRequest(
        request_id,
        as_token_ids(prompt_token_ids),
        params,
        output_token_ids=as_token_ids(output_token_ids),
        **rest,
    )


def as_dicts(requests: list[EngineRequest]) -> list[dict[str, object]]:
    """Requests as dictionaries, which can be compared."""
    return [
        msgspec.structs.asdict(request)
        | {
            "prompt_token_ids": request.prompt_token_ids.tolist(),
            "output_token_ids": request.output_token_ids.tolist(),
        }
        for request in requests
    ]
