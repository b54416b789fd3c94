"""Writes ``docs/attention-kernels.md``, to standard output: ``python -m octavo.cli.document_kernels``."""

import sys

from octavo.kernels.support import SUPPORT, AttentionSupport
from octavo.records import CacheSpec, ChunkedLocal, Full, Latent, SlidingWindow, State

_INTRODUCTION = """\
# What the attention kernels support

```console
$ octavo plan bundled:smollm2
```

The plan shows the caches that a model needs. Kernels are chosen by the device: Triton's on NVIDIA GPUs; on CPUs the \
compiled ones, and PyTorch's for what these lack. `--attention-backend` has no effect, since all of a device's kernels \
compute the same. Head sizes need not be powers of two; up to 256 they are tested. The table is \
generated from the code's declarations by `python -m octavo.cli.document_kernels > docs/attention-kernels.md`.

| kernels | device | layers | block sizes | quantised caches | soft caps, sinks, ALiBi | independent of the batch | \
`--decode-context-parallel-size` |
|---|---|---|---|---|---|---|---|
"""
_NOTES = """
Independent of the batch: the results of a request do not depend on the requests beside it, bit for bit; on GPUs with \
`--deterministic`. FP8 caches on GPUs take compute capability 8.9 or higher ([Quantise the key/value \
cache](kv-cache-quantization.md)).
"""

_DEVICES = {"cpu": "CPU", "cuda": "NVIDIA GPU"}
_LAYERS: dict[type[CacheSpec], str] = {
    Full: "full",
    SlidingWindow: "sliding windows",
    ChunkedLocal: "chunks",
    Latent: "latent (MLA)",
    State: "recurrent state",
}
_TYPES = {"float8_e4m3fn": "FP8 (e4m3)", "float8_e5m2": "FP8 (e5m2)", "int8": "INT8"}


def document() -> str:
    """The page."""
    return _INTRODUCTION + "".join(map(_row, SUPPORT)) + _NOTES


def _row(each: AttentionSupport) -> str:
    cells = (
        each.name,
        _DEVICES[each.kernel_set],
        ", ".join(_LAYERS[kind] for kind in each.caches),
        "any" if each.block_unit == 1 else f"multiples of {each.block_unit}",
        ", ".join(_TYPES[name] for name in each.quantized) or "no",
        *map(_answer, (each.has_terms, each.is_deterministic, each.has_decode_context_parallelism)),
    )
    return f"| {' | '.join(cells)} |\n"


def _answer(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    sys.stdout.write(document())
