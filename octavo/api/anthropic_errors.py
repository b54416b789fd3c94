"""Errors in Anthropic's format."""

import msgspec

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicErrorInfo(msgspec.Struct):
    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, tag_field="type", tag="error"):
    """The body of an error answer, and the data of an ``error`` event."""

    error: AnthropicErrorInfo


def anthropic_error_body(status: int, message: str) -> bytes:
    """An error as JSON; the status decides its type."""
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    return msgspec.json.encode(AnthropicErrorBody(AnthropicErrorInfo(_TYPES.get(status, fallback), message)))
