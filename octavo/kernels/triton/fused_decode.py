"""All of attention between its two projections for rows that decode: norms, rotation, the cache, attention."""

import torch

from octavo.kernels.triton.decode_attention import Cut, DecodeWorkspace, Tile, launch


def fused_decode_attention(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    workspace: DecodeWorkspace,
    *,
    num_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    cut: Cut,
    tile: Tile | None = None,
) -> None:
    """Norm and rotate a row's query and key heads, store its key and value at its last position, and attend.

    Equal to :func:`octavo.kernels.basic.qk_rope_store`, then
    :func:`octavo.kernels.triton.decode_attention.decode_attention`, whose arguments the others are.

    Args:
        qkv: ``[≥ R, (H + 2·Hkv)·D]``, a row contiguous: each row's queries, key and value. It is only read.
        cos, sin: ``[≥ R, 1, Rot]``; see :func:`octavo.kernels.basic.apply_rope`.
        q_norm, k_norm: ``[D]``, weights of the norms of each query and each key head; None for no norm.
        out: ``[≥ R, H, D]``, the last two dimensions contiguous.
    """
    preparation: dict[str, object] = {
        "cos": cos,
        "cos_stride": cos.stride(0),
        "sin": sin,
        "sin_stride": sin.stride(0),
        "q_norm": q_norm,
        "k_norm": k_norm,
        "eps": eps,
        "ROTARY_DIM": cos.shape[-1],
        "FUSED": True,
    }
    launch(
        qkv,
        preparation,
        kv_cache,
        block_tables,
        slots,
        seq_lens,
        counts,
        out,
        workspace,
        num_rows=num_rows,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        cut=cut,
        tile=tile,
    )
