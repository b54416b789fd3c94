"""The parts of a device's memory other than the cache, each with the reason for its size."""

from dataclasses import dataclass

import torch

from octavo.hub.model_config import ModelConfig
from octavo.planning import memory
from octavo.planning.units import size
from octavo.platforms import Platform, runtime_of
from octavo.quantization.config import QuantizationConfig
from octavo.records import MemoryPart

WEIGHTS = "weights"
TABLES = "rotary tables"


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of the largest step, and the longest sequence."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    num_groups: int
    max_blocks_per_seq: int
    num_exact_graphs: int = 0
    num_drafts: int = 0
    decode_len: int = 1
    num_recent_tokens: int = 0


def memory_parts(
    config: ModelConfig,
    dtype: torch.dtype,
    model: memory.ModelSize,
    quantization: QuantizationConfig,
    limits: StepLimits,
    platform: Platform,
    *,
    has_graphs: bool,
) -> tuple[MemoryPart, ...]:
    """Memory of a model and its largest step."""
    tokens, rows, length = limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_model_len
    itemsize, pass_elements = dtype.itemsize, runtime_of(platform.device).pass_elements
    stored = f", linear layers in {quantization.description}" if quantization.description else ""
    state = memory.state_bytes(rows, limits.num_recent_tokens, tokens, limits.num_groups, limits.max_blocks_per_seq)
    parts = [
        MemoryPart(
            WEIGHTS, model.weight_bytes, f"{model.num_parameters / 1e9:.2f} G parameters of {itemsize} bytes{stored}"
        ),
        MemoryPart(TABLES, model.table_bytes * length, f"{size(model.table_bytes)} for each of {length} positions"),
        MemoryPart(
            "activations",
            memory.activation_bytes(config, tokens, itemsize, pass_elements),
            f"intermediate tensors of a layer in a step of {tokens} tokens",
        ),
        *_drawing_parts(config, rows, rows * (1 + limits.num_drafts), itemsize, pass_elements),
        MemoryPart("batch state", state, f"recent tokens and block tables of {rows} requests of {length} tokens"),
        MemoryPart("workspaces", platform.workspace_bytes, "buffers of kernels and libraries, as measured"),
        MemoryPart(
            "expanded keys",
            memory.expanded_bytes(model, itemsize, platform),
            "a layer's quantised keys and values in the compute type, for prefill",
        ),
    ]
    captures = platform.captures_graphs and has_graphs and config.pooling is None
    if model.num_chosen is not None and length > model.num_chosen:
        reason = f"scores, and positions of the {model.num_chosen} tokens that each of {tokens} attends to"
        num_bytes = memory.choice_bytes(model.num_chosen, tokens, length)
        # Captured steps have memory of their own.
        num_bytes += memory.choice_bytes(model.num_chosen, rows, length) if captures else 0
        parts.append(MemoryPart("chosen tokens", num_bytes, reason))
    if captures:
        count, num_bytes = memory.graph_bytes(
            config, rows, tokens, itemsize, platform, limits.num_exact_graphs, limits.decode_len
        )
        parts.append(MemoryPart("graphs", num_bytes, f"{count} captured steps"))
    return tuple(part for part in parts if part.num_bytes)


def _drawing_parts(config: ModelConfig, rows: int, draws: int, itemsize: int, pass_elements: int) -> list[MemoryPart]:
    """Memory for sampling; encoders need none."""
    if config.is_encoder:
        return []
    logits = memory.logits_bytes(config, draws, itemsize)
    return [
        MemoryPart("logits", logits, f"{draws} draws by a vocabulary of {config.vocab_size}"),
        MemoryPart("sampler", memory.sampler_bytes(config, draws, pass_elements), "buffers to sort logits"),
        MemoryPart("token counts", memory.count_bytes(config, rows), "tokens of each request, for penalties"),
    ]
