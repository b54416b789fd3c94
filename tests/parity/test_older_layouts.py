"""Checkpoints of older models as they are on the hub: without a prefix, with causal masks among the weights."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from comparison import assert_greedy, assert_logprobs
from safetensors.torch import load_file, save_file
from tiny_checkpoints import Checkpoint

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, UnsupportedModelError, WeightsError
from octavo.hub.config_file import parse_config

Start = Callable[..., LLM]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=-1, prompt_logprobs=-1, detokenize=False)
MASK = torch.ones(1, 1, 8, 8)
# Beginning of the names that the hub's checkpoints lack, and what they have beside the weights.
LAYOUTS = {
    "gpt2": ("transformer.", {"h.0.attn.bias": MASK, "h.0.attn.masked_bias": torch.tensor(-1e4)}),
    "gpt-neox": (
        "",
        {
            "gpt_neox.layers.0.attention.bias": MASK.bool(),
            "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9),
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(3),
        },
    ),
    "codegen": ("", {"transformer.h.0.attn.causal_mask": MASK.to(torch.uint8)}),
    "opt": ("model.", {}),
}


def _with_weights(source: Checkpoint, folder: Path, weights: dict[str, torch.Tensor]) -> Checkpoint:
    (folder / "config.json").write_text((source.folder / "config.json").read_text())
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return Checkpoint(source.model, folder)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_the_hub(name: str, checkpoint: Callable[[str], Checkpoint], start: Start, tmp_path: Path) -> None:
    source = checkpoint(name)
    prefix, others = LAYOUTS[name]
    weights = load_file(source.folder / "model.safetensors")
    changed = {key.removeprefix(prefix): weight for key, weight in weights.items()} | others
    llm = start(_with_weights(source, tmp_path, changed))
    (output,) = llm.generate([list(range(3, 40))], GREEDY, use_tqdm=False)
    assert_logprobs(source.model, output)
    assert_greedy(source.model, output)


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "opt", "bloom", "phi"])
def test_vectors_of_the_model_without_its_head(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Start, tmp_path: Path
) -> None:
    base = checkpoint(name).model.base_model
    base.save_pretrained(tmp_path)
    prompts = [[5, 6, 7], list(range(3, 40))]
    with torch.inference_mode():
        states = [base(torch.tensor([prompt]), use_cache=False).last_hidden_state[0, -1] for prompt in prompts]
    llm = start(SimpleNamespace(folder=tmp_path))
    outputs = llm.encode([{"prompt_token_ids": prompt} for prompt in prompts], pooling_task="embed", use_tqdm=False)
    for output, state in zip(outputs, states, strict=True):
        torch.testing.assert_close(output.outputs.data, torch.nn.functional.normalize(state, dim=0), rtol=0, atol=1e-5)


def test_missing_weights_are_named_with_their_prefix(
    checkpoint: Callable[[str], Checkpoint], start: Start, tmp_path: Path
) -> None:
    weights = load_file(checkpoint("gpt2").folder / "model.safetensors")
    del weights["transformer.h.1.attn.c_attn.weight"]
    with pytest.raises(WeightsError, match=r"1 missing: transformer\.h\.1\.attn\.c_attn\.weight"):
        start(_with_weights(checkpoint("gpt2"), tmp_path, weights))


def test_learned_positions_bound_the_length(checkpoint: Callable[[str], Checkpoint], start: Start) -> None:
    with pytest.raises(ConfigError, match="learned vectors of 256 positions"):
        start(SimpleNamespace(folder=checkpoint("gpt2").folder), max_model_len=300, allow_long_max_model_len=True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "add_cross_attention": True}, "add_cross_attention"),
        ({"architectures": ["OPTForCausalLM"], "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ({"architectures": ["BloomForCausalLM"], "apply_residual_connection_post_layernorm": True}, "post_layernorm"),
        ({"architectures": ["MptForCausalLM"], "attn_config": {"alibi": False}}, "alibi"),
        ({"architectures": ["MptForCausalLM"], "attn_config": {"qk_ln": True}}, "qk_ln"),
        ({"architectures": ["MptForCausalLM"], "no_bias": False}, "no_bias"),
        (
            {"architectures": ["FalconForCausalLM"], "new_decoder_architecture": True, "parallel_attn": False},
            "parallel_attn",
        ),
    ],
)
def test_switches_that_are_not_supported_are_named(config: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        parse_config(config)
