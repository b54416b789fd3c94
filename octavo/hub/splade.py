"""SPLADE (arXiv:2109.10086): sparse embeddings of a BERT with its masked-language-model head."""

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import quote
from octavo.hub.model_config import ModelConfig
from octavo.records import DenseSpec, NormSpec, PoolingSpec

SPLADE = "BertSpladeSparseEmbeddingModel"


def splade_spec(config: ModelConfig) -> PoolingSpec:
    """The pooling of a SPLADE model: a vector with one entry per token of the vocabulary."""
    if config.hidden_act != "gelu" or config.raw.get("tie_word_embeddings") is False:
        raise UnsupportedModelError(
            "A SPLADE model's head is tied to its embeddings and uses gelu; the configuration has "
            f"tie_word_embeddings = {quote(config.raw.get('tie_word_embeddings'))} and hidden_act = "
            f"{quote(config.hidden_act)}."
        )
    size, head = config.hidden_size, "cls.predictions"
    norm = NormSpec(f"{head}.transform.LayerNorm", config.rms_norm_eps, True)
    embeddings = "bert.embeddings.word_embeddings"
    return PoolingSpec(
        tasks=["embed"],
        pooling="SPLADE",
        is_encoder=True,
        hidden_size=size,
        dense=[
            DenseSpec("", f"{head}.transform.dense", size, size, True, "gelu", norm),
            DenseSpec("", embeddings, size, config.vocab_size, True, "identity", bias_name=f"{head}.bias"),
        ],
    )
