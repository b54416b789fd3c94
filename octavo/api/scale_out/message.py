"""``output_mode: derender``: tokens in, an assistant message out, parsed as in ``/v1/chat/completions``.

The rendered request brings what the parsers must know of the conversation (its ``parse_context``); the chat route's own
code reads the answer.
"""

import time

from octavo.api.chat.conversation import check_tool_choice
from octavo.api.chat.turn import ChatTurn, gather
from octavo.api.frontend import Frontend
from octavo.api.openai.chat import ChatAnswer, conversation_of
from octavo.api.openai.protocol import ChatCompletionRequest
from octavo.api.pieces import num_entries, write
from octavo.api.scale_out.protocol import GenerateAnswer, GenerateChoice, GenerateRequest, ParseContext
from octavo.errors import InvalidRequestError
from octavo.records import SamplingParams, TokensPrompt

NUM_LAST_TOKENS = 512
"""Tokens or characters at the prompt's end that are searched for open reasoning."""


class DerenderedAnswer:
    """Builds the answer to one request whose output is a message.

    Attributes:
        turn: the generation, not begun.

    Raises:
        InvalidRequestError: the server has parsers, and the request does not say what they need; or it is malformed.
    """

    def __init__(
        self, frontend: Frontend, body: GenerateRequest, params: SamplingParams, name: str, model: str
    ) -> None:
        self._body, self._name, self._model = body, name, model
        chat = _chat_request(frontend, body, params)
        self._answer = ChatAnswer(frontend, chat, name, model)
        conversation = conversation_of(chat, chat.messages)
        check_tool_choice(conversation)
        prompt = TokensPrompt(
            prompt_token_ids=body.token_ids, prompt=frontend.text_of(body.token_ids[-NUM_LAST_TOKENS:])
        )
        self.turn = ChatTurn(
            frontend, conversation, prompt, params, name, priority=body.priority, cache_salt=body.cache_salt
        )

    async def whole(self) -> list[bytes]:
        """The answer as JSON, in pieces."""
        gathered = await gather(self.turn)
        completion = self._answer.completion(self.turn, gathered)
        choices = [
            GenerateChoice(
                choice.index,
                None if self._answer.hides_reasoning else list(gathered[1][choice.index][0].completion.token_ids),
                choice.finish_reason,
                choice.stop_reason,
                choice.logprobs,
                message=choice.message,
            )
            for choice in completion.choices
        ]
        answer = GenerateAnswer(
            request_id=self._name,
            output_mode=self._body.output_mode,
            model=self._model,
            created=int(time.time()),
            choices=choices,
            usage=completion.usage,
        )
        if self._body.return_token_ids:
            answer.prompt_token_ids = self._body.token_ids
        return await write(num_entries(gathered[0].prompt_logprobs), lambda _: answer)


def _chat_request(frontend: Frontend, body: GenerateRequest, params: SamplingParams) -> ChatCompletionRequest:
    context = body.parse_context
    if context is None:
        if frontend.formats().needs_parsing(with_tools=True):
            raise InvalidRequestError(
                "output_mode derender needs the parse_context of the render route, because this server has parsers.",
                "parse_context",
            )
        context = ParseContext()
    return ChatCompletionRequest(
        messages=[{"role": "user", "content": ""}],
        tools=context.tools,
        tool_choice=context.tool_choice if context.tools or isinstance(context.tool_choice, dict) else None,
        parallel_tool_calls=context.parallel_tool_calls,
        include_reasoning=context.include_reasoning,
        chat_template_kwargs=context.chat_template_kwargs,
        logprobs=params.logprobs is not None,
        top_logprobs=max(0, params.logprobs) if params.logprobs else None,
        logprob_token_ids=params.logprob_token_ids,
        n=params.n,
    )
