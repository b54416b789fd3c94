"""A validated request, passed from a frontend's input side to its output side."""

from dataclasses import dataclass

from octavo.records.engine import EngineRequest
from octavo.records.sampling_params import SamplingParams


@dataclass(slots=True)
class PreparedRequest:
    """One user request, checked and tokenised, with the engine requests that serve it.

    Attributes:
        prompt_text: the prompt if it was given as text.
        prompt_token_ids: the prompt as the model sees it.
        params: the user's parameters, defaults filled in.
        children: one :class:`EngineRequest` per completion; ``n`` of them. The first is the leader
            whose prompt blocks the others share. With ``n`` = 1 its id equals ``request_id``, else
            child ``i`` is called ``"{i}_{request_id}"``.
        arrival_time: seconds since the epoch.
    """

    request_id: str
    prompt_text: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    children: list[EngineRequest]
    arrival_time: float
