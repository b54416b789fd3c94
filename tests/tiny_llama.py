"""A small random model with a tokenizer, as a Hugging Face folder: quick to load, and nothing like a real one."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 300
EOS = 257
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
)
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "max_model_len": 256,
    "block_size": 4,
    "max_num_seqs": 16,
    "num_gpu_blocks_override": 513,
    "num_threads": 1,
    "use_tqdm_on_load": False,
    "generation_config": "vllm",
}


def write_model(folder: Path, *, window: int | None = None, **changes: int) -> Path:
    """Write a model whose tokens are bytes and some pairs of letters.

    Args:
        window: tokens that its layers see; None for all.
        changes: sizes that are not the usual ones.
    """
    _write_tokenizer(folder)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 256,
        "eos_token_id": EOS,
    }
    sizes |= changes
    torch.manual_seed(1)
    model: LlamaForCausalLM | MistralForCausalLM
    if window is None:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=window))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    vocab |= {"<s>": 256, "</s>": EOS}
    letters = "etaoins"
    merges = [(first, second) for first in letters for second in letters][: VOCAB_SIZE - len(vocab)]
    for first, second in merges:
        vocab[first + second] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
