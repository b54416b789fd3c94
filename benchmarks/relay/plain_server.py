"""What a server of the same shape costs without care: FastAPI, a pydantic model for every chunk, a queue a request.

    python benchmarks/relay/plain_server.py ADDRESS PORT TOKENIZER_JSON

It reads the same engine's messages and answers the same route in the same words.
"""

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import tokenizers
import uvicorn
import zmq
import zmq.asyncio
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from octavo.engine import messages
from octavo.records import EngineOutput, EngineRequest, SamplingParams, as_token_ids


class Delta(BaseModel):
    """New text."""

    role: str | None = None
    content: str | None = None


class Choice(BaseModel):
    """One answer's part."""

    index: int
    delta: Delta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None


class Chunk(BaseModel):
    """One event."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice]


class Body(BaseModel):
    """What is asked."""

    model: str | None = None
    messages: list[dict[str, Any]]
    max_tokens: int = 16
    stream: bool = True


def build(address: str, tokenizer: tokenizers.Tokenizer) -> FastAPI:
    """The app."""
    queues: dict[str, asyncio.Queue[EngineOutput]] = {}
    socket = zmq.asyncio.Context().socket(zmq.ROUTER)
    engine = b"engine-1"
    is_ready = asyncio.Event()

    async def receive() -> None:
        while True:
            _, data = await socket.recv_multipart()
            message = messages.decode_from_engine(data)
            is_ready.set()
            if isinstance(message, messages.OutputBatch):
                for output in message.outputs:
                    if output.request_id in queues:
                        queues[output.request_id].put_nowait(output)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        socket.bind(address)
        task = asyncio.create_task(receive())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, str]:
        await is_ready.wait()
        return {}

    async def events(body: Body) -> AsyncGenerator[str, None]:
        request_id = f"chatcmpl-{uuid.uuid4().hex}"
        created = int(time.time())
        prompt = "".join(f"{message['role']}: {message['content']}\n" for message in body.messages)
        queue = queues[request_id] = asyncio.Queue()
        params = SamplingParams(max_tokens=body.max_tokens)
        request = EngineRequest(request_id, as_token_ids(tokenizer.encode(prompt).ids), params)
        await socket.send_multipart([engine, messages.encode(messages.Add([request]))])
        decoder = tokenizers.decoders.DecodeStream(skip_special_tokens=True)

        def chunk(delta: Delta, reason: str | None = None) -> str:
            made = Chunk(
                id=request_id,
                created=created,
                model=body.model or "model",
                choices=[Choice(index=0, delta=delta, finish_reason=reason)],
            )
            return f"data: {made.model_dump_json(exclude_unset=True)}\n\n"

        yield chunk(Delta(role="assistant", content=""))
        reason = None
        while reason is None:
            output = await queue.get()
            text = "".join(decoder.step(tokenizer, token_id) or "" for token_id in output.new_token_ids)
            reason = output.finish_reason
            yield chunk(Delta(content=text), reason)
        del queues[request_id]
        yield "data: [DONE]\n\n"

    @app.post("/v1/chat/completions")
    async def chat(body: Body) -> StreamingResponse:
        return StreamingResponse(events(body), media_type="text/event-stream")

    return app


def main() -> None:
    """Serve until told to stop."""
    address, port, file = sys.argv[1:]
    app = build(address, tokenizers.Tokenizer.from_file(file))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
