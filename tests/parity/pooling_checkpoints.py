"""Small random pooling models, made by Hugging Face, with sentence-transformers' module files."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny.sizes import rope
from tiny_checkpoints import _randomise
from transformers import (
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    CamembertForSequenceClassification,
    CamembertForTokenClassification,
    CamembertModel,
    Data2VecTextModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
    ErnieForSequenceClassification,
    ErnieModel,
    EsmModel,
    EuroBertModel,
    Gemma2Config,
    Gemma2Model,
    Gemma3TextConfig,
    Gemma3TextModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GteConfig,
    GteForSequenceClassification,
    GteForTokenClassification,
    GteModel,
    JinaEmbeddingsV3Config,
    JinaEmbeddingsV3ForSequenceClassification,
    JinaEmbeddingsV3Model,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaModel,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
    NeoMMEModel,
    NomicBertConfig,
    NomicBertForSequenceClassification,
    NomicBertModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3ForTokenClassification,
    Qwen3Model,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
    RobertaPreLayerNormModel,
    RoCBertForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaXLForSequenceClassification,
    XLMRobertaXLModel,
)

VOCAB_SIZE = 211
_AFTER_PADDING = ("camembert", "data2vec-text", "xlm-roberta-xl", "roberta-prelayernorm", "esm")
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


def _of_library(kind: type[PreTrainedModel], **changes: Any) -> Callable[[], PreTrainedModel]:
    """An encoder that runs as the transformers library has it."""
    is_numbered_after_padding = kind.config_class.model_type in _AFTER_PADDING
    own = _roberta(**changes) if is_numbered_after_padding else _sizes(**changes)
    return lambda: kind(kind.config_class(**own))


def _distilbert(**changes: Any) -> dict[str, Any]:
    own = {"dim": HIDDEN, "hidden_dim": 80, "n_layers": 3, "n_heads": 4, "dropout": 0.0}
    return {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_LENGTH} | own | changes


def _modernbert(**changes: Any) -> ModernBertConfig:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return ModernBertConfig(**(_sizes(num_hidden_layers=7, local_attention=14, **ids) | changes))


def _gemma3(**changes: Any) -> Gemma3TextConfig:
    own = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 12, "use_bidirectional_attention": True}
    layers = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3TextConfig(**_decoder(num_hidden_layers=4, layer_types=layers, **own, **changes))


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
    "roberta-tokens": lambda: RobertaForTokenClassification(RobertaConfig(**_roberta(num_labels=3))),
    "distilbert": lambda: DistilBertModel(DistilBertConfig(**_distilbert())),
    "distilbert-masked-lm": lambda: DistilBertForMaskedLM(DistilBertConfig(**_distilbert(activation="relu"))),
    "distilbert-classifier": lambda: DistilBertForSequenceClassification(DistilBertConfig(**_distilbert(num_labels=3))),
    "distilbert-tokens": lambda: DistilBertForTokenClassification(DistilBertConfig(**_distilbert(num_labels=3))),
    "modernbert": lambda: ModernBertModel(_modernbert()),
    "modernbert-masked-lm": lambda: ModernBertForMaskedLM(_modernbert(global_attn_every_n_layers=2)),
    "modernbert-biased": lambda: ModernBertModel(
        _modernbert(attention_bias=True, mlp_bias=True, norm_bias=True, num_attention_heads=6, local_attention=8)
    ),
    "modernbert-classifier": lambda: ModernBertForSequenceClassification(_modernbert(num_labels=3)),
    "modernbert-mean-classifier": lambda: ModernBertForSequenceClassification(
        _modernbert(num_labels=1, classifier_pooling="mean", classifier_bias=True, norm_bias=True)
    ),
    "modernbert-tokens": lambda: ModernBertForTokenClassification(_modernbert(num_labels=3)),
    "nomic": lambda: NomicBertModel(NomicBertConfig(**_sizes())),
    "nomic-classifier": lambda: NomicBertForSequenceClassification(NomicBertConfig(**_sizes(num_labels=2))),
    "gte": lambda: GteModel(GteConfig(**_sizes())),
    "gte-without-segments": lambda: GteModel(GteConfig(**_sizes(type_vocab_size=0))),
    # NTK-aware scaling by 8 of the base 20000, for heads of 12, as transformers can write it.
    "gte-ntk": lambda: GteModel(GteConfig(**_sizes(rope_parameters=rope("linear", 160_000.0, factor=8 ** (2 / 12))))),
    "gte-classifier": lambda: GteForSequenceClassification(GteConfig(**_sizes(num_labels=1))),
    "gte-tokens": lambda: GteForTokenClassification(GteConfig(**_sizes(num_labels=3))),
    "jina": lambda: JinaEmbeddingsV3Model(JinaEmbeddingsV3Config(**_sizes())),
    "jina-classifier": lambda: JinaEmbeddingsV3ForSequenceClassification(
        JinaEmbeddingsV3Config(**_sizes(num_labels=3))
    ),
    "library-electra": _of_library(ElectraModel, embedding_size=24),
    "library-electra-pretraining": _of_library(ElectraForPreTraining, embedding_size=24),
    "library-electra-classifier": _of_library(ElectraForSequenceClassification, embedding_size=24, num_labels=3),
    "library-electra-tokens": _of_library(ElectraForTokenClassification, embedding_size=24, num_labels=3),
    "library-albert": _of_library(AlbertModel, embedding_size=24, num_hidden_groups=2, num_hidden_layers=4),
    "library-albert-masked-lm": _of_library(AlbertForMaskedLM, embedding_size=24),
    "library-albert-classifier": _of_library(AlbertForSequenceClassification, embedding_size=24, num_labels=3),
    "library-albert-tokens": _of_library(AlbertForTokenClassification, embedding_size=24, num_labels=3),
    "library-ernie": _of_library(ErnieModel, use_task_id=True),
    "library-ernie-classifier": _of_library(ErnieForSequenceClassification, num_labels=1),
    "library-camembert": _of_library(CamembertModel),
    "library-camembert-classifier": _of_library(CamembertForSequenceClassification, num_labels=3),
    "library-camembert-tokens": _of_library(CamembertForTokenClassification, num_labels=3),
    "library-data2vec": _of_library(Data2VecTextModel),
    "library-xlm-roberta-xl": _of_library(XLMRobertaXLModel),
    "library-xlm-roberta-xl-classifier": _of_library(XLMRobertaXLForSequenceClassification, num_labels=3),
    "library-prelayernorm": _of_library(RobertaPreLayerNormModel),
    "library-roc-bert-classifier": _of_library(RoCBertForSequenceClassification, num_labels=3),
    "library-esm": _of_library(EsmModel, position_embedding_type="rotary"),
    "library-eurobert": _of_library(EuroBertModel, num_key_value_heads=2),
    "library-neomme": _of_library(NeoMMEModel),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_decoder())),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_decoder(head_dim=16, tie_word_embeddings=True))),
    "qwen3-untied": lambda: Qwen3ForCausalLM(Qwen3Config(**_decoder(head_dim=16, tie_word_embeddings=False))),
    "qwen3-model": lambda: Qwen3Model(Qwen3Config(**_decoder(head_dim=16))),
    "llama-bidirectional": lambda: LlamaModel(LlamaConfig(**_decoder(is_causal=False))),
    "mistral-bidirectional": lambda: MistralModel(MistralConfig(**_decoder(is_causal=False, sliding_window=9))),
    "llama-bidirectional-classifier": lambda: LlamaForSequenceClassification(
        LlamaConfig(**_decoder(num_labels=1, is_causal=False))
    ),
    # Of Gemma 2, the scores of which are capped.
    "gemma2-bidirectional": lambda: Gemma2Model(
        Gemma2Config(**_decoder(head_dim=16, query_pre_attn_scalar=24, sliding_window=9, is_causal=False))
    ),
    "gemma3-bidirectional": lambda: Gemma3TextModel(_gemma3()),
    "qwen3-bidirectional": lambda: Qwen3Model(Qwen3Config(**_decoder(head_dim=16, is_causal=False))),
    "qwen3-tokens": lambda: Qwen3ForTokenClassification(Qwen3Config(**_decoder(head_dim=16, num_labels=4))),
    "qwen3-classifier": lambda: Qwen3ForSequenceClassification(Qwen3Config(**_decoder(head_dim=16, num_labels=1))),
    "gpt2-classifier": lambda: GPT2ForSequenceClassification(
        GPT2Config(
            vocab_size=VOCAB_SIZE, n_positions=256, n_embd=HIDDEN, n_layer=3, n_head=4, num_labels=3, pad_token_id=0
        )
    ),
    "llama-classifier": lambda: LlamaForSequenceClassification(LlamaConfig(**_decoder(num_labels=3))),
}


COLBERTS = {
    "bert": ("HF_ColBERT", "bert."),
    "modernbert": ("ColBERTModernBertModel", "model."),
    "jina": ("HF_ColBERT", "roberta."),
}
"""Models under ColBERT: the architecture with its linear layer, and the prefix of the model's weights."""


