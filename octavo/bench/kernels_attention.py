"""Kernel cases: attention of a step, as a whole and its parts."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from octavo import kernels
from octavo.bench.kernels_case import KernelCase, Run, Setting, Work
from octavo.kernels import (
    AttentionBackend,
    AttentionInputs,
    AttentionSpec,
    DeviceRows,
    HeadNorms,
    StepShape,
    basic,
)
from octavo.kernels.cache_scales import CacheScales

_BLOCK_SIZE = 16
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class _Batch:
    """Inputs of one layer's attention: requests with their cache.

    Attributes:
        qkv: ``[T, (H + 2·Hkv)·D]``.
        caches: copies of ``[2, blocks, Hkv, block_size, D]``.
        scales: of each copy.
        rope: cosines and signed sines, ``[T, 1, D]`` each.
    """

    qkv: torch.Tensor
    caches: list[torch.Tensor]
    scales: list[CacheScales | None]
    inputs: AttentionInputs
    rope: tuple[torch.Tensor, torch.Tensor]
    norms: HeadNorms
    spec: AttentionSpec

    @property
    def backend(self) -> AttentionBackend:
        lengths = self.inputs.seq_lens
        return kernels.attention_backend(self.qkv.device, len(lengths), max(lengths), deterministic=False)


def _make_batch(setting: Setting) -> _Batch:
    config, num_rows, context, num_tokens = setting.config, setting.num_rows, setting.context, setting.num_tokens
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    blocks_each = -(-context // _BLOCK_SIZE)
    num_blocks = num_rows * blocks_each + 1
    shape = (2, num_blocks, kv_heads, _BLOCK_SIZE, head_dim)
    num_copies = setting.copies(num_rows * context * _key_bytes(setting))
    order = torch.randperm(num_blocks - 1, device=setting.device).int() + 1
    tables = order.view(num_rows, blocks_each).contiguous()
    angles = torch.randn(num_tokens, 1, head_dim // 2, device=setting.device)
    cos, sin = angles.cos(), angles.sin()
    return _Batch(
        qkv=setting.random(num_tokens, (heads + 2 * kv_heads) * head_dim),
        caches=[_random_cache(setting, shape) for _ in range(num_copies)],
        scales=[_scales(setting, shape) for _ in range(num_copies)],
        inputs=_make_inputs(setting, tables),
        rope=(torch.cat((cos, cos), -1).to(setting.dtype), torch.cat((-sin, sin), -1).to(setting.dtype)),
        norms=HeadNorms(setting.random(head_dim).fill_(1.0), setting.random(head_dim).fill_(1.0), _EPS),
        spec=AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5),
    )


def _random_cache(setting: Setting, shape: tuple[int, ...]) -> torch.Tensor:
    cache = setting.random(*shape)
    return cache if setting.kv_dtype is None else cache.to(setting.kv_dtype)


def _scales(setting: Setting, shape: tuple[int, ...]) -> CacheScales | None:
    if setting.kv_dtype is None:
        return None
    return CacheScales(torch.ones(shape[:-1], device=setting.device), are_given=False)


def _key_bytes(setting: Setting) -> int:
    """Bytes of a token's keys and values, scales included."""
    scale_bytes = 0 if setting.kv_dtype is None else torch.float32.itemsize
    head_bytes = setting.config.head_dim * (setting.kv_dtype or setting.dtype).itemsize
    return 2 * setting.config.num_kv_heads * (head_bytes + scale_bytes)


