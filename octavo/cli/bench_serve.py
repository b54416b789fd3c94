"""``octavo bench serve``: a running server under load."""

import argparse
import asyncio
import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from octavo.bench.http_client import HttpClient
from octavo.bench.load import LoadRequest, RequestRecord, choose_aborts, run_load
from octavo.bench.serving import METRICS, chat_body, completion_body, parse_objectives, summarise_records
from octavo.bench.timeline import plot_dataset_stats, plot_timeline
from octavo.bench.workload import COMMON_TOKEN_IDS, BenchPrompt, arrival_times, random_prompts
from octavo.cli.bench_lengths import given_dataset, given_lengths
from octavo.cli.bench_report import check_counts, describe_machine, write_json
from octavo.cli.bench_serve_flags import ROUTES, SAMPLING, make_parser
from octavo.cli.values import split_names, split_numbers
from octavo.errors import ConfigError, RequestFailedError
from octavo.tokenization import Tokenizer

logger = logging.getLogger(__name__)

_READY_CHECK_INTERVAL = 0.2


def run(arguments: Sequence[str]) -> int:
    """Measure; returns the exit status, 1 if requests failed."""
    given = make_parser().parse(arguments)
    if given.trust_remote_code:
        logger.warning("--trust-remote-code has no effect: Octavo runs no code from a model's folder.")
    check_counts(given, "num_prompts", *(["max_concurrency"] if given.max_concurrency is not None else []))
    if not 0 <= given.abort_fraction <= 1:
        raise ConfigError(f"--abort-fraction must be between 0 and 1, not {given.abort_fraction}.")
    return asyncio.run(_ServeBenchmark(given).run())


