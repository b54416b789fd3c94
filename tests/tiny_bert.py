"""Small random encoders with a WordPiece tokenizer, as Hugging Face folders."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

WORDS = ["a", "cat", "dog", "bird", "purrs", "barks", "sings", "the", "fell", "stocks", "sound", "what", "makes"]
WORDS += ["is", "red"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
MAX_LENGTH = 40
HIDDEN = 24
COLBERT_DIM = 8
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_threads": 1, "use_tqdm_on_load": False}


def write_bert(folder: Path, kind: str = "embed", **changes: Any) -> Path:
    """Write an encoder.

    Args:
        kind: ``embed``; ``classify`` of three classes; ``cross-encoder``; ``colbert``.
        changes: of the configuration.
    """
    sizes: dict[str, Any] = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": MAX_LENGTH,
        "hidden_dropout_prob": 0.0,
    }
    torch.manual_seed(3)
    labels = {"classify": {0: "good", 1: "bad", 2: "neither"}, "cross-encoder": {0: "fit"}}
    if kind in labels:
        config = BertConfig(**sizes, id2label=labels[kind], **changes)
        model: BertModel | BertForSequenceClassification = BertForSequenceClassification(config)
    else:
        names = {"architectures": ["HF_ColBERT"], "dim": COLBERT_DIM} if kind == "colbert" else {}
        model = BertModel(BertConfig(**sizes, **names, **changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower():
                parameter.normal_(0, 0.4)
    model.save_pretrained(folder)
    if kind == "colbert":
        _add_colbert_head(folder)
    _write_tokenizer(folder)
    return folder


def _add_colbert_head(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(path).items()}
    save_file({**tensors, "linear.weight": torch.randn(COLBERT_DIM, HIDDEN)}, path)
    config = path.with_name("config.json")
    config.write_text(config.read_text().replace('"BertModel"', '"HF_ColBERT"'))


def _write_tokenizer(folder: Path) -> None:
    vocab = {token: index for index, token in enumerate([*SPECIAL, *WORDS])}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    frame = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=frame
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
