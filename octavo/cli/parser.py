"""argparse with errors as sentences, and with hints for flags that do not exist."""

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from octavo.cli.foreign_flags import VLLM_FLAGS
from octavo.errors import ConfigError


class HelpFormatter(argparse.HelpFormatter):
    """Leaves room for long flags."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


class Parser(argparse.ArgumentParser):
    """A parser of one command's flags.

    Underscores in flags mean hyphens; abbreviations are not guessed. What is wrong comes as :class:`ConfigError`.
    """

    def __init__(self, prog: str, description: str, arguments: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {arguments} [flags]".replace("  ", " "),
            description=description,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments.

        Raises:
            ConfigError: a flag is unknown (with the nearest known one), or a value is missing or wrong.
        """
        namespace, extras = self.parse_known_args([_with_hyphens(argument) for argument in arguments])
        for extra in extras:
            if extra.startswith("-"):
                raise ConfigError(self.explain_unknown(extra.partition("=")[0]))
        if extras:
            raise ConfigError(f"There is nothing to do with the argument {extras[0]!r}; see {self.prog} --help.")
        return namespace

    def explain_unknown(self, flag: str) -> str:
        """A sentence on a flag that this command does not have."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(flag, known, 1, cutoff=0.75)
        hint = f" Did you mean {near[0]}?" if near else f" See {self.prog} --help."
        if flag in VLLM_FLAGS or flag.replace("--no-", "--", 1) in VLLM_FLAGS:
            return f"{flag} is a flag of vLLM that {self.prog} does not have (yet).{hint if near else ''}"
        return f"There is no flag {flag}.{hint}"

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint as a sentence."""
        message = message.removeprefix("argument ")
        raise ConfigError(f"{message[0].upper()}{message[1:].rstrip('.')}.")


def _with_hyphens(argument: str) -> str:
    """``--max_num_seqs=4`` as ``--max-num-seqs=4``; values are left alone."""
    if not argument.startswith("--"):
        return argument
    name, separator, value = argument.partition("=")
    return name.replace("_", "-") + separator + value
