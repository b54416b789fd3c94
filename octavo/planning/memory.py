"""Memory estimates from a model's shape; nothing is loaded."""

from dataclasses import dataclass

import torch
from torch import nn

from octavo.execution.graphs import ladder
from octavo.hub.model_config import ModelConfig
from octavo.kernels.attention import EXPANDED_BYTES
from octavo.kernels.indexer import MAX_SCORES
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.layers.indexer import Indexer
from octavo.layers.moe import SparseMLP
from octavo.layers.rotary import PositionTables
from octavo.models.base import cache_specs
from octavo.models.registry import build_model, build_pooled
from octavo.parallel import ONE_DEVICE, TensorParallel
from octavo.planning.weights import weight_groups
from octavo.platforms import Platform
from octavo.quantization.cache_format import CacheFormat
from octavo.quantization.config import QuantizationConfig, Unquantized
from octavo.quantization.scheme import LinearWeights
from octavo.records import CacheSpec, Full, WeightGroup, is_quantized

# Prompt positions whose logits are computed at a time for log-probabilities, in three float32 buffers.
_PROMPT_LOGPROB_ROWS = 128
# Bytes per logit that the sampler processes at a time: in two float32 buffers that it keeps; sorting needs some more.
_SAMPLER_KEPT_BYTES, _SAMPLER_STEP_BYTES = 8, 24


@dataclass(frozen=True, slots=True)
class RoutedParameters:
    """Parameters of which a token uses some only.

    Attributes:
        num_parameters: of all experts of all layers.
        num_experts, num_chosen: of a layer, in total and per token.
    """

    num_parameters: int
    num_experts: int
    num_chosen: int

    def num_read(self, num_tokens: float) -> float:
        """Expected number of parameters that so many tokens use together, if they draw their experts evenly."""
        return self.num_parameters * (1 - (1 - self.num_chosen / self.num_experts) ** num_tokens)

    @property
    def num_per_token(self) -> float:
        """Number of parameters that one token uses."""
        return self.num_read(1)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Size of a model's tensors.

    Attributes:
        num_parameters: number of parameters, a tied head counted once, however they are stored.
        weights: their sizes by purpose and format.
        table_bytes: bytes of rotary tables per position.
        cache_specs: what its layers keep in the cache, by name.
        routed: the experts' part of the parameters; None without experts.
        num_chosen: tokens that a query attends to, at most; None for all.
        has_plain_experts: whether there are experts in the compute type.
    """

    num_parameters: int
    weights: tuple[WeightGroup, ...]
    table_bytes: int
    cache_specs: dict[str, CacheSpec]
    routed: RoutedParameters | None = None
    num_chosen: int | None = None
    has_plain_experts: bool = False

    @property
    def weight_bytes(self) -> int:
        """Size of all parameters in bytes."""
        return sum(group.num_bytes for group in self.weights)


def model_size(
    config: ModelConfig,
    dtype: torch.dtype,
    quantization: QuantizationConfig | None = None,
    tensor_parallel: TensorParallel = ONE_DEVICE,
    cache: CacheFormat | None = None,
) -> ModelSize:
    """The size of a model in a compute type; builds the model on the meta device, without memory.

    Args:
        quantization: how its weights are stored; None for unquantised.
        tensor_parallel: the part of it that is meant.
        cache: how keys and values are stored; None for the compute type.

    Raises:
        ConfigError: the model cannot be divided over so many devices.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            make = build_model if config.pooling is None else build_pooled
            build = Build(quantization or Unquantized(), tensor_parallel=tensor_parallel, cache=cache or CacheFormat())
            model: nn.Module = make(config, build, 1)
    finally:
        torch.set_default_dtype(before)
    tables = [module for module in model.modules() if isinstance(module, PositionTables)]
    return ModelSize(
        num_parameters=_count_parameters(model),
        weights=weight_groups(model, is_tied=config.tie_word_embeddings),
        table_bytes=sum(buffer.nbytes for table in tables for buffer in table.buffers()),
        cache_specs={} if config.is_encoder else cache_specs(model),
        routed=_routed_parameters(model),
        num_chosen=next((module.num_chosen for module in model.modules() if isinstance(module, Indexer)), None),
        has_plain_experts=any(isinstance(module, Experts) and not module.stored_as for module in model.modules()),
    )


def _count_parameters(model: nn.Module) -> int:
    """Number of parameters, those of linear layers by their sizes: a packed weight has fewer elements, and scales.

    So it is with experts.
    """
    layers = [module for module in model.modules() if isinstance(module, LinearWeights) and _has_weight(module)]
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    stored = {id(parameter) for module in (*layers, *experts) for parameter in module.parameters()}
    others = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in stored)
    biases = sum(layer.bias.numel() for layer in layers if layer.bias is not None)
    others += sum(module.num_parameters for module in experts)
    return others + biases + sum(layer.in_features * layer.out_features for layer in layers)


def _has_weight(layer: LinearWeights) -> bool:
    """Whether a layer stores a weight, which a head and its embedding share."""
    return any(name != "bias" and parameter.numel() > 0 for name, parameter in layer.named_parameters())