def write_pooling_checkpoint(name: str, folder: Path) -> PoolingCheckpoint:
    """Make and save one of :data:`MODELS`."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.set_attn_implementation("eager")
    _randomise(model, seed=zlib.crc32(name.encode()))
    model.save_pretrained(folder)
    return PoolingCheckpoint(model, folder)


def write_colbert(name: str, folder: Path) -> PoolingCheckpoint:
    """An encoder with a linear layer over its tokens, saved as ColBERT's checkpoints are."""
    architecture, prefix = COLBERTS[name]
    own = {"position_embedding_type": "rotary"} if name == "jina" else {}
    return _write_projected(name, folder, prefix, architectures=[architecture], dim=DENSE, **own)


def write_voyage(folder: Path) -> PoolingCheckpoint:
    """A Qwen3 that attends in both directions, with a linear layer over its tokens, saved as Voyage's are."""
    own = {"architectures": ["VoyageQwen3BidirectionalEmbedModel"], "num_labels": DENSE, "is_causal": None}
    return _write_projected("qwen3-bidirectional", folder, "model.", **own)


def write_reward_model(folder: Path, architecture: str, num_labels: int) -> tuple[PoolingCheckpoint, torch.nn.Module]:
    """A Qwen2 with the two layers that make rewards of its tokens, saved as Qwen's are; and these layers."""
    source = write_pooling_checkpoint("qwen2", folder)
    torch.manual_seed(6)
    score = torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, num_labels))
    tensors = load_file(folder / "model.safetensors") | {f"score.{name}": x for name, x in score.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    change_config(folder, architectures=[architecture])
    return source, score.requires_grad_(False)


def _write_projected(name: str, folder: Path, prefix: str, **config: Any) -> PoolingCheckpoint:
    source = write_pooling_checkpoint(name, folder)
    dense = torch.randn(DENSE, HIDDEN, generator=torch.Generator().manual_seed(4))
    tensors = {f"{prefix}{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, "linear.weight": dense}, folder / "model.safetensors")
    change_config(folder, **config)
    return PoolingCheckpoint(source.model, folder, dense)


def change_config(folder: Path, **changes: Any) -> None:
    """Change a saved model's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rename_config(folder: Path, **names: str) -> None:
    """Rename keys of a saved model's config.json, given as old name = new name."""
    path = folder / "config.json"
    path.write_text(json.dumps({names.get(key, key): value for key, value in json.loads(path.read_text()).items()}))


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
