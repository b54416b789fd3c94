"""Compiles, without a GPU, every kernel that a model's steps launch on one of compute capability 9.0.

    python compile_for_gpu.py CASE

prints the names of the kernels and how often each was compiled. The interpreter finds wrong numbers, this finds what
the compiler does not take.
"""

import collections
import os
import pkgutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
sys.path.append(str(Path(__file__).parents[2] / "execution"))

import torch
import triton
from tiny_engine import MAX_LEN, TinyEngine, tiny_config
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from octavo.execution.build import make_draws
from octavo.execution.forward import ForwardPass
from octavo.execution.runner import ModelRunner
from octavo.execution.sampling_tail import SamplingTail
from octavo.execution.sizes import DeviceSizes
from octavo.kernels import triton as triton_kernels
from octavo.kernels.dispatch import ReadyKernels, bind
from octavo.kernels.triton import (  # noqa: F401
    launch,
    linear,
    linear_float8,
    prefill_attention,
    quantize,
    register,
)
from octavo.kernels.triton.attention import TritonAttention
from octavo.kernels.triton.linear import SmallBatchLinear
from octavo.kernels.triton.step import TritonStepKernels
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.head_terms import AttentionTerms, alibi_slopes
from octavo.layers.moe import Router
from octavo.layers.weights import finish
from octavo.models.registry import build_model
from octavo.quantization import scheme
from octavo.quantization.bitsandbytes import parse_bitsandbytes
from octavo.quantization.block_config import parse_gguf, round_to_int8, round_to_mxfp4
from octavo.quantization.cache_format import CacheFormat
from octavo.quantization.config import QuantizationConfig, SchemeOptions, Unquantized
from octavo.quantization.float8_config import parse_float8, round_to_float8
from octavo.quantization.gptq import parse_gptq
from octavo.quantization.modelopt import parse_modelopt
from octavo.quantization.quark import parse_quark
from octavo.records import NgramDrafts
from octavo.records.experts import ExpertSpec
from octavo.sampling.device_sampler import DeviceSampler

