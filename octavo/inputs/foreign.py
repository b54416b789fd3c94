"""vLLM's arguments that are accepted only at their neutral values."""

from typing import Any

from octavo.errors import InvalidRequestError

_REASONS = {"lora_request": "LoRA adapters are not supported yet"}


def reject_foreign(**arguments: object) -> None:
    """Reject arguments that Octavo cannot honour; None, and empty or all-None lists, ask for nothing."""
    for name, value in arguments.items():
        wanted = any(item is not None for item in value) if isinstance(value, list | tuple) else bool(value)
        if wanted:
            reason = _REASONS.get(name, "nothing here reads it")
            raise InvalidRequestError(f"{name} is not supported: {reason}.", name)


def prompt_truncation(tokenization_kwargs: dict[str, Any] | None) -> int | None:
    """What ``tokenization_kwargs`` says of how many tokens of a prompt to keep."""
    options = dict(tokenization_kwargs or {})
    truncate_prompt_tokens: int | None = options.pop("truncate_prompt_tokens", None)
    reject_foreign(**{f"tokenization_kwargs[{name!r}]": value for name, value in options.items()})
    return truncate_prompt_tokens
