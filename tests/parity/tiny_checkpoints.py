"""Small random models of every family, made by Hugging Face and written as its checkpoints.

Weights are far from nought, norms far from one and biases far from both, so that an operation left out or done twice
shows in the logits.
"""

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tiny import classic, dense, experts, first, generic, step35
from tiny.sizes import MAX_LENGTH, VOCAB_SIZE
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

from octavo.config.values import ModelImpl

__all__ = ["CONFIGS", "MAX_LENGTH", "VOCAB_SIZE", "Checkpoint", "write_checkpoint"]

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    **first.CONFIGS,
    **dense.CONFIGS,
    **classic.CONFIGS,
    **experts.CONFIGS,
    **step35.CONFIGS,
    **generic.CONFIGS,
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as Hugging Face runs it, the folder that it was saved to, and who implements it in Octavo."""

    model: PreTrainedModel
    folder: Path
    model_impl: ModelImpl = "auto"


def write_checkpoint(name: str, folder: Path) -> Checkpoint:
    """Make the model called ``name`` in :data:`CONFIGS` and save it."""
    config = CONFIGS[name]()
    if getattr(config, "n_groups", 1) > 1 and "group_size" not in inspect.signature(MambaRMSNormGated).parameters:
        pytest.skip("this version of transformers norms all groups of Mamba-2 as one; run with 5.23 or newer")
    # Only the plain implementation knows soft caps; that of Falcon adds ALiBi's penalties twice.
    kind = "sdpa" if getattr(config, "alibi", False) else "eager"
    is_step35 = isinstance(config, step35.Step3p7TextConfig)
    make = step35.Step3p5ForCausalLM._from_config if is_step35 else AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32, attn_implementation=kind).eval()
    _randomise(model, seed=zlib.crc32(name.encode()))
    model.save_pretrained(folder)
    return Checkpoint(model, folder, "transformers" if name in generic.CONFIGS else "auto")


@torch.no_grad()
def _randomise(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name or ".ln_" in name:
            parameter.add_(0.3 * noise)
        elif name.endswith("bias"):
            parameter.copy_(0.5 * noise)
        else:
            parameter.copy_(0.2 * noise)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
