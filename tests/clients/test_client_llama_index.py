"""LlamaIndex, through ``llama-index-llms-openai-like``."""

from typing import Any

import pytest
from pydantic import BaseModel
from scripted_engine import ARGUMENTS, CITY, GREETING, SUM, TOO_LONG, add

openai_like = pytest.importorskip(
    "llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed"
)
openai = pytest.importorskip("openai")
llms = pytest.importorskip("llama_index.core.llms")
tools_module = pytest.importorskip("llama_index.core.tools")


class City(BaseModel):
    """What a structured answer holds."""

    city: str
    population: int


@pytest.fixture
def llm(base_url: str) -> Any:
    return openai_like.OpenAILike(
        model="fake/model",
        api_base=base_url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=1 << 17,
        max_retries=0,
    )


def test_chat(llm: Any) -> None:
    assert llm.chat([llms.ChatMessage(role="user", content="Hi")]).message.content == GREETING


def test_streamed_chat(llm: Any) -> None:
    assert "".join(part.delta or "" for part in llm.stream_chat([llms.ChatMessage("Hi")])) == GREETING


@pytest.mark.parametrize("is_required", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_loop(llm: Any, is_required: bool, is_streamed: bool) -> None:
    tool = tools_module.FunctionTool.from_defaults(fn=add)
    messages = [llms.ChatMessage(role="user", content="2 + 3?")]
    for tool_required in (is_required, False):
        request: dict[str, Any] = {"chat_history": messages, "tool_required": tool_required}
        if is_streamed:
            *_, answer = llm.stream_chat_with_tools([tool], **request)
        else:
            answer = llm.chat_with_tools([tool], **request)
        calls = llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
        if not calls:
            break
        messages.append(answer.message)
        for call in calls:
            assert call.tool_kwargs == ARGUMENTS
            result = tool(**call.tool_kwargs)
            messages.append(
                llms.ChatMessage(role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id})
            )
    assert answer.message.content == SUM and len(messages) == 3


@pytest.mark.parametrize("is_function_calling", [False, True])
def test_structured_output(base_url: str, llm: Any, is_function_calling: bool) -> None:
    """By a call that is forced, or by a schema that binds the answer."""
    llm.is_function_calling_model = is_function_calling
    llm.should_use_structured_outputs = not is_function_calling
    answer = llm.as_structured_llm(City).chat([llms.ChatMessage("A city?")])
    assert answer.raw == City(**CITY)


def test_context_overflow(llm: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        llm.chat([llms.ChatMessage(role="user", content=TOO_LONG)])
    assert refusal.value.code == "context_length_exceeded"
