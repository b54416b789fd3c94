"""Types of the settings' values: lists of names, bounds of numbers, and vLLM's values that are rejected."""

from typing import Annotated, Literal

from msgspec import Meta

DType = Literal["auto", "bfloat16", "float16", "float32", "half", "float"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy", "hf", "fastsafetensors", "instanttensor", "runai_streamer"]
SAFETENSORS_READERS = ("hf", "fastsafetensors", "instanttensor", "runai_streamer")
"""vLLM's ways to read a folder of safetensors files. There is one here, which has several threads."""
Quantization = Literal[
    "fp8",
    "int8",
    "int4",
    "compressed-tensors",
    "gguf",
    "gptq",
    "awq",
    "bitsandbytes",
    "modelopt",
    "quark",
    "torchao",
    "mxfp4",
    "auto_awq",
    "auto_gptq",
    "auto-round",
    "awq_marlin",
    "fbgemm_fp8",
    "fp8_per_channel",
    "gpt_oss_mxfp4",
    "gptq_marlin",
    "inc",
    "modelopt_fp4",
    "modelopt_mixed",
    "modelopt_mxfp8",
    "moe_wna16",
    "mxfp8",
]
QUANTIZATION_ALIASES = {
    "auto_awq": "awq",
    "auto_gptq": "gptq",
    "auto_round": "auto-round",
    "awq_marlin": "awq",
    "fp8_per_channel": "fp8",
    "gpt_oss_mxfp4": "mxfp4",
    "gptq_marlin": "gptq",
    "inc": "auto-round",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
    "modelopt_mxfp8": "modelopt",
    "mxfp8": "modelopt",
}
"""vLLM's other names of methods, in the setting and in checkpoints; kernels are chosen by the weights here."""
MODELOPT_ALGORITHMS = {
    "modelopt_fp4": ("NVFP4", "W4A16_NVFP4"),
    "modelopt_mixed": ("MIXED_PRECISION",),
    "modelopt_mxfp8": ("MXFP8",),
    "mxfp8": ("MXFP8",),
}
"""vLLM's names of ModelOpt's methods, as settings → ``quant_algo`` of checkpoints."""
SHARED_KERNELS = {"moe_wna16": ("awq", "gptq")}
"""vLLM's names of kernels → the methods whose checkpoints they take; as settings they only confirm the checkpoint's."""
MoeBackend = Literal[
    "auto", "triton", "native", "torch", "batched_triton", "triton_unfused", "deep_gemm", "deep_gemm_mega_moe",
    "cutlass",
    "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_moe_ep_cutedsl", "flashinfer_b12x",
    "flashinfer_moe_ep_mega_deep_gemm", "b12x", "marlin", "humming", "aiter", "aiter_mega_moe",
    "aiter_triton_mxfp4_bf16", "aiter_triton_mxfp4_mxfp4", "flydsl", "hpc", "emulation", "rdna3"
]  # fmt: skip
Policy = Literal["fcfs", "priority"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]
ModelImpl = Literal["auto", "octavo", "vllm", "transformers"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
KVCacheDType = Literal[
    "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head"
]
PositiveInt = Annotated[int, Meta(ge=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]
BlockSize = Annotated[int, Meta(ge=1, le=1024)]
BlockCount = Annotated[int, Meta(ge=2)]

_CODEBOOKS = "has rotations and codebooks of its own, which Octavo does not have (yet)"
_PICKLES = "reads pickles, which can run code; convert them to safetensors"
_OTHER_STORES = "reads weights that other programs prepared, which Octavo does not have (yet)"
_OTHER_METHOD = "is a method that Octavo does not have (yet)"
_FOUR_BITS = "has 4 bits, and 8 are the fewest that Octavo has (yet)"

REJECTED_VALUES: dict[str, dict[str, str]] = {
    "kv_cache_dtype": {
        "fp8_ds_mla": "is a layout of one kernel library; fp8 rounds latent vectors as a whole",
        "fp8_inc": "is for Gaudi processors",
        **dict.fromkeys(("int4_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"), _FOUR_BITS),
        **dict.fromkeys(("octave_k3v3", "octave_k3v3_compact", "octave_k3v4", "ultraquant_4bit"), _CODEBOOKS),
        **dict.fromkeys(
            ("turboquant_3bit_nc", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4"), _CODEBOOKS
        ),
    },
    "quantization": {
        "humming": "names kernels, which are chosen by the weights; leave it out",
        "fp8_per_tensor": "has one scale for a layer; fp8 rounds with a scale per output",
        "fp8_per_block": "has a scale per block; fp8 rounds with a scale per output",
        **dict.fromkeys(("experts_int8", "int8_per_channel_weight_only"), "rounds experts alone; take int8"),
        "online": "names no format; take fp8, int8, int4 or mxfp4",
        **dict.fromkeys(
            ("deepseek_v4_fp8", "fp_quant", "nvfp4_per_token"),
            _OTHER_METHOD,
        ),
    },
    "load_format": {
        "mistral": "reads Mistral's own names of tensors; take the folder's other copy, with config.json",
        **dict.fromkeys(("pt", "npcache"), _PICKLES),
        **dict.fromkeys(
            ("ipc_cache", "modelexpress", "runai_streamer_sharded", "sharded_state", "tensorizer"), _OTHER_STORES
        ),
    },
}
"""Setting → vLLM's values that it does not take, and why."""


def explain_value(name: str, value: object) -> str:
    """Why a setting does not take a value that vLLM takes, as the rest of a sentence; empty for other values."""
    reason = REJECTED_VALUES.get(name, {}).get(str(value))
    return f"; {value} {reason}" if reason else ""
