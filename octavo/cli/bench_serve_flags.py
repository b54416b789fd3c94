"""The flags of ``octavo bench serve``, with vLLM's names."""

import argparse
from pathlib import Path

from octavo.bench.serving import METRICS
from octavo.cli.bench_lengths import add_length_flags
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, parse_float, parse_json_object, parse_pair

ROUTES = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


def make_parser() -> Parser:
    """The command's parser."""
    parser = Parser("octavo bench serve", "Send requests to a running server and clock its answers.")
    _add_server_flags(parser)
    _add_load_flags(parser)
    add_length_flags(parser, has_files=True)
    _add_request_flags(parser)
    _add_result_flags(parser)
    return parser


def _add_server_flags(parser: Parser) -> None:
    group = parser.add_argument_group("Server")
    group.add_argument(
        "--backend", choices=tuple(ROUTES), default="openai", help="protocol: openai completes, openai-chat converses"
    )
    group.add_argument("--base-url", metavar="URL", help="instead of --host and --port; without /v1")
    group.add_argument("--host", default="127.0.0.1", help="Default: 127.0.0.1.")
    group.add_argument("--port", type=parse_count, default=8000, help="Default: 8000.")
    group.add_argument("--endpoint", metavar="PATH", help="route; default is the backend's")
    group.add_argument(
        "--header", type=parse_pair, nargs="*", action="extend", metavar="KEY=VALUE", help="to send along"
    )
    group.add_argument("--insecure", action="store_true", help="do not check the server's certificate")
    group.add_argument("--model", metavar="NAME", help="the model; default is the first that the server has")
    group.add_argument("--served-model-name", metavar="NAME", help="what the server calls it, if not --model")
    group.add_argument("--tokenizer", metavar="NAME", help="where the tokenizer comes from, if not from the model")
    group.add_argument(
        "--skip-tokenizer-init",
        action="store_true",
        help="load no tokenizer and draw prompts from the token ids 256 to 1255; not for openai-chat",
    )
    group.add_argument(
        "--trust-remote-code",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="accepted for vLLM's sake; lets nothing run: no code from a model's or tokenizer's folder is ever run",
    )
    group.add_argument(
        "--ready-check-timeout-sec", type=parse_float, default=0.0, help="seconds to wait for the server. Default: 0."
    )


def _add_load_flags(parser: Parser) -> None:
    group = parser.add_argument_group("Load")
    group.add_argument("--num-prompts", type=parse_count, default=1000, help="requests. Default: 1000.")
    group.add_argument("--num-warmups", type=parse_count, default=0, help="requests beforehand. Default: 0.")
    group.add_argument(
        "--request-rate", type=parse_float, default=float("inf"), help="requests/s; default is all at once"
    )
    group.add_argument(
        "--burstiness", type=parse_float, default=1.0, help="1 is a Poisson process, less comes in bursts. Default: 1."
    )
    group.add_argument("--max-concurrency", type=parse_count, help="maximum number of requests in flight")
    group.add_argument(
        "--abort-fraction",
        type=parse_float,
        default=0.0,
        help="share of requests that hang up at a random place of the answer. Default: 0.",
    )
    group.add_argument("--seed", type=parse_count, default=0, help="of prompts, lengths and arrivals. Default: 0.")


def _add_request_flags(parser: Parser) -> None:
    group = parser.add_argument_group("Requests")
    group.add_argument("--ignore-eos", action="store_true", help="have every answer reach its full length")
    group.add_argument("--logprobs", type=parse_count, help="log-probabilities per token to ask for")
    for name in SAMPLING:
        read = parse_count if name == "top_k" else parse_float
        group.add_argument("--" + name.replace("_", "-"), type=read, help="as in the protocol; not sent unless given")
    group.add_argument("--extra-body", type=parse_json_object, metavar="JSON", help="further fields of every request")
    group.add_argument("--request-id-prefix", metavar="TEXT", help="number the requests and send their ids")


def _add_result_flags(parser: Parser) -> None:
    group = parser.add_argument_group("Result")
    group.add_argument(
        "--percentile-metrics",
        default=",".join(METRICS),
        metavar="NAMES",
        help=f"of {', '.join(METRICS)}, with commas. Default: all.",
    )
    group.add_argument("--metric-percentiles", default="90,99", metavar="NUMBERS", help="with commas. Default: 90,99.")
    group.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", help="objectives for ttft, tpot, e2el that a good request keeps to"
    )
    group.add_argument("--save-result", action="store_true", help="write the figures as JSON")
    group.add_argument("--save-detailed", action="store_true", help="with the figures of every request")
    group.add_argument("--append-result", action="store_true", help="add a line to the file instead of a new one")
    group.add_argument("--result-dir", type=Path, default=Path(), metavar="FOLDER", help="where. Default: here.")
    group.add_argument("--result-filename", metavar="NAME", help="default is made of backend, model and time")
    group.add_argument("--output-json", type=Path, metavar="FILE", help="the same as --save-result, into this file")
    group.add_argument("--metadata", type=parse_pair, nargs="*", metavar="KEY=VALUE", help="to store with the figures")
    group.add_argument("--label", metavar="TEXT", help="to store with the figures")
    group.add_argument(
        "--plot-timeline", action="store_true", help="write a page that shows each request's time, beside the result"
    )
    group.add_argument(
        "--timeline-itl-thresholds",
        default="25,50",
        metavar="NUMBERS",
        help="where that page parts gaps between tokens, in milliseconds with commas. Default: 25,50.",
    )
    group.add_argument(
        "--plot-dataset-stats", action="store_true", help="draw the lengths of prompts and answers, beside the result"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
