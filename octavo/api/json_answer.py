"""Encodes JSON responses."""

import msgspec
from fastapi import Response

ENCODER = msgspec.json.Encoder()


def encode_event(chunk: msgspec.Struct) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + ENCODER.encode(chunk) + b"\n\n"


def json_answer(body: bytes) -> Response:
    """Encoded JSON as a response."""
    return Response(body, media_type="application/json")
