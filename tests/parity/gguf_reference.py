"""A GGUF file as Hugging Face reads and runs it: its own names, its own dequantised weights, its own tokenizer."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def load_reference_model(path: Path) -> PreTrainedModel:
    """The model in float32.

    Transformers' own way from a GGUF file to a model asks for a further library that moves weights between devices;
    the two halves of that way, reading and filling, do without.
    """
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    state = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model, torch_dtype=torch.float32)["tensors"]
    loaded = model.load_state_dict(state, strict=False, assign=True)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    model.tie_weights()
    return model


def load_reference_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer from the same file."""
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
