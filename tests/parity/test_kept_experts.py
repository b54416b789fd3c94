"""Checkpoints whose experts stay quantised write what they write from the values that their tensors stand for."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.sizes import sizes
from tiny_checkpoints import Checkpoint
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from octavo import LLM, SamplingParams
from octavo.layers.experts import Experts
from octavo.platforms.cpu import CpuPlatform

sys.path.append(str(Path(__file__).parents[1] / "quantization"))

from integer_checkpoints import draw, gptq

PARAMS = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=3, detokenize=False, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": list(range(20, 60))}]
SIZES = sizes(hidden_size=64, moe_intermediate_size=32, num_hidden_layers=2, num_experts_per_tok=2)
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}


def qwen() -> PreTrainedModel:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=4, head_dim=16, norm_topk_prob=True))


def deepseek() -> PreTrainedModel:
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **SIZES | {"num_key_value_heads": 4},
            n_routed_experts=4,
            first_k_dense_replace=1,
            n_group=2,
            topk_group=1,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=16,
        )
    )


def as_blocks(shape: tuple[int, int], random: torch.Generator) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    scales = 0.02 + 0.1 * torch.rand(shape[0] // 32, shape[1] // 32, generator=random)
    spread = scales.repeat_interleave(32, 0).repeat_interleave(32, 1)
    return {"weight": values, "weight_scale_inv": scales}, values.float() * spread


def as_gptq(shape: tuple[int, int], random: torch.Generator) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    drawn = draw(shape, random, group=32, symmetric=False)
    return gptq(drawn), drawn.weight


def write(model: PreTrainedModel, raw: dict[str, Any], store: Callable[..., Any], plain: Path, packed: Path) -> None:
    """A checkpoint of values, and one whose experts alone are quantised."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    model.save_pretrained(plain)
    shutil.copytree(plain, packed, dirs_exist_ok=True)
    tensors = load_file(plain / "model.safetensors")
    stored = dict(tensors)
    kept = [name.removesuffix(".weight") for name, tensor in tensors.items() if tensor.dim() == 2]
    for layer in [name for name in kept if re.search(r"\.experts\.\d", name)]:
        kept.remove(layer)
        parts, values = store(tuple(stored.pop(f"{layer}.weight").shape), random)
        tensors[f"{layer}.weight"] = values
        stored |= {f"{layer}.{leaf}": tensor.contiguous() for leaf, tensor in parts.items()}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    by_method = {"fp8": {"modules_to_not_convert": kept}, "gptq": {"dynamic": {f"-:{name}$": {} for name in kept}}}
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = raw | by_method[raw["quant_method"]]
    (packed / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("make", "raw", "store", "stored_as"),
    [
        (qwen, GPTQ, as_gptq, "int4"),
        (qwen, BLOCKS, as_blocks, "float8"),
        (deepseek, BLOCKS, as_blocks, "float8"),
    ],
    ids=["qwen-gptq", "qwen-blocks", "deepseek-blocks"],
)
def test_experts_that_stay_quantised(
    make: Callable[[], PreTrainedModel],
    raw: dict[str, Any],
    store: Callable[..., Any],
    stored_as: str,
    start: Callable[..., LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(make().eval(), raw, store, tmp_path / "plain", tmp_path / "packed")
    (expected, _) = generate(start, tmp_path / "plain")
    for name in ("has_groups", "has_float8"):
        monkeypatch.setattr(CpuPlatform, name, lambda self: True)
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    # Without the method's name, float32 asks for expanded weights.
    found, formats = generate(start, tmp_path / "packed", quantization=raw["quant_method"])
    assert formats == {stored_as}
    for one, other in zip(expected, found, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        for entries, others in zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
            for token, entry in entries.items():
                assert others[token].logprob == pytest.approx(entry.logprob, abs=1e-3)


def generate(start: Callable[..., LLM], folder: Path, **settings: Any) -> tuple[list[Any], set[str]]:
    """Answers, and how experts are stored."""
    llm = start(Checkpoint(None, folder), device="cpu", **settings)  # type: ignore[arg-type]
    (formats,) = llm.apply_model(
        lambda model: {module.stored_as for module in model.modules() if isinstance(module, Experts)}
    )
    return llm.generate(PROMPTS, PARAMS), formats
