"""The plain records that cross floors: requests, steps, outputs."""

from octavo.records.engine import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    RequestTimes,
    StepOutputs,
    TokenLogprobs,
)
from octavo.records.outputs import (
    CompletionOutput,
    Logprob,
    PromptLogprobs,
    RequestOutput,
    RequestStateStats,
    SampleLogprobs,
)
from octavo.records.plan import CacheGroup, Decision, MemoryPart, Plan
from octavo.records.prepared import PreparedRequest
from octavo.records.prompts import PromptType, TextPrompt, TokensPrompt
from octavo.records.sampling_params import RequestOutputKind, SamplingParams
from octavo.records.step import NAN_TOKEN, BlockUpdate, NewRow, RowLogprobs, Step, StepResult

__all__ = [
    "NAN_TOKEN",
    "BlockUpdate",
    "CacheGroup",
    "CompletionOutput",
    "Decision",
    "EngineInfo",
    "EngineOutput",
    "EngineRequest",
    "EngineStats",
    "Logprob",
    "MemoryPart",
    "NewRow",
    "Plan",
    "PreparedRequest",
    "PromptLogprobs",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStateStats",
    "RequestTimes",
    "RowLogprobs",
    "SampleLogprobs",
    "SamplingParams",
    "Step",
    "StepOutputs",
    "StepResult",
    "TextPrompt",
    "TokenLogprobs",
    "TokensPrompt",
]
