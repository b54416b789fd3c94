"""``octavo complete``: texts that a model continues."""

import asyncio
import sys
from collections.abc import Sequence

from octavo.cli.answer import TimedAnswer, show_answer
from octavo.cli.choose import add_flags, make_backend
from octavo.cli.parser import Parser
from octavo.cli.sampling_flags import given_sampling
from octavo.cli.talk import talk

_MAX_TOKENS = 128


def run(arguments: Sequence[str]) -> int:
    """Continue texts until the user has had enough; returns the exit status.

    Raises:
        OctavoError: a flag or the model is wrong, no server answers, or the one quick answer failed.
    """
    parser = Parser(
        "octavo complete",
        "Let a model continue text: MODEL is loaded here; without it, a running server answers. "
        f"Text piped in is continued once. --max-tokens is {_MAX_TOKENS} unless given.",
        "[MODEL]",
    )
    add_flags(parser)
    namespace = parser.parse(arguments)
    backend, seed = make_backend(namespace)
    sampling = {"max_tokens": _MAX_TOKENS, **given_sampling(namespace)}
    if seed is not None:
        sampling["seed"] = seed

    async def respond(text: str) -> TimedAnswer:
        return await show_answer(backend.complete(text, sampling), sys.stdout)

    return asyncio.run(
        talk(
            backend,
            quick=namespace.quick,
            with_stats=namespace.stats,
            respond=respond,
            history_name="complete_history",
            hint="Enter continues the text, Ctrl-D ends.",
        )
    )
