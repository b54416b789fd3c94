"""Exceptions that carry one sentence for a person.

Every error Octavo raises on purpose derives from :class:`OctavoError`. Entry points translate them once:
the command line prints the sentence, the HTTP API maps the type to a status code.
"""


class OctavoError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is a sentence that can be shown to a user."""


class ConfigError(OctavoError, ValueError):
    """A setting is wrong, or settings contradict each other or the machine."""


class ModelNotFoundError(OctavoError, FileNotFoundError):
    """No model lies under the given name."""


class UnsupportedModelError(OctavoError, ValueError):
    """The model exists, but its architecture, file type or some feature of it is not supported."""


class WeightsError(OctavoError, ValueError):
    """Weights are missing, unexpected, mis-shaped, truncated or corrupted."""


class InvalidRequestError(OctavoError, ValueError):
    """A request asks for something impossible; the fault is the caller's.

    Attributes:
        param: name of the offending field, if one can be named.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(InvalidRequestError):
    """A prompt, or a prompt and the answer asked for, do not fit into the model's context.

    Clients recognise the case by the words "maximum context length".

    Args:
        max_tokens: tokens asked for behind the prompt; None if the prompt alone leaves no room.
        is_estimate: the prompt was not tokenised; it has at least ``num_prompt_tokens``.
        advice: what helps, where the prompt is an input to be embedded and no conversation.
    """

    def __init__(
        self,
        num_prompt_tokens: int,
        max_model_len: int,
        max_tokens: int | None = None,
        *,
        is_estimate: bool = False,
        advice: str | None = None,
    ) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len
        if advice is not None:
            message = f"The input has {num_prompt_tokens} tokens; the model takes at most {max_model_len}. {advice}"
            super().__init__(message, "input")
            return
        if max_tokens is not None:
            wanted = (
                f"you requested {num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the messages, "
                f"{max_tokens} in the completion). Please reduce the length of the messages or completion."
            )
        else:
            least = "at least " if is_estimate else ""
            rest = ", which leaves no room for a completion" if num_prompt_tokens == max_model_len else ""
            wanted = (
                f"your messages resulted in {least}{num_prompt_tokens} tokens{rest}. "
                "Please reduce the length of the messages."
            )
        message = f"This model's maximum context length is {max_model_len} tokens. However, {wanted}"
        super().__init__(message, "prompt" if max_tokens is None else "max_tokens")


class ChatTemplateError(InvalidRequestError):
    """A chat template is missing, raised an error, or ran past its limits."""


class OverloadedError(OctavoError, RuntimeError):
    """The server cannot take the request now; trying again later may help."""


class QueueFullError(OverloadedError):
    """So much waits already that a request was turned away.

    Attributes:
        reason: ``queue_full`` or ``token_limit``.
        retry_after: seconds after which another try may do better.
    """

    def __init__(self, message: str, reason: str, retry_after: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class DeadlineExceededError(OctavoError, TimeoutError):
    """A request took longer than it was allowed to."""


class RequestFailedError(OctavoError, RuntimeError):
    """One request ended because of a fault on our side; others are unaffected."""


class EngineDeadError(OctavoError, RuntimeError):
    """The engine stopped and will not come back by itself."""
