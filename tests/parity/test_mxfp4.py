"""gpt-oss from a checkpoint in MXFP4 writes what it writes from the same values unpacked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.sizes import sizes
from tiny_checkpoints import Checkpoint
from transformers import GptOssConfig, GptOssForCausalLM

from octavo import LLM, SamplingParams
from octavo.layers.experts import Experts
from octavo.platforms.cpu import CpuPlatform

PARAMS = SamplingParams(temperature=0, max_tokens=12, logprobs=3, prompt_logprobs=3, detokenize=False, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": list(range(20, 60))}]
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint in bfloat16's values, and the same one packed."""
    plain, packed = (tmp_path_factory.mktemp(name) for name in ("plain", "packed"))
    config = GptOssConfig(
        **sizes(hidden_size=64, intermediate_size=96, head_dim=16, num_local_experts=3, num_experts_per_tok=2)
    )
    model = GptOssForCausalLM(config).eval()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    model.save_pretrained(plain)
    shutil.copytree(plain, packed, dirs_exist_ok=True)
    tensors = load_file(plain / "model.safetensors")
    stored = dict(tensors)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        num_experts, inputs, outputs = stored.pop(name).shape
        blocks = torch.randint(256, (num_experts, outputs, inputs // 32, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(122, 126, blocks.shape[:-1], generator=random, dtype=torch.uint8)
        values = VALUES[torch.stack((blocks & 15, blocks >> 4), -1).long()].flatten(-2)
        values = (values * 2.0 ** (scales.float() - 127)[..., None]).flatten(2)
        tensors[name] = values.mT.contiguous()
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    raw = json.loads((packed / "config.json").read_text())
    raw["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (packed / "config.json").write_text(json.dumps(raw))
    return plain, packed


@pytest.mark.parametrize("stays", [False, True], ids=["expanded", "kept"])
def test_packed_experts(
    folders: tuple[Path, Path], start: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, *, stays: bool
) -> None:
    """Whether they are expanded at load, or stay as they are on a device whose kernels take them."""
    expected = start(Checkpoint(None, folders[0]), device="cpu").generate(PROMPTS, PARAMS)  # type: ignore[arg-type]
    monkeypatch.setattr(CpuPlatform, "has_groups", lambda self: stays)
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    # Without the method's name, float32 asks for expanded weights.
    packed = start(Checkpoint(None, folders[1]), device="cpu", quantization="mxfp4" if stays else None)  # type: ignore[arg-type]
    (formats,) = packed.apply_model(
        lambda model: {module.stored_as for module in model.modules() if isinstance(module, Experts)}
    )
    assert formats == {"mxfp4" if stays else ""}
    found = packed.generate(PROMPTS, PARAMS)
    for one, other in zip(expected, found, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        for entries, others in zip(
            [*one.prompt_logprobs[1:], *one.outputs[0].logprobs],
            [*other.prompt_logprobs[1:], *other.outputs[0].logprobs],
            strict=True,
        ):
            assert {token: entry.logprob for token, entry in entries.items()} == pytest.approx(
                {token: entry.logprob for token, entry in others.items()}, abs=1e-5 if stays else 0
            )


def test_dummy_weights(folders: tuple[Path, Path], start: Callable[..., LLM]) -> None:
    llm = start(Checkpoint(None, folders[1]), load_format="dummy")  # type: ignore[arg-type]
    assert len(llm.generate(PROMPTS, PARAMS)[1].outputs[0].token_ids) == 12
