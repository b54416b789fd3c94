"""Writing JSON for clients."""

import msgspec
from fastapi import Response

ENCODER = msgspec.json.Encoder()


def json_answer(body: bytes) -> Response:
    """Encoded JSON as a response."""
    return Response(body, media_type="application/json")