def _routed_parameters(model: nn.Module) -> RoutedParameters | None:
    layers = [module for module in model.modules() if isinstance(module, SparseMLP)]
    if not layers:
        return None
    routing = layers[0].gate.routing
    num_parameters = sum(layer.experts.num_parameters for layer in layers)
    return RoutedParameters(num_parameters, routing.num_experts, routing.num_chosen)


def num_parameters(config: ModelConfig) -> int:
    """Number of parameters of a model, a tied head counted once."""
    return model_size(config, torch.bfloat16).num_parameters


def read_parameters(config: ModelConfig) -> tuple[int, RoutedParameters | None]:
    """What decode steps read: parameters outside experts, without the embedding table; and the experts'."""
    size = model_size(config, torch.bfloat16)
    unread = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    routed = 0 if size.routed is None else size.routed.num_parameters
    return size.num_parameters - unread - routed, size.routed


def activation_bytes(config: ModelConfig, num_tokens: int, itemsize: int, pass_elements: int) -> int:
    """Peak memory of a step's intermediate tensors: inside a layer, or while sampling.

    Args:
        num_tokens: tokens in the step.
        pass_elements: logits that the sampler processes at a time.
    """
    if config.pooling is not None:
        return max(layer_bytes(config, num_tokens, itemsize), num_tokens * 3 * config.hidden_size * 4)
    logprobs = _PROMPT_LOGPROB_ROWS * config.vocab_size * 3 * 4
    drawing = max(logprobs, pass_elements * _SAMPLER_STEP_BYTES)
    return max(layer_bytes(config, num_tokens, itemsize), num_tokens * 2 * config.hidden_size * itemsize + drawing)


def layer_bytes(config: ModelConfig, num_tokens: int, itemsize: int) -> int:
    """Peak memory of intermediate tensors inside a layer, in its attention or in its feed-forward half."""
    hidden, gate = config.hidden_size, config.intermediate_size
    queries, key_values = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    # Residual stream and its norm, before and after the last sum; Q, K, V; normed and rotated Q, K; attention output.
    attention = 4 * hidden + (queries + 2 * key_values) + 2 * (queries + key_values) + queries
    # One more hidden state (attention's output); gate and up, and their gated product.
    feed_forward = 5 * hidden + 3 * gate
    tables = 2 * config.head_dim
    return num_tokens * (max(attention, feed_forward) + tables) * itemsize


def choice_bytes(num_chosen: int, num_tokens: int, max_model_len: int) -> int:
    """Scores and chosen positions of a step, and the positions of the layer before."""
    return min(num_tokens * max_model_len, MAX_SCORES) * 4 + 2 * num_tokens * num_chosen * 4


def expanded_bytes(model: ModelSize, itemsize: int, platform: Platform) -> int:
    """The buffer in which prefill has a quantised layer's keys and values in the compute type, if the device has it."""
    has_keys = any(isinstance(spec, Full) and is_quantized(spec) for spec in model.cache_specs.values())
    return EXPANDED_BYTES if has_keys and itemsize == 2 and platform.expands_caches() else 0


def logits_bytes(config: ModelConfig, max_num_seqs: int, itemsize: int) -> int:
    """Logits of the largest batch."""
    return max_num_seqs * config.vocab_size * itemsize


def state_bytes(max_num_seqs: int, num_recent: int, num_tokens: int, num_groups: int, blocks: int) -> int:
    """Device state of the batch (recent tokens, block tables) and a step's inputs.

    Args:
        num_recent: tokens of a request that are kept; see :attr:`octavo.records.Plan.num_recent_tokens`.
        num_tokens: maximum tokens in a step.
        blocks: entries of a block table.
    """
    per_row = 4 * (num_recent + 4 + num_groups * blocks) + 9 * 8
    inputs = num_tokens * (4 + 8 * (2 + num_groups)) + max_num_seqs * (4 + 4 + 8 + 8 + 4)
    return max_num_seqs * per_row + inputs


def sampler_bytes(config: ModelConfig, max_num_seqs: int, pass_elements: int) -> int:
    """Permanent buffers of the sampler, which processes ``pass_elements`` logits at a time."""
    return min(max_num_seqs * config.vocab_size, pass_elements) * _SAMPLER_KEPT_BYTES


def count_bytes(config: ModelConfig, max_num_seqs: int) -> int:
    """The table of how often each token occurs, for penalties: 16 bits per request and token of the vocabulary."""
    return max_num_seqs * config.vocab_size * 2


def graph_bytes(
    config: ModelConfig,
    max_num_seqs: int,
    num_tokens: int,
    itemsize: int,
    platform: Platform,
    num_exact: int = 0,
    decode_len: int = 1,
) -> tuple[int, int]:
    """Number of captured steps and their memory; they share the intermediate tensors of the largest one.

    Args:
        num_tokens: maximum tokens in a step.
        num_exact, decode_len: see :func:`octavo.execution.graphs.ladder`.
    """
    shapes = ladder(max_num_seqs, num_tokens, num_exact, decode_len)
    passing = layer_bytes(config, shapes[0].num_tokens, itemsize)
    kept = sum(shape.num_tokens for shape in shapes) * config.hidden_size * itemsize
    return len(shapes), passing + kept + len(shapes) * platform.graph_bytes
