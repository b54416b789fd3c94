"""Small random models that answer with vectors, made by Hugging Face, with sentence-transformers' module files."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_checkpoints import _randomise
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

VOCAB_SIZE = 211
MAX_LENGTH = 96
HIDDEN = 48
DENSE = 20


@dataclass(frozen=True, slots=True)
class PoolingCheckpoint:
    """A model as Hugging Face runs it, and the folder that it was saved to; ``dense`` is what stands behind it."""

    model: PreTrainedModel
    folder: Path
    dense: torch.Tensor | None = None


def _sizes(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_LENGTH,
        "pad_token_id": 0,
        "hidden_dropout_prob": 0.0,
    } | changes


def _decoder(**changes: Any) -> dict[str, Any]:
    return _sizes(num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2) | changes


def _roberta(**changes: Any) -> dict[str, Any]:
    return _sizes(pad_token_id=1, max_position_embeddings=MAX_LENGTH + 2, type_vocab_size=1) | changes


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BertConfig(**_sizes())),
    "bert-tanh-gelu": lambda: BertModel(BertConfig(**_sizes(hidden_act="gelu_new", layer_norm_eps=1e-5))),
    "bert-masked-lm": lambda: BertForMaskedLM(BertConfig(**_sizes())),
    "roberta": lambda: RobertaModel(RobertaConfig(**_roberta())),
    "bert-classifier": lambda: BertForSequenceClassification(BertConfig(**_sizes(num_labels=3))),
    "bert-cross-encoder": lambda: BertForSequenceClassification(BertConfig(**_sizes(num_labels=1))),
    "bert-tokens": lambda: BertForTokenClassification(BertConfig(**_sizes(num_labels=5))),
    "roberta-classifier": lambda: RobertaForSequenceClassification(RobertaConfig(**_roberta(num_labels=4))),
    "xlm-roberta-cross-encoder": lambda: XLMRobertaForSequenceClassification(
        XLMRobertaConfig(**_roberta(num_labels=1))
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_decoder(head_dim=16, tie_word_embeddings=True))),
    "qwen3-untied": lambda: Qwen3ForCausalLM(Qwen3Config(**_decoder(head_dim=16, tie_word_embeddings=False))),
    "qwen3-model": lambda: Qwen3Model(Qwen3Config(**_decoder(head_dim=16))),
    "llama-classifier": lambda: LlamaForSequenceClassification(LlamaConfig(**_decoder(num_labels=3))),
}


def write_pooling_checkpoint(name: str, folder: Path) -> PoolingCheckpoint:
    """Make and save one of :data:`MODELS`."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    _randomise(model, seed=zlib.crc32(name.encode()))
    model.save_pretrained(folder)
    return PoolingCheckpoint(model, folder)


def write_colbert(folder: Path) -> PoolingCheckpoint:
    """A BERT with a linear layer over its tokens, saved as ColBERT's checkpoints are."""
    source = write_pooling_checkpoint("bert", folder)
    dense = torch.randn(DENSE, HIDDEN, generator=torch.Generator().manual_seed(4))
    tensors = {f"bert.{name}": tensor.contiguous() for name, tensor in source.model.state_dict().items()}
    save_file({**tensors, "linear.weight": dense}, folder / "model.safetensors")
    change_config(folder, architectures=["HF_ColBERT"], dim=DENSE)
    return PoolingCheckpoint(source.model, folder, dense)


def change_config(folder: Path, **changes: Any) -> None:
    """Change a saved model's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def write_modules(folder: Path, mode: str, *, with_dense: bool = False, normalize: bool = True) -> torch.Tensor | None:
    """sentence-transformers' module files; returns the weight of the layer behind pooling, if there is to be one."""
    kinds = ["Transformer", "Pooling"] + ["Dense"] * with_dense + ["Normalize"] * normalize
    places = ["" if kind == "Transformer" else f"{index}_{kind}" for index, kind in enumerate(kinds)]
    modules = [
        {"idx": index, "name": str(index), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{other}": other == mode for other in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": HIDDEN, **modes}))
    if not with_dense:
        return None
    dense = torch.randn(DENSE, HIDDEN, generator=torch.Generator().manual_seed(5))
    (folder / "2_Dense").mkdir()
    config = {"in_features": HIDDEN, "out_features": DENSE, "bias": False}
    activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config | activation))
    save_file({"linear.weight": dense}, folder / "2_Dense" / "model.safetensors")
    return dense
