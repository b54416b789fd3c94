"""How much memory a model takes, from its shape alone."""

from octavo.hub.model_config import ModelConfig


def num_parameters(config: ModelConfig) -> int:
    """Parameters of a dense decoder; exact but for norms on queries and keys."""
    embedding = config.vocab_size * config.hidden_size
    head = 0 if config.tie_word_embeddings else embedding
    return embedding + head + config.num_layers * _layer_parameters(config) + config.hidden_size


def parameters_read_per_token(config: ModelConfig) -> int:
    """Parameters that one decode step must read: the layers and the head, but one row of the embedding."""
    return config.num_layers * _layer_parameters(config) + config.vocab_size * config.hidden_size


def _layer_parameters(config: ModelConfig) -> int:
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, key_values = config.num_heads * head_dim, config.num_kv_heads * head_dim
    attention = hidden * (queries + 2 * key_values) + queries * hidden
    bias = queries + 2 * key_values if config.attention_bias else 0
    return attention + bias + 3 * hidden * config.intermediate_size + 2 * hidden


def activation_bytes(config: ModelConfig, num_tokens: int, num_logit_rows: int, itemsize: int) -> int:
    """Most memory a step's intermediate tensors take, about.

    Args:
        num_tokens: tokens in the largest step.
        num_logit_rows: rows of logits in it.
    """
    widest = max(2 * config.intermediate_size, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
    per_token = (4 * config.hidden_size + 2 * widest) * itemsize
    return num_tokens * per_token + num_logit_rows * config.vocab_size * (itemsize + 4)


def state_bytes(max_num_seqs: int, max_model_len: int) -> int:
    """Device state of the batch: a token id for every place, and some more for the block tables."""
    return max_num_seqs * (max_model_len + 64) * 4


def block_bytes(config: ModelConfig, block_size: int, num_layers: int, itemsize: int) -> int:
    """One cache block: keys and values of ``num_layers`` layers."""
    return 2 * num_layers * block_size * config.num_kv_heads * config.head_dim * itemsize