class _ServeBenchmark:
    """One run: its flags, checked, and the connection."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._lengths = given_lengths(given)
        self._dataset = given_dataset(given)
        thresholds = given.timeline_itl_thresholds
        self._thresholds = sorted(
            split_numbers("--timeline-itl-thresholds", thresholds, float, lambda gap: 0 < gap < math.inf, "above 0")
        )
        self._metrics = split_names(given.percentile_metrics, METRICS, "metric")
        self._percents = split_numbers(
            "--metric-percentiles", given.metric_percentiles, float, lambda share: 0 <= share <= 100, "from 0 to 100"
        )
        self._objectives = parse_objectives([pair.partition(":")[::2] for pair in given.goodput or ()])
        arrival_times(0, given.request_rate, given.burstiness, 0)  # refuses bad rates
        self._path = given.endpoint or ROUTES[given.backend]
        self._url = given.base_url or f"http://{given.host}:{given.port}"
        headers = dict(given.header or ())
        key = os.environ.get("OPENAI_API_KEY")
        if key and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {key}"
        self._client = HttpClient(self._url, headers, verify=not given.insecure)

    async def run(self) -> int:
        """Warm up, measure and report."""
        given = self._given
        model, root = await self._find_model()
        requests = self._requests(given.served_model_name or model, root)
        warmups, counted = requests[: given.num_warmups], requests[given.num_warmups :]
        try:
            if warmups:
                await run_load(self._client, self._path, warmups, [0.0] * len(warmups), max_concurrency=8)
            records, duration = await self._measure(counted)
        finally:
            await self._client.close()
        result = summarise_records(
            records, duration, metrics=self._metrics, percents=self._percents, objectives=self._objectives
        )
        print(result.table())
        self._save({**self._description(model), **result.as_json()}, records)
        return 1 if result.failed else 0

    async def _measure(self, requests: Sequence[LoadRequest]) -> tuple[list[RequestRecord], float]:
        given = self._given
        arrivals = arrival_times(len(requests), given.request_rate, given.burstiness, given.seed)
        with tqdm(total=len(requests), desc="Requests", disable=given.disable_tqdm, dynamic_ncols=True) as bar:

            def count(_: RequestRecord) -> None:
                bar.update()

            start = time.perf_counter()
            records = await run_load(
                self._client,
                self._path,
                requests,
                arrivals,
                max_concurrency=given.max_concurrency,
                on_done=count,
            )
            return records, time.perf_counter() - start

    async def _find_model(self) -> tuple[str, str]:
        """The model's name and where it comes from, waiting for the server as long as allowed."""
        deadline = time.monotonic() + self._given.ready_check_timeout_sec
        while True:
            try:
                async with self._client.request("GET", "/v1/models") as response:
                    status, body = response.status, await response.body()
                if status == 200:
                    break
                error = f"status {status}: {body[:300].decode(errors='replace')}"
            except OSError as reason:
                error = str(reason)
            if time.monotonic() >= deadline:
                raise RequestFailedError(f"The server at {self._url} does not answer: {error}.")
            await asyncio.sleep(_READY_CHECK_INTERVAL)
        try:
            card = json.loads(body)["data"][0]
            served = str(card["id"])
            root = str(card.get("root") or served)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise RequestFailedError(f"The server at {self._url} lists no model.") from None
        return (self._given.model, self._given.model) if self._given.model else (served, root)

    def _requests(self, served_name: str, root: str) -> list[LoadRequest]:
        given = self._given
        is_chat = given.backend == "openai-chat"
        tokenizer = None
        if not given.skip_tokenizer_init:
            tokenizer = _load_tokenizer(given.tokenizer or root)
        elif is_chat:
            raise ConfigError("openai-chat sends text, which needs a tokenizer; leave --skip-tokenizer-init out.")
        prompts = self._prompts(given.num_warmups + given.num_prompts, tokenizer)
        longest = max(prompt.output_len for prompt in prompts)
        num_counted = len(prompts) - given.num_warmups
        if num_counted < 1:
            raise ConfigError(f"{given.dataset_path} has {len(prompts)} prompts, no more than --num-warmups takes.")
        aborts = choose_aborts(num_counted, given.abort_fraction, longest, given.seed)
        return [
            LoadRequest(self._body(index, prompt, served_name, tokenizer), len(prompt.token_ids), abort_after)
            for index, (prompt, abort_after) in enumerate(
                zip(prompts, [None] * given.num_warmups + aborts, strict=True)
            )
        ]

    def _prompts(self, count: int, tokenizer: Tokenizer | None) -> list[BenchPrompt]:
        seed = self._given.seed
        if self._dataset is None:
            token_ids = range(len(tokenizer)) if tokenizer else COMMON_TOKEN_IDS
            return random_prompts(count, self._lengths, token_ids, seed)
        if tokenizer is None:
            raise ConfigError("Prompts from a file need a tokenizer; leave --skip-tokenizer-init out.")
        return self._dataset.prompts(count, tokenizer.encode, seed)

    def _body(self, index: int, prompt: BenchPrompt, served_name: str, tokenizer: Tokenizer | None) -> bytes:
        given = self._given
        extra: dict[str, Any] = {name: getattr(given, name) for name in SAMPLING if getattr(given, name) is not None}
        if given.ignore_eos:
            extra["ignore_eos"] = True
        if given.request_id_prefix:
            extra["request_id"] = f"{given.request_id_prefix}{index}"
        if given.backend == "openai-chat":
            assert tokenizer is not None
            if given.logprobs is not None:
                extra |= {"logprobs": True, "top_logprobs": given.logprobs}
            text = tokenizer.decode(prompt.token_ids)
            return chat_body(served_name, text, prompt.output_len, extra | (given.extra_body or {}))
        if given.logprobs is not None:
            extra["logprobs"] = given.logprobs
        if tokenizer is None:
            extra["return_token_ids"] = True  # a server without a tokenizer sends no text to clock
        return completion_body(served_name, prompt.token_ids, prompt.output_len, extra | (given.extra_body or {}))

    def _description(self, model: str) -> dict[str, Any]:
        given = self._given
        return {
            **describe_machine(),
            "backend": given.backend,
            "label": given.label,
            "model_id": model,
            "num_prompts": given.num_prompts,
            "dataset_name": given.dataset_name,
            "request_rate": given.request_rate if math.isfinite(given.request_rate) else "inf",
            "burstiness": given.burstiness,
            "max_concurrency": given.max_concurrency,
            "abort_fraction": given.abort_fraction,
            "lengths": asdict(self._lengths),
            **dict(given.metadata or ()),
        }

    def _save(self, figures: Mapping[str, Any], records: Sequence[RequestRecord]) -> None:
        given = self._given
        if given.save_detailed:
            figures = {**figures, **_details(records)}
        if given.output_json is not None:
            write_json(given.output_json, figures, append=given.append_result)
        path = self._result_path(str(figures["model_id"]))
        if given.save_result or given.append_result:
            write_json(path, figures, append=given.append_result)
        beside = given.output_json or path
        beside.parent.mkdir(parents=True, exist_ok=True)
        if given.plot_timeline:
            plot_timeline(records, self._thresholds, beside.with_suffix(".timeline.html"))
        if given.plot_dataset_stats:
            plot_dataset_stats(records, beside.with_suffix(".dataset_stats.png"))

    def _result_path(self, model: str) -> Path:
        given = self._given
        name = given.result_filename
        if name is None:
            model = model.rsplit("/", maxsplit=1)[-1].replace(":", "-")
            name = f"{given.backend}-{model}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
        return Path(given.result_dir / name)


def _details(records: Sequence[RequestRecord]) -> dict[str, Any]:
    return {
        "statuses": [record.status for record in records],
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "start_times": [record.start for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itl for record in records],
        "latencies": [record.latency for record in records],
        "errors": [record.error for record in records],
    }


def _load_tokenizer(name: str) -> Tokenizer:
    from octavo.hub import find_files
    from octavo.tokenization import load_tokenizer

    return load_tokenizer(find_files(name))
