"""What vLLM's clients may send, read and call is there, or its absence is explained."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import Match
from test_admin_control import ControlledEngine

from octavo.api import logprobs, usage
from octavo.api.app import build_app
from octavo.api.openai import answers, protocol
from octavo.api.request_body import RequestModel, StreamOptions
from octavo.config import ServerSettings

NAMES = json.loads((Path(__file__).parent / "vllm_protocol.json").read_text())
DIFFERENCES = (Path(__file__).parents[2] / "docs/differences.md").read_text()
REQUESTS: dict[str, type[RequestModel] | type[StreamOptions]] = {
    "BatchChatCompletionRequest": protocol.ChatCompletionRequest,
    "ChatCompletionRequest": protocol.ChatCompletionRequest,
    "CompletionRequest": protocol.CompletionRequest,
    "DetokenizeRequest": protocol.DetokenizeRequest,
    "StreamOptions": StreamOptions,
    "TokenizeChatRequest": protocol.TokenizeRequest,
    "TokenizeCompletionRequest": protocol.TokenizeRequest,
}
ANSWERS: dict[str, Any] = {
    "ChatCompletionLogProb": logprobs.ChatLogprob,
    "ChatCompletionLogProbsContent": logprobs.ChatTokenLogprob,
    "ChatCompletionResponse": answers.ChatCompletion,
    "ChatCompletionResponseChoice": answers.ChatChoice,
    "ChatCompletionResponseStreamChoice": answers.ChatChunkChoice,
    "ChatCompletionStreamResponse": answers.ChatChunk,
    "ChatMessage": answers.ChatMessage,
    "CompletionLogProbs": answers.CompletionLogprobs,
    "CompletionResponse": answers.CompletionResponse,
    "CompletionResponseChoice": answers.CompletionChoice,
    "CompletionResponseStreamChoice": answers.CompletionChoice,
    "CompletionStreamResponse": answers.CompletionResponse,
    "CompletionTokenUsageInfo": usage.CompletionTokensDetails,
    "DeltaMessage": answers.ChatDelta,
    "ModelCard": answers.ModelCard,
    "PromptTokenUsageInfo": usage.PromptTokensDetails,
    "UsageInfo": usage.Usage,
}
# What docs/differences.md explains.
IGNORED_FIELDS = {
    *("early_stopping", "guided_decoding_backend", "media_io_kwargs", "mm_payload", "mm_processor_kwargs"),
    *("return_mm_kwargs", "session_id", "stream_interval"),
}
MISSING_ANSWERS = {
    *("annotations", "audio", "created_cache_tokens", "ec_transfer_params", "function_call", "kv_transfer_params"),
    *("multimodal_tokens", "permission", "service_tier", "weight_versions"),
}
MISSING_ROUTES = {
    *("/cohere/v2/chat", "/cohere/v2/chat/render", "/collective_rpc", "/fault_tolerance/apply"),
    *("/fault_tolerance/status", "/is_scaling_elastic_ep", "/ready", "/readyz"),
    *("/scale_elastic_ep", "/start_draft_weight_update", "/static", "/v1/audio/transcriptions"),
    *("/v1/audio/translations", "/v1/decisions", "/v1/load_lora_adapter", "/v1/realtime", "/v1/systemone"),
    "/v1/unload_lora_adapter",
}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    settings = ServerSettings(enable_admin_endpoints=True, enable_tokenizer_info_endpoint=True)
    return build_app(ControlledEngine(), settings)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_field_of_a_request_is_taken_refused_or_explained(name: str) -> None:
    known = {*REQUESTS[name].model_fields, *protocol.UNSUPPORTED, *IGNORED_FIELDS}
    assert set(NAMES["fields"][name]) <= known
    assert not IGNORED_FIELDS & {*REQUESTS[name].model_fields, *protocol.UNSUPPORTED}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_field_of_an_answer_is_there_or_explained(name: str) -> None:
    config = ANSWERS[name].__struct_config__
    there = {*ANSWERS[name].__struct_fields__, config.tag_field, "object"}
    assert set(NAMES["fields"][name]) - MISSING_ANSWERS <= there


@pytest.mark.parametrize("route", NAMES["routes"])
def test_a_route_is_there_or_its_absence_is_explained(app: FastAPI, route: str) -> None:
    method, path = route.split(" ")
    scope = {
        "type": "http",
        "method": "GET" if method == "MOUNT" else method,
        "path": re.sub(r"\{\w+\}", "some", path),
        "root_path": "",
        "headers": [],
        "query_string": b"",
    }
    is_there = any(each.matches(scope)[0] is Match.FULL for each in app.routes)
    assert is_there != (path in MISSING_ROUTES)


@pytest.mark.parametrize("name", sorted(IGNORED_FIELDS | MISSING_ANSWERS | MISSING_ROUTES))
def test_what_is_missing_is_missing_for_a_reason(name: str) -> None:
    everything = {
        *(route.split(" ")[1] for route in NAMES["routes"]),
        *(field for fields in NAMES["fields"].values() for field in fields),
    }
    assert name in everything, "this exception excuses nothing"
    beginning = "/fault_tolerance/" if name.startswith("/fault_tolerance/") else f"{name}`"
    assert f"`{beginning}" in DIFFERENCES
