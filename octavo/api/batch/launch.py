"""Runs a batch file: input, engine, requests, output."""

import asyncio
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.api.batch.answers import AnswerFile
from octavo.api.batch.lines import read_requests, scan_requests
from octavo.api.batch.remote import describe, download, is_url, parse_url, upload
from octavo.async_llm import AsyncLLM
from octavo.config import EngineConfig, ServerSettings
from octavo.errors import ConfigError, EngineDeadError
from octavo.telemetry.logs import configure_logging

TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What to do besides the engine's settings.

    Attributes:
        input_file, output_file: paths, or URLs if ``allow_urls``.
        output_tmp_dir: where answers are gathered; beside the output unless given.
        max_inflight: most requests at the same time; None fits the engine.
        enable_metrics: serve Prometheus metrics on the settings' host and port while the batch runs.
        overwrite: forget the answers of earlier runs.
        retry_failed: ask requests again whose answer is an error.
    """

    input_file: str
    output_file: str
    output_tmp_dir: Path | None = None
    max_inflight: int | None = None
    enable_metrics: bool = False
    overwrite: bool = False
    retry_failed: bool = False
    allow_urls: bool = False


def run_batch(config: EngineConfig, server: ServerSettings, job: BatchJob) -> int:
    """Run a batch; returns the exit status: 0 if all requests succeeded, 1 if some did not."""
    import uvloop

    configure_logging(config.logging.log_level, config_file=config.logging.log_config_file)
    check_files(job)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-batch-")))
        try:
            return runner.run(_run(config, server, job, folder))
        except asyncio.CancelledError:
            return TERMINATED


def check_files(job: BatchJob) -> None:
    """Check the input, output and temporary paths."""
    for name in (job.input_file, job.output_file):
        if is_url(name):
            if not job.allow_urls:
                raise ConfigError(f"{describe(parse_url(name))} is a URL; --allow-urls lets a batch reach the network.")
            parse_url(name)
    output = _output_path(job)
    if output.exists() and not output.is_file():
        raise ConfigError(f"{output} is not a file.")
    for folder in (output.parent, _part_path(job).parent):
        if not folder.is_dir():
            raise ConfigError(f"There is no folder {folder}.")
    source = Path(job.input_file)
    if not is_url(job.input_file) and source.exists() and output.exists() and output.samefile(source):
        raise ConfigError("Input and output are the same file.")


async def _run(config: EngineConfig, server: ServerSettings, job: BatchJob, folder: Path) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    source = Path(job.input_file)
    if is_url(job.input_file):
        source = folder / "input.jsonl"
        await download(job.input_file, source)
    output, part = _output_path(job), _part_path(job)
    order = scan_requests(source, server.max_request_bytes)
    answers = AnswerFile(output, part, order, retry_failed=job.retry_failed, overwrite=job.overwrite)
    try:
        if len(answers):
            _say(f"{len(answers)} of {len(order)} requests have their answers already.")
        if len(answers) < len(order):
            await _ask_all(config, server, job, source, answers, len(order))
        answers.write_output(order)
    except BaseException:
        if len(answers):
            _say(f"{len(answers)} of {len(order)} answers are kept in {part}; run the same command to resume.")
        raise
    finally:
        answers.close()
    place = str(output)
    if is_url(job.output_file):
        await upload(output, job.output_file)
        place = describe(parse_url(job.output_file))
    errors = f", {answers.num_failed} of them errors" if answers.num_failed else ""
    count = "1 answer is" if len(order) == 1 else f"{len(order)} answers are"
    _say(f"{count} in {place}{errors}.")
    return 1 if answers.num_failed else 0


async def _ask_all(
    config: EngineConfig, server: ServerSettings, job: BatchJob, source: Path, answers: AnswerFile, total: int
) -> None:
    engine = AsyncLLM(config, chat_template=server.chat_template, settles_reasoning=False)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.shutdown)
        loading = asyncio.create_task(engine.start())
        await asyncio.sleep(0)
        # The web framework is imported while the engine process loads the model.
        await asyncio.to_thread(__import__, "octavo.api.app")
        from octavo.api.app import build_app
        from octavo.api.batch.runner import BatchRunner

        await loading
        if job.enable_metrics:
            stack.callback(_serve_metrics(engine, server))
        # No client comes from outside, so none needs a key.
        app = build_app(engine, msgspec.structs.replace(server, api_key=None, disable_console=True))
        progress = stack.enter_context(_Progress(engine, total, answers))
        runner = BatchRunner(app, answers, fitting_inflight(engine, job.max_inflight), progress.advance)
        working = asyncio.create_task(runner.run(read_requests(source, server.max_request_bytes)))
        dying = asyncio.create_task(engine.wait_until_dead())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise EngineDeadError("The engine failed and will not be restarted; see the log.")
            _raise_first(working)
        finally:
            working.cancel()
            dying.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)


def fitting_inflight(engine: AsyncLLM, wanted: int | None) -> int:
    """How many requests to ask at the same time: enough that the engine never waits for the next one."""
    limit = engine.settings.scheduler.max_num_waiting
    most = 2 * engine.info.max_num_seqs if wanted is None else wanted
    return most if limit is None else min(most, engine.info.max_num_seqs + limit)


def _raise_first(task: asyncio.Task[None]) -> None:
    """Raise what a group of workers died of: the first of them, not the group."""
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error


def _serve_metrics(engine: AsyncLLM, server: ServerSettings) -> Callable[[], None]:
    """Serve metrics from a thread; returns what ends it."""
    from prometheus_client import start_http_server

    try:
        httpd, _ = start_http_server(server.port, server.host or "0.0.0.0", engine.metrics.registry)
    except OSError as error:
        raise ConfigError(f"Cannot serve metrics on port {server.port}: {error.strerror or error}.") from None

    def end() -> None:
        httpd.shutdown()
        httpd.server_close()

    return end


class _Progress:
    """A bar on standard error: requests done, errors, tokens/s."""

    def __init__(self, engine: AsyncLLM, total: int, answers: AnswerFile) -> None:
        from tqdm import tqdm

        self._engine = engine
        self._answers = answers
        # A log file is better off with few lines.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        self._bar = tqdm(
            total=total, initial=len(answers), unit="req", desc="Batch", dynamic_ncols=True, mininterval=interval
        )

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def advance(self, is_good: bool) -> None:
        """Count an answer."""
        elapsed = self._bar.format_dict["elapsed"]
        rate = self._engine.stats.generation_tokens / elapsed if elapsed else 0.0
        notes = [f"{rate:.0f} tok/s"]
        if self._answers.num_failed:
            notes.append(f"{self._answers.num_failed} failed")
        self._bar.set_postfix_str(", ".join(notes), refresh=False)
        self._bar.update()


def _output_path(job: BatchJob) -> Path:
    if not is_url(job.output_file):
        return Path(job.output_file)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", parse_url(job.output_file).path.rpartition("/")[2]).lstrip(".")
    return (job.output_tmp_dir or Path()) / (name or "output.jsonl")


def _part_path(job: BatchJob) -> Path:
    output = _output_path(job)
    return (job.output_tmp_dir or output.parent) / (output.name + ".part")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
