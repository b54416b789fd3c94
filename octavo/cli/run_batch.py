"""``octavo run-batch``: many requests from a file, their answers into another."""

from collections.abc import Sequence
from pathlib import Path

from octavo.cli.bench_report import check_counts
from octavo.cli.flags import ALL_SECTIONS, add_flag, add_setting_flags, engine_config, flags_of, given_settings
from octavo.cli.flags import server_settings as read_server_settings
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count
from octavo.config import ServerSettings
from octavo.config.engine_config import ENGINE_SECTIONS

# The server's settings that shape answers. The others concern connections, which a batch does not have; a settings file
# may hold them all the same.
BATCH_SETTINGS = frozenset(
    {
        *("allowed_mcp_server", "anthropic_disabled_thinking_effort", "builtin_tool", "chat_template"),
        *("chat_template_content_format", "chat_template_date", "default_chat_template_kwargs"),
        *("enable_auto_tool_choice", "enable_force_include_usage", "enable_per_request_metrics"),
        *("enable_prompt_tokens_details", "enable_tokenizer_info_endpoint", "exclude_tools_when_tool_choice_none"),
        *("fingerprint_mode", "fingerprint_value", "host", "max_request_bytes", "port", "reasoning_effort_map"),
        *("response_role", "return_tokens_as_token_ids", "served_model_name", "sse_keep_alive_interval"),
        *("tool_call_parser", "tool_parser_plugin", "tool_server"),
    }
)


def run(arguments: Sequence[str]) -> int:
    """Run a batch; returns the exit status: 0 if every request succeeded, 1 if some did not."""
    parser = Parser(
        "octavo run-batch",
        "Answer the requests of a file in OpenAI's batch format, without a server. An interrupted batch resumes where "
        "it was when the same command is given again.",
        "-i FILE -o FILE MODEL",
    )
    _add_batch_flags(parser)
    add_setting_flags(parser, ENGINE_SECTIONS, has_server=True)
    group = parser.add_argument_group("Answers", "What a server's settings say about answers.")
    for flag in flags_of(ServerSettings):
        if flag.name in BATCH_SETTINGS:
            add_flag(group, flag)
    given = parser.parse(arguments)
    if given.max_inflight is not None:
        check_counts(given, "max_inflight")
    values = given_settings(given, ALL_SECTIONS)
    config, server = engine_config(values), read_server_settings(values)

    from octavo.api.batch.launch import BatchJob, run_batch

    job = BatchJob(
        given.input_file,
        given.output_file,
        given.output_tmp_dir,
        given.max_inflight,
        given.enable_metrics,
        given.overwrite,
        given.retry_failed,
        given.allow_urls,
    )
    return run_batch(config, server, job)


def _add_batch_flags(parser: Parser) -> None:
    parser.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="requests, one JSON object a line; a path or a URL"
    )
    parser.add_argument(
        "-o",
        "--output-file",
        required=True,
        metavar="FILE",
        help="answers, in the requests' order; a path, or a URL to PUT them to",
    )
    parser.add_argument(
        "--output-tmp-dir",
        type=Path,
        metavar="FOLDER",
        help="where answers are gathered until all are there. Default: beside the output.",
    )
    parser.add_argument(
        "--max-inflight",
        type=parse_count,
        metavar="N",
        help="most requests at the same time. Default: twice what a step holds.",
    )
    parser.add_argument("--overwrite", action="store_true", help="forget the answers of earlier runs")
    parser.add_argument("--retry-failed", action="store_true", help="ask again what an earlier run got errors for")
    parser.add_argument("--allow-urls", action="store_true", help="let files be URLs, at public addresses")
    parser.add_argument(
        "--enable-metrics", action="store_true", help="serve Prometheus' metrics on --host and --port during the batch"
    )
