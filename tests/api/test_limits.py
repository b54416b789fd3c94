"""What is wrong a hundred thousand times is told once: refusals cost no more than what is allowed."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from octavo.api.admin.control import AbortRequest
from octavo.api.anthropic.protocol import MessagesRequest
from octavo.api.openai.protocol import ChatCompletionRequest, CompletionRequest
from octavo.api.pooling.protocol import CohereEmbedRequest, InputBody, RerankRequest
from octavo.api.responses.protocol import McpTool, ResponsesRequest
from octavo.api.scale_out.protocol import GenerateRequest
from octavo.api.scale_out.render import DerenderChatRequest, DerenderCompletionRequest

MANY = 2000
HELLO = [{"role": "user", "content": "hi"}]
MESSAGE = {"model": "m", "max_tokens": 5, "messages": HELLO}
MCP = {"type": "mcp", "server_label": "a"}
WRONG = [[None] * MANY, dict.fromkeys(map(str, range(MANY))), [{}] * MANY, [[None]] * MANY]
MODELS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (AbortRequest, {"request_ids": []}),
    (ChatCompletionRequest, {"messages": HELLO}),
    (DerenderChatRequest, {}),
    (CohereEmbedRequest, {}),
    (DerenderCompletionRequest, {}),
    (CompletionRequest, {"prompt": "hi"}),
    (GenerateRequest, {"token_ids": [1], "sampling_params": {}}),
    (InputBody, {}),
    (McpTool, MCP),
    (MessagesRequest, MESSAGE),
    (RerankRequest, {"query": "a", "documents": ["b"]}),
    (ResponsesRequest, {"input": "hi"}),
]


@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        pytest.param(model, body, name, id=f"{model.__name__}-{name}")
        for model, body in MODELS
        for name in model.model_fields
    ],
)
def test_few_errors_are_told_of_many(model: type[BaseModel], body: dict[str, Any], field: str) -> None:
    for value in [*WRONG, {"a": WRONG[0]}, [WRONG[1]]]:
        try:
            model.model_validate({**body, field: value})
        except ValidationError as error:
            assert error.error_count() < 40, value


def test_extra_arguments_are_counted_first() -> None:
    args = {"a": 1, "b": [1.5, "x"], "c": "y"}
    assert MessagesRequest.model_validate({**MESSAGE, "vllm_xargs": args}).vllm_xargs == args
    with pytest.raises(ValidationError, match="at most 64 entries may be given, got 65"):
        MessagesRequest.model_validate({**MESSAGE, "vllm_xargs": {str(n): None for n in range(65)}})
