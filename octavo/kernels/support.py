"""What each implementation of attention, and of recurrent layers, supports.

Planning obeys it, and ``docs/attention-kernels.md`` is written from it (:mod:`octavo.cli.document_kernels`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.records import CacheSpec, ChunkedLocal, Full, Latent, SlidingWindow, State

_BYTES = ("float8_e4m3fn", "float8_e5m2", "int8")


@dataclass(frozen=True, slots=True)
class AttentionSupport:
    """What one implementation supports.

    Attributes:
        name: for people.
        kernel_set: see :attr:`octavo.platforms.Platform.kernel_set`.
        caches: kinds of cache.
        block_unit: tokens in a block are a multiple of it.
        quantized: types of quantised caches.
        has_terms: whether there are soft caps, sinks and ALiBi.
        is_deterministic: whether a row's bits are independent of the batch, with ``deterministic`` where that is not
            always so.
        has_decode_context_parallelism: whether devices can share the tokens of one sequence's cache.
    """

    name: str
    kernel_set: str
    caches: tuple[type[CacheSpec], ...]
    block_unit: int = 1
    quantized: tuple[str, ...] = ()
    has_terms: bool = False
    is_deterministic: bool = False
    has_decode_context_parallelism: bool = False


_PAGED = (Full, SlidingWindow, ChunkedLocal)

SUPPORT = (
    AttentionSupport("Triton, attention", "cuda", _PAGED, 1, _BYTES, has_terms=True, is_deterministic=True),
    AttentionSupport("Triton, latent attention", "cuda", (Latent,), 1, _BYTES),
    AttentionSupport("Triton, Mamba-2", "cuda", (State,)),
    AttentionSupport("compiled, attention", "cpu", _PAGED, 16, _BYTES, has_terms=True, is_deterministic=True),
    AttentionSupport("compiled, latent attention", "cpu", (Latent,), 1, _BYTES, is_deterministic=True),
    AttentionSupport("compiled, Mamba-2", "cpu", (State,), is_deterministic=True),
    AttentionSupport("PyTorch, attention", "cpu", _PAGED, 1, _BYTES, has_terms=True),
    AttentionSupport("PyTorch, latent attention", "cpu", (Latent,), 1, _BYTES),
    AttentionSupport("PyTorch, Mamba-2", "cpu", (State,)),
)
"""All of them; of a kernel set's, the first that fits is used."""


def kinds_that_depend_on_the_batch(kernel_set: str, specs: Iterable[CacheSpec]) -> list[type[CacheSpec]]:
    """Kinds among the caches' for which no implementation of a set keeps a row's bits independent of the batch."""
    kept = {kind for each in SUPPORT if each.kernel_set == kernel_set and each.is_deterministic for kind in each.caches}
    return [kind for kind in dict.fromkeys(type(spec) for spec in specs) if kind not in kept]
