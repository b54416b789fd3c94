"""``octavo``: finds the command and runs it; everything heavy is imported by the command that needs it."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from octavo import __version__
from octavo.errors import ConfigError, OctavoError


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand and a line for the help.

    Attributes:
        entry: the function that takes the arguments and returns the exit status, as ``module:function``; it raises
            OctavoError where a flag, a file or the model is wrong, or the work fails.
    """

    entry: str
    summary: str


COMMANDS = {
    "serve": Command("octavo.cli.serve:run", "serve a model over HTTP, with OpenAI's protocol"),
    "chat": Command("octavo.cli.chat:run", "talk with a model, loaded here or on a server"),
    "complete": Command("octavo.cli.chat:run_complete", "let a model complete text"),
    "run-batch": Command("octavo.cli.run_batch:run", "answer the requests of a file, in OpenAI's batch format"),
    "bench": Command("octavo.cli.bench:run", "measure latency, throughput, a running server, engines or kernels"),
    "profile": Command("octavo.cli.profile:run", "show which kernels a step spends its time in"),
    "plan": Command("octavo.cli.plan:run", "show what would be decided for a model, and why, without loading it"),
    "models": Command("octavo.cli.models:run", "show which architectures run, and which of them parity tests cover"),
    "collect-env": Command("octavo.cli.collect_env:run", "describe this machine and installation, for a bug report"),
}
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    0 is success, 2 a wrong flag or setting, 1 any other failure, 130 an interruption.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return dispatch("octavo", COMMANDS, arguments)
    except OctavoError as error:
        if wants_traceback(arguments):
            raise
        print(f"octavo: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (``octavo … | head``); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def dispatch(program: str, commands: dict[str, Command], arguments: Sequence[str]) -> int:
    """Run the command that the first argument names, or print what there is.

    Raises:
        ConfigError: there is no such command.
    """
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in ("-h", "--help"):
        print(_help(program, commands))
        return 0
    if name in ("-v", "--version"):
        print(__version__)
        return 0
    command = commands.get(name)
    if command is None:
        import difflib

        near = difflib.get_close_matches(name, commands, 1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(commands)}."
        raise ConfigError(f"{program} has no command {name!r}. {hint}")
    module, _, function = command.entry.partition(":")
    status: int = getattr(importlib.import_module(module), function)(rest)
    return status


def wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether debug output is enabled."""
    words = [word for argument in arguments for word in argument.replace("_", "-").split("=")]
    return any(pair == ("--log-level", "debug") for pair in pairwise(words))


def _help(program: str, commands: dict[str, Command]) -> str:
    lines = [f"usage: {program} COMMAND [...]", "", "commands:"]
    lines += [f"  {name:<12} {command.summary}" for name, command in commands.items()]
    lines += ["", f"{program} COMMAND --help describes a command; {program} --version prints the version."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
