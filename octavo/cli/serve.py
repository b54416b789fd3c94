"""``octavo serve``: a model over HTTP."""

from collections.abc import Sequence

from octavo.cli.flags import ALL_SECTIONS, add_setting_flags, engine_config, given_settings, server_settings
from octavo.cli.parser import Parser
from octavo.engine.child import EngineChild
from octavo.garbage import garbage_collection_off


def run(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; returns the exit status."""
    # The engine's process imports while this one reads its flags and imports the server.
    with EngineChild() as child:
        parser = Parser("octavo serve", "Serve a model over HTTP, with OpenAI's protocol.", "MODEL")
        add_setting_flags(parser, ALL_SECTIONS)
        values = given_settings(parser.parse(arguments), ALL_SECTIONS)
        config, server = engine_config(values), server_settings(values)
        with garbage_collection_off():
            from octavo.api.launch import run_server

        return run_server(config, server, child)
