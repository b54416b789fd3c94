"""vLLM's commands by their module paths: ``python -m vllm.entrypoints.openai.api_server`` and the like."""

import sys

import octavo.cli.main


def main() -> int:
    """``vllm``'s command line: the subcommand and its flags are those of ``octavo``; returns the exit status."""
    return octavo.cli.main.main()


def serve() -> int:
    """The server by its flags alone, as ``octavo serve``; returns the exit status."""
    return octavo.cli.main.main(["serve", *sys.argv[1:]])


def run_batch() -> int:
    """The same for ``octavo run-batch``."""
    return octavo.cli.main.main(["run-batch", *sys.argv[1:]])
