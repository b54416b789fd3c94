"""Turns measured seconds into figures, each with its limit; names and formulas are in ``docs/performance.md``."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.bench.engine import EngineSamples
from octavo.bench.limits import ModelLimits
from octavo.bench.statistics import percentile


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Attributes:
        name: key in files; ends in its unit.
        is_time: a time (less is better); otherwise a rate (more is better).
        limit: the device's limit; None if unknown.
    """

    name: str
    title: str
    is_time: bool
    value: float
    limit: float | None = None


def figures_of(startup: float, samples: Mapping[str, EngineSamples], limits: ModelLimits) -> list[Figure]:
    """All figures that can be computed from the samples.

    Args:
        startup: duration of the call of ``LLM``, in seconds.
        samples: see :class:`octavo.bench.engine.Turn`.
    """
    figures = [Figure("startup_s", "start-up (s)", True, startup)]
    if "latency_1" in samples:
        figures += _latency(samples["latency_1"], samples["latency_257"], limits)
    for name, one in samples.items():
        case, *sizes = name.split("_")
        if case == "decode" and sizes[-1] == "1":
            figures.append(_decode(one, samples[f"decode_{sizes[0]}_129"], limits))
        elif case == "prefill":
            figures.append(_prefill(one, limits))
    if "mixed" in samples:
        figures += _mixed(samples["mixed"], limits)
    if "chat" in samples:
        figures += _chat(samples["chat"], limits)
    if "first_token" in samples:
        figures += _first_token(samples["first_token"], limits)
    return figures


def _latency(one: EngineSamples, full: EngineSamples, limits: ModelLimits) -> list[Figure]:
    first, last = statistics.median(one.seconds), statistics.median(full.seconds)
    num_steps = full.output_lens[0] - 1
    start = full.input_lens[0] + 1
    limit = statistics.mean(limits.decode_step([context]) for context in range(start, start + num_steps))
    return [
        Figure(
            "ttft_128_ms", "time to first token, 128 in (ms)", True, first * 1e3, limits.prefill(one.input_lens) * 1e3
        ),
        Figure("tpot_bs1_ms", "time per token, batch 1 (ms)", True, (last - first) / num_steps * 1e3, limit * 1e3),
    ]


def _decode(one: EngineSamples, full: EngineSamples, limits: ModelLimits) -> Figure:
    batch_size, num_steps = len(full.input_lens), full.output_lens[0] - 1
    start = full.input_lens[0] + 1
    least = sum(limits.decode_step([context] * batch_size) for context in range(start, start + num_steps))
    num_tokens = batch_size * num_steps
    return Figure(
        f"decode_bs{batch_size}_tok_s",
        f"decode, batch {batch_size} (tok/s)",
        False,
        num_tokens / (statistics.median(full.seconds) - statistics.median(one.seconds)),
        num_tokens / least,
    )


def _prefill(samples: EngineSamples, limits: ModelLimits) -> Figure:
    count, length = len(samples.input_lens), samples.input_lens[0]
    return Figure(
        f"prefill_{length}_tok_s",
        f"prefill, {count} × {length:,} (tok/s)",
        False,
        count * length / min(samples.seconds),
        count * length / limits.prefill(samples.input_lens),
    )


def _mixed(samples: EngineSamples, limits: ModelLimits) -> list[Figure]:
    count, input_len, output_len = len(samples.input_lens), samples.input_lens[0], samples.output_lens[0]
    name, title = f"mixed_{input_len}_{output_len}", f"{count:,} × ({input_len:,} in, {output_len} out)"
    seconds = statistics.median(samples.seconds)
    least = limits.generate(samples.input_lens, samples.output_lens)
    total = count * (input_len + output_len)
    return [
        Figure(f"{name}_req_s", f"{title} (requests/s)", False, count / seconds, count / least),
        Figure(f"{name}_total_tok_s", f"{title} (total tok/s)", False, total / seconds, total / least),
    ]


def _chat(samples: EngineSamples, limits: ModelLimits) -> list[Figure]:
    count, total = len(samples.output_lens), sum(samples.output_lens)
    seconds = statistics.median(samples.seconds)
    least = limits.generate(samples.input_lens, samples.output_lens)
    return [
        Figure("chat_like_req_s", "chat-like lengths (requests/s)", False, count / seconds, count / least),
        Figure("chat_like_out_tok_s", "chat-like lengths (output tok/s)", False, total / seconds, total / least),
    ]


def _first_token(samples: EngineSamples, limits: ModelLimits) -> list[Figure]:
    ordered = sorted(samples.seconds)
    limit = limits.prefill(samples.input_lens) * 1e3
    return [
        Figure(
            f"first_token_p{percent}_ms",
            f"first token of {len(ordered)} requests, p{percent} (ms)",
            True,
            percentile(ordered, percent) * 1e3,
            limit,
        )
        for percent in (50, 90, 99)
    ]
