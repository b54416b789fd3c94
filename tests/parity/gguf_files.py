"""GGUF files that tests write, and what they are held against."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from comparison import assert_logprobs
from tiny_checkpoints import Checkpoint
from transformers import PreTrainedModel

from octavo import LLM, SamplingParams


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, torch.Tensor]],
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> None:
    """Write a file.

    Args:
        metadata: keys without the architecture; those of None are not written.
        kinds: of tensors that are quantised.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    for name, tensor in tensors:
        values, kind = tensor.detach().contiguous().numpy(), (kinds or {}).get(name)
        writer.add_tensor(name, values if kind is None else gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def assert_same_model(path: Path, model: PreTrainedModel, start: Callable[..., LLM]) -> None:
    """A file gives a model's log-probabilities over a prompt and behind it."""
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=-1, logprobs=-1, detokenize=False)
    prompt = [(7 * index) % 200 for index in range(50)]
    (output,) = start(Checkpoint(model, path)).generate([prompt], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert_logprobs(model, output)
