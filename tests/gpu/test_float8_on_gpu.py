"""Float8 layers on a GPU: the GEMM against its twin, and whole models in graphs against the CPU."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parents[1]))
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.kernels import FLOAT8, bind_kernels, float8_linear
from octavo.kernels import scaled as twins
from octavo.platforms import CudaPlatform

PROMPTS = [[1, 5, 9, 33, 70, 2], [8] * 11, [100]]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 3, 16, 33, 300])
def test_the_gemm_is_that_of_its_twin(num_rows: int, dtype: torch.dtype, has_bias: bool) -> None:
    bind_kernels(CudaPlatform())
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(num_rows, 512, generator=generator, device="cuda").to(dtype)
    weight, scales = twins.quantize_rows.reference(torch.randn(256, 512, generator=generator, device="cuda"))
    bias = torch.randn(256, generator=generator, device="cuda").to(dtype) if has_bias else None
    op, is_copied = float8_linear(weight, scales[:, 0], bias, deterministic=False)
    assert not is_copied
    values, row_scales = twins.quantize_rows.reference(x)
    expected = (values.float() @ weight.float().T) * row_scales * scales.T
    expected = expected if bias is None else expected + bias.float()
    tolerance = 1e-2 if dtype is torch.bfloat16 else 2e-3
    torch.testing.assert_close(op(x).float(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())
    out = torch.empty_like(op(x))
    torch.testing.assert_close(op(x, out), op(x))
    gate, up = op(x).chunk(2, -1)
    torch.testing.assert_close(op.gated(x, "silu"), torch.nn.functional.silu(gate) * up, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_a_model_on_a_gpu_and_on_a_cpu(enforce_eager: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    settings = SETTINGS | {"quantization": "fp8"}
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    on_cpu = LLM(str(folder), **settings).generate(prompts, params)
    llm = LLM(str(folder), **(settings | {"device": "cuda", "enforce_eager": enforce_eager}))
    (stored,) = llm.apply_model(lambda model: [parameter.dtype for parameter in model.parameters()])
    assert stored.count(FLOAT8) == 8
    on_gpu = llm.generate(prompts, params)
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert ours.outputs[0].token_ids[:4] == theirs.outputs[0].token_ids[:4]


def test_updated_weights_take_effect(tmp_path: Path) -> None:
    folder, updated = write_model(tmp_path / "model"), tmp_path / "new"
    updated.mkdir()
    weights = load_file(folder / "model.safetensors")
    save_file({name: -1.5 * weight for name, weight in weights.items()}, updated / "model.safetensors")
    settings = SETTINGS | {"quantization": "fp8", "device": "cuda", "weight_update_dir": str(tmp_path)}
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]

    def answers() -> list[list[int]]:
        return [list(answer.outputs[0].token_ids) for answer in llm.generate(prompts, params)]

    llm = LLM(str(folder), **settings)
    before = answers()
    llm.update_weights("new", "v2")
    assert answers() != before
    llm.update_weights()
    assert answers() == before