CPU = torch.device("cpu")
CASES: dict[str, tuple[str, torch.dtype, int, bool]] = {
    "llama-float32": ("LlamaForCausalLM", torch.float32, 64, False),
    "llama-float32-small-heads": ("LlamaForCausalLM", torch.float32, 8, False),
    "qwen3-bfloat16": ("Qwen3ForCausalLM", torch.bfloat16, 64, False),
    "gemma3-float16-deterministic": ("Gemma3ForCausalLM", torch.float16, 64, True),
    "llama-bfloat16-drafts": ("LlamaForCausalLM", torch.bfloat16, 128, False),
    "gemma3-float16-deterministic-drafts": ("Gemma3ForCausalLM", torch.float16, 64, True),
    "llama-bfloat16": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-float8": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-float8-blocks": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-int4": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-int4-wide-groups": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-bytes": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-int8": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-mxfp4": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-nvfp4": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-float16-nf4": ("LlamaForCausalLM", torch.float16, 64, True),
    "llama-bfloat16-gguf": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "qwen3-moe-bfloat16": ("Qwen3MoeForCausalLM", torch.bfloat16, 64, False),
    "qwen3-moe-bfloat16-float8": ("Qwen3MoeForCausalLM", torch.bfloat16, 64, False),
    "qwen3-moe-bfloat16-int4": ("Qwen3MoeForCausalLM", torch.bfloat16, 64, False),
    "qwen3-moe-bfloat16-nvfp4": ("Qwen3MoeForCausalLM", torch.bfloat16, 64, False),
    "qwen3-moe-float16-int8": ("Qwen3MoeForCausalLM", torch.float16, 64, True),
    "qwen3-moe-bfloat16-gguf": ("Qwen3MoeForCausalLM", torch.bfloat16, 64, False),
    "qwen3-moe-bfloat16-bounded": ("Qwen3MoeForCausalLM", torch.bfloat16, 64, False),
    "gpt-oss-bfloat16-mxfp4": ("GptOssForCausalLM", torch.bfloat16, 64, False),
    "gpt-oss-bfloat16": ("GptOssForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-small-heads": ("LlamaForCausalLM", torch.bfloat16, 8, False),
    "gemma3-bfloat16-slopes-drafts": ("Gemma3ForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-sinks": ("LlamaForCausalLM", torch.bfloat16, 64, False),
    "llama-bfloat16-cache-fp8": ("LlamaForCausalLM", torch.bfloat16, 128, False),
    "gemma3-float16-cache-int8-drafts": ("Gemma3ForCausalLM", torch.float16, 64, False),
    "llama-float16-cache-given": ("LlamaForCausalLM", torch.float16, 64, True),
    "llama-bfloat16-cache-by-head": ("LlamaForCausalLM", torch.bfloat16, 128, False),
    "deepseek-bfloat16-cache-fp8": ("DeepseekV2ForCausalLM", torch.bfloat16, 64, False),
    "deepseek-bfloat16-indexer": ("DeepseekV32ForCausalLM", torch.bfloat16, 8, False),
}
CACHES = {
    "fp8": CacheFormat("float8_e4m3fn"),
    "int8": CacheFormat("int8"),
    "given": CacheFormat("float8_e4m3fn", has_given_scales=True),
    "by-head": CacheFormat("float8_e4m3fn", has_given_scales=True, has_head_scales=True),
}


class _Driver:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(case: str) -> None:
    architecture, dtype, head_dim, deterministic = CASES[case]
    compiled: collections.Counter[str] = collections.Counter()
    original = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **options)
        compiled[self.fn.__name__] = len(self.device_caches[0][0])
        return kernel

    JITFunction.run = compile_only
    triton.runtime.driver.set_active(_Driver())
    launch._has_dependent_launch = lambda device: True
    quantize._converts = lambda device: True
    linear.is_supported = lambda device: True
    prefill_attention._STORED_LENGTH = 1024  # the longest row of a step here
    modules = [
        import_module(f"octavo.kernels.triton.{found.name}") for found in pkgutil.iter_modules(triton_kernels.__path__)
    ]
    for module in modules:
        if hasattr(module, "num_multiprocessors"):
            module.num_multiprocessors = lambda device: 132
        if hasattr(module, "is_hopper"):
            module.is_hopper = lambda device: True
        if hasattr(module, "multiplies_blocks"):
            module.multiplies_blocks = lambda device: True
    # Two layers, but of experts: GEMMs of the second take up what those of the first leave of a norm.
    second = "sliding_attention" if architecture.startswith(("Gemma", "GptOss")) else "full_attention"
    windows = ("full_attention", second)[: 1 if architecture.startswith("Deepseek") or "Moe" in architecture else 2]
    # Steps of 128 inputs take other kernels than those of 32.
    has_steps = case.endswith(("wide-groups", "bytes", "gguf", "nvfp4", "nf4")) or case == "llama-bfloat16-mxfp4"
    hidden, between = (256, 384) if has_steps else (64, 96)
    if case.endswith("blocks"):
        hidden, between = 512, 512
        linear_float8.MAX_BLOCK_ROWS = 1024  # torch multiplies blocks on GPUs only
    if case == "llama-bfloat16":
        hidden = 2560  # a norm's row is ten rounds of its GEMM: no power of two
    elif case == "qwen3-bfloat16":
        hidden = 632  # the last round of a few normed rows is not full
    elif case == "qwen3-moe-bfloat16-float8":
        hidden = 128  # whole steps of specialised warps
    shape = {"head_dim": head_dim, "hidden_size": hidden, "intermediate_size": between}
    config = replace(tiny_config(architecture, windows, 5), **shape)
    experts = getattr(config.own, "experts", None)
    if experts is not None and case.endswith(("float8", "int4", "int8", "mxfp4", "nvfp4", "gguf")):
        size = max(hidden, 64)  # a multiple of a unit
        config = replace(config, own=replace(config.own, experts=replace(experts, size=size)))
    if case == "qwen3-moe-bfloat16-float8":
        # As many experts of a token as a program of a single token's has slices.
        experts = config.own.experts
        config = replace(
            config, own=replace(config.own, experts=replace(experts, routing=replace(experts.routing, num_chosen=4)))
        )
    if experts is not None and case.endswith("bounded"):
        bounded = replace(
            experts, spec=ExpertSpec("swiglu_step", limit=7.0), size=64
        )  # both GEMMs by specialised warps
        config = replace(config, own=replace(config.own, experts=bounded))
    torch.set_default_dtype(dtype)
    options = SchemeOptions(deterministic=deterministic)
    quantization: QuantizationConfig = Unquantized()
    if case.endswith("float8"):
        quantization = round_to_float8(replace(options, has_float8=True))
    elif case.endswith("blocks"):
        quantization = parse_float8({"weight_block_size": [128, 128]}, replace(options, has_float8=True))
    elif "int4" in case:
        group = 128 if case.endswith("wide-groups") else 32
        quantization = parse_gptq({"bits": 4, "group_size": group, "sym": False}, options)
    elif case.endswith("mxfp4"):
        quantization = round_to_mxfp4(replace(options, has_groups=True))
    elif case.endswith("nvfp4"):
        quantization = parse_modelopt({"quant_algo": "NVFP4"}, replace(options, has_groups=True))
    elif case.endswith("nf4"):
        raw = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
        quantization = parse_bitsandbytes(raw, replace(options, has_groups=True))
    elif case.endswith("gguf"):
        kinds = {"self_attn.q_proj": "Q4_K", "self_attn.k_proj": "IQ4_NL", "self_attn.v_proj": "Q6_K"}
        kinds |= {"self_attn.o_proj": "Q5_K", "mlp.gate_proj": "Q4_K", "mlp.up_proj": "Q4_K", "mlp.down_proj": "Q6_K"}
        kinds |= {"mlp.experts.*.gate_proj": "Q4_K", "mlp.experts.*.up_proj": "Q4_K", "mlp.experts.*.down_proj": "Q6_K"}
        types = {f"model.layers.{i}.{name}": kind for i in (0, 1) for name, kind in kinds.items()}
        types["model.embed_tokens"] = "Q8_0"
        quantization = parse_gguf({"types": types}, replace(options, has_groups=True, packs_gguf=True))
    elif case.endswith("bytes"):
        quantization = round_to_int8(replace(options, has_groups=True))
    elif case.endswith("int8"):
        int8 = {"dtype": "int8", "qscheme": "per_channel"}
        quantization = parse_quark({"global_quant_config": {"weight": int8, "input_tensors": int8}}, options)
    stored = next((CACHES[kind] for kind in CACHES if f"cache-{kind}" in case), CacheFormat())
    model = build_model(config, Build(quantization, cache=stored), MAX_LEN)
    if "sinks" in case or "slopes" in case:
        slopes = alibi_slopes(config.num_heads) if "slopes" in case else None
        for module in model.modules():
            if isinstance(module, RotaryAttention):
                module.terms = AttentionTerms(config.num_heads, Build(), has_sinks=True, slopes=slopes)
    scheme.linear = lambda weight, bias, **_: (SmallBatchLinear(weight, bias, deterministic=deterministic), False)
    bind(CPU, "cuda")
    for parameter in model.parameters():
        if parameter.dtype is torch.uint8:
            parameter.zero_()  # not all bytes are scales
        elif case.endswith("blocks") and parameter.dtype is torch.float32:
            parameter.fill_(1)  # a scale for each block
        elif case.endswith(("gguf", "int4")) and parameter.dtype in (torch.float32, torch.float16):
            parameter.fill_(1)  # scales and offsets are finite
    for module in model.modules():
        if isinstance(module, Router):
            module.weight.normal_()
            if not case.endswith("mxfp4"):
                module.weight.copy_(module.weight.to(dtype))  # as most checkpoints have it
    finish(model)
    # A warp's part of a tile is one block of a quantised cache, and several of another. Prefill on Hopper reads and
    # writes the cache only in blocks of 8 tokens or more.
    block_size = 16 if stored.dtype or case.startswith("llama-bfloat16") else 4
    plan = TinyEngine(config, model, max_num_batched_tokens=1024, max_num_seqs=8, block_size=block_size).plan
    plan = replace(plan, dtype=str(dtype).removeprefix("torch."))
    if case.endswith("drafts"):
        plan = replace(plan, drafter=NgramDrafts(3, 1, 2), decode_len=4)
    backend = TritonAttention(CPU, plan.max_num_seqs, MAX_LEN, deterministic=deterministic)
    sizes = DeviceSizes(plan, captures=True)
    forward = ForwardPass(model, plan, CPU, backend, TritonStepKernels(), sizes.max_tokens)
    draws = make_draws(forward, plan, TritonStepKernels())
    tail = SamplingTail(forward, draws, plan, config.vocab_size, draw_on_device=DeviceSampler)
    with torch.inference_mode():
        ModelRunner(forward, tail, sizes).rehearse(lambda: nullcontext(ReadyKernels()))
    for name, count in sorted(compiled.items()):
        print(name, count)


if __name__ == "__main__":
    main(sys.argv[1])
