"""Models that Hugging Face does not have, against its models of the same layers, changed as the descriptions say.

Baichuan (arXiv:2309.10305) is Llama with one projection for queries, keys and values, and in its larger size with ALiBi
(arXiv:2108.12409) in place of rotary embedding; its second version divides each row of the head by its length. Orion
(arXiv:2401.12246) is Llama with layer norms, which is also what StableLM is if all of each head rotates.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import assert_greedy, assert_logprobs
from safetensors.torch import save_file
from tiny.sizes import rope, sizes
from tiny_checkpoints import Checkpoint
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, StableLmConfig

from octavo import LLM, SamplingParams

Start = Callable[..., LLM]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=-1, prompt_logprobs=-1, detokenize=False)
PROMPTS = [[7], list(range(3, 60)), [5] * 17]
SLOPES = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])


class _WithAlibi(nn.Module):
    """Llama of four heads, where a key's score falls with its distance and nothing rotates."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        model.model.rotary_emb.forward = self._rotate_nothing

    def _rotate_nothing(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (*position_ids.shape, self.config.head_dim)
        return torch.ones(shape), torch.zeros(shape)

    def forward(self, token_ids: torch.Tensor, **options: Any) -> Any:
        positions = torch.arange(token_ids.shape[1])
        distances = positions[:, None] - positions
        mask = (-SLOPES[:, None, None] * distances).masked_fill(distances < 0, float("-inf"))
        return self.model(token_ids, attention_mask=mask[None], **options)


def _model(config: PreTrainedConfig) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if name.endswith("norm.weight") else 0.2 * noise)
    return model


def _save(model: PreTrainedModel, folder: Path, weights: dict[str, torch.Tensor], **changes: Any) -> Path:
    config = {**model.config.to_dict(), "dtype": "float32", **changes}
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def _packed(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights with queries, keys and values in one projection."""
    weights = {name: weight for name, weight in model.state_dict().items() if "rotary" not in name}
    for layer in range(model.config.num_hidden_layers):
        start = f"model.layers.{layer}.self_attn."
        parts = [weights.pop(f"{start}{part}_proj.weight") for part in "qkv"]
        weights[f"{start}W_pack.weight"] = torch.cat(parts)
    return weights


def _check(start: Start, reference: Any, folder: Path) -> None:
    for output in start(Checkpoint(reference, folder)).generate(PROMPTS, GREEDY, use_tqdm=False):
        assert_logprobs(reference, output)
        assert_greedy(reference, output)


def test_baichuan_with_rotary_embedding(start: Start, tmp_path: Path) -> None:
    model = _model(LlamaConfig(**sizes(num_key_value_heads=4)))
    _check(start, model, _save(model, tmp_path, _packed(model), architectures=["BaiChuanForCausalLM"]))


def test_baichuan_with_alibi(start: Start, tmp_path: Path) -> None:
    model = _model(LlamaConfig(**sizes(num_key_value_heads=4)))
    changes = {"architectures": ["BaichuanForCausalLM"], "max_position_embeddings": None, "model_max_length": 256}
    _check(start, _WithAlibi(model), _save(model, tmp_path, _packed(model), **changes))


def test_baichuan_2_normalizes_its_head(start: Start, tmp_path: Path) -> None:
    model = _model(LlamaConfig(**sizes(num_key_value_heads=4, vocab_size=125_696)))
    folder = _save(model, tmp_path, _packed(model), architectures=["BaichuanForCausalLM"])
    with torch.no_grad():
        model.lm_head.weight.copy_(nn.functional.normalize(model.lm_head.weight))
        expected = model(torch.tensor([PROMPTS[1]])).logits[0, -1].log_softmax(-1)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=9, detokenize=False)
    (output,) = start(Checkpoint(model, folder)).generate([PROMPTS[1]], params, use_tqdm=False)
    assert output.outputs[0].logprobs is not None
    found = {token: entry.logprob for token, entry in (output.outputs[0].logprobs[0] or {}).items()}
    assert found == pytest.approx(
        {token: expected[token].item() for token in expected.topk(9).indices.tolist()}, abs=1e-4
    )


def test_orion(start: Start, tmp_path: Path) -> None:
    whole = rope("default", partial_rotary_factor=1.0)
    model = _model(StableLmConfig(**sizes(layer_norm_eps=1e-5, rope_parameters=whole)))
    weights = {name: weight for name, weight in model.state_dict().items() if "rotary" not in name}
    _check(start, model, _save(model, tmp_path, weights, architectures=["OrionForCausalLM"], rms_norm_eps=1e-5))
