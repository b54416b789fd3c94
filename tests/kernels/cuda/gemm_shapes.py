"""Shapes of models' GEMMs."""

MODEL_SHAPES = {
    "Qwen3-0.6B": ((4096, 1024, "none"), (1024, 2048, "none"), (6144, 1024, "silu"), (1024, 3072, "none")),
    "Qwen3-8B": ((6144, 4096, "none"), (4096, 4096, "none"), (24576, 4096, "silu"), (4096, 12288, "none")),
    "Gemma-3-12B": ((8192, 3840, "none"), (3840, 4096, "none"), (30720, 3840, "gelu_tanh"), (3840, 15360, "none")),
    "Qwen3-32B": ((10240, 5120, "none"), (5120, 8192, "none"), (51200, 5120, "silu"), (5120, 25600, "none")),
    "Llama-3.3-70B on 4 GPUs": (
        (2560, 8192, "none"),
        (8192, 2048, "none"),
        (14336, 8192, "silu"),
        (8192, 7168, "none"),
    ),
}
"""Weight rows, those of a gate and its up projection together; features; activation."""
