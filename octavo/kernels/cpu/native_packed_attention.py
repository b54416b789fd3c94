"""Attention of encoders by the compiled kernels, which read sequences where they lie."""

import torch

from octavo.kernels.attention import AttentionSpec, HeadNorms, RopeTables
from octavo.kernels.packed_attention import PackedPlan, packed_attention
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels, profiled


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for encoders on CPUs; other types than theirs run as the reference."""

    profiled_attention = profiled("packed_attention")

    @packed_attention.register("cpu")
    def attend(
        qkv: torch.Tensor,
        plan: PackedPlan,
        spec: AttentionSpec,
        window: int | None = None,
        rope: RopeTables | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        if qkv.dtype not in TYPE_NUMBERS:
            return packed_attention.reference(qkv, plan, spec, window, rope, norms)
        qkv = qkv.contiguous()
        output = qkv.new_empty(len(qkv), spec.num_heads * spec.head_dim)
        output[plan.num_tokens :] = 0
        tiles, num_places = plan.tiles
        counts = torch.tensor((0, 0, plan.num_tokens), dtype=torch.int32)
        rotary = 0 if rope is None else rope[0].shape[-1]
        type_number = TYPE_NUMBERS[qkv.dtype]
        with profiled_attention:
            native.packed_attention(
                qkv.data_ptr(),
                output.data_ptr(),
                tiles.ctypes.data,
                len(tiles),
                num_places,
                spec.num_heads,
                spec.num_kv_heads,
                spec.head_dim,
                window or 0,
                spec.scale,
                spec.softcap or 0.0,
                type_number,
                counts.data_ptr(),
                0 if norms is None else norms.query.data_ptr(),
                0 if norms is None else norms.key.data_ptr(),
                0.0 if norms is None else norms.eps,
                type_number if norms is None else TYPE_NUMBERS[norms.query.dtype],
                0 if rope is None else rope[0].data_ptr(),
                0 if rope is None else rope[1].data_ptr(),
                rotary,
            )
        return output