def _make_inputs(setting: Setting, tables: torch.Tensor) -> AttentionInputs:
    num_rows, context, num_tokens = setting.num_rows, setting.context, setting.num_tokens
    is_decode = setting.phase == "decode"
    query_len = 1 if is_decode else context
    slots = setting.indices(list(range(num_rows)), torch.int64)
    positions = torch.arange(context - query_len, context, device=setting.device).repeat(num_rows)
    rows = torch.arange(num_rows, device=setting.device).repeat_interleave(query_len)
    mapping = tables[rows, positions // _BLOCK_SIZE].long() * _BLOCK_SIZE + positions % _BLOCK_SIZE
    return AttentionInputs(
        block_tables=tables,
        slots=slots,
        slot_mapping=mapping,
        block_size=_BLOCK_SIZE,
        num_kv_heads=setting.config.num_kv_heads,
        runs_per_block=setting.config.num_kv_heads,
        window=None,
        rows=DeviceRows(
            counts=setting.indices([num_rows, num_rows if is_decode else 0, num_tokens, context if is_decode else 0]),
            query_starts=setting.indices(list(range(0, num_tokens + 1, query_len))),
            seq_lens=setting.indices([context] * num_rows),
        ),
        shape=StepShape(
            num_rows=num_rows,
            num_tokens=num_tokens,
            max_query_len=query_len,
            has_decodes=is_decode,
            has_chunks=not is_decode,
            is_fresh=not is_decode,
        ),
    )


def attention_work(setting: Setting) -> Work:
    """Norms, rotation, cache store and attention: everything between the QKV and the output projection."""
    batch = _make_batch(setting)
    backend = batch.backend
    plan = backend.plan(batch.inputs, setting.dtype)

    def run(copy: int) -> torch.Tensor:
        cache, scales = batch.caches[copy], batch.scales[copy]
        return backend.run(batch.qkv, batch.rope, batch.norms, cache, plan, batch.spec, scales=scales)

    config, itemsize = setting.config, setting.dtype.itemsize
    pair_operations = 4.0 * config.num_heads * config.head_dim
    key_bytes = _key_bytes(setting)
    num_keys = setting.num_rows * setting.context
    is_decode = setting.phase == "decode"
    num_pairs = num_keys if is_decode else num_keys * (setting.context + 1) / 2
    moved = batch.qkv.nbytes + setting.num_tokens * (config.num_heads * config.head_dim * itemsize + key_bytes)
    return Work(
        run=run,
        num_bytes=moved + (num_keys * key_bytes if is_decode else 0),
        num_operations=num_pairs * pair_operations,
        num_copies=len(batch.caches),
    )


def _attention(setting: Setting) -> Work:
    work = attention_work(setting)
    return replace(work, libraries=_sdpa(setting, work.num_copies))


def _sdpa(setting: Setting, num_copies: int) -> dict[str, Run]:
    """PyTorch's attention on dense keys and values: no pages, norms, rotation or cache store."""
    config, num_rows, context = setting.config, setting.num_rows, setting.context
    num_queries = 1 if setting.phase == "decode" else context
    q = setting.random(num_rows, config.num_heads, num_queries, config.head_dim)
    shape = (num_rows, config.num_kv_heads, context, config.head_dim)
    pairs = [(setting.random(*shape), setting.random(*shape)) for _ in range(num_copies)]

    def with_backend(backend: SDPBackend | None) -> Run:
        def run(copy: int) -> torch.Tensor:
            keys, values = pairs[copy]
            is_causal = num_queries > 1
            if backend is None:
                return F.scaled_dot_product_attention(q, keys, values, is_causal=is_causal, enable_gqa=True)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, keys, values, is_causal=is_causal, enable_gqa=True)

        return run

    if setting.platform.kernel_set != "cuda":
        return {"SDPA": with_backend(None)}
    return {
        "cuDNN": with_backend(SDPBackend.CUDNN_ATTENTION),
        "flash": with_backend(SDPBackend.FLASH_ATTENTION),
    }


def _rope_and_store(setting: Setting) -> Work:
    batch = _make_batch(setting)
    config, norms, inputs = setting.config, batch.norms, batch.inputs
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    qkv = batch.qkv.view(setting.num_tokens, heads + 2 * kv_heads, head_dim)

    def run(copy: int) -> None:
        cache, mapping = batch.caches[copy], inputs.slot_mapping
        basic.qk_rope_store(qkv, norms.query, norms.key, norms.eps, *batch.rope, cache, mapping, heads, kv_heads)

    # Queries and keys are read and written, values read, keys and values written to the cache.
    heads_moved = 2 * (heads + kv_heads) + kv_heads + 2 * kv_heads
    num_bytes = setting.num_tokens * heads_moved * head_dim * setting.dtype.itemsize
    return Work(run=run, num_bytes=num_bytes, num_copies=len(batch.caches))


CASES = (
    KernelCase("attention with norms, rotation and cache", _attention, per_layer=1),
    KernelCase("its norms, rotation and cache", _rope_and_store, quantizes=False),
)
