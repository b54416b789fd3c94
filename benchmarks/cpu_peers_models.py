"""The model files that ``cpu_peers.py`` runs: one GGUF file as it is, and what is made from its dequantised weights."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType as TensorType
from gguf import LlamaFileType

from octavo.errors import ModelNotFoundError
from octavo.hub import resolve

# By name: the variable and the file name under which ``tests/parity/fetch_weights.py`` finds the weights.
_FETCHED = {
    "gemma3-270m": ("OCTAVO_TEST_GEMMA3_270M", "gemma-3-270m-q4_k_m.gguf"),
    "qwen2.5-coder-1.5b": ("OCTAVO_TEST_QWEN2_5_CODER_1_5B", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
}
NAMES = ("smollm2", *_FETCHED)

_MADE = {
    "bf16": (TensorType.BF16, LlamaFileType.MOSTLY_BF16),
    "q4_0": (TensorType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "q8_0": (TensorType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
# llama.cpp's tool keeps these in more bits than the rest, where a row does not fill its blocks of six bits in Q8_0.
_KEPT_IN_Q8 = ("token_embd.weight", "output.weight")
# These say what is in the file; the writer or we write our own.
_OWN_FIELDS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The forms of one model.

    Attributes:
        name: for tables.
        file_weights: how the weights of the original file are stored, such as ``q4_1``.
        gguf: GGUF files by how their weights are stored.
        folder: the model in bfloat16, as Hugging Face writes it, with its tokenizer.
        cache_bytes_per_token: keys and values of all layers, two bytes each.
    """

    name: str
    file_weights: str
    gguf: dict[str, Path]
    folder: Path
    cache_bytes_per_token: int


def find(name: str) -> Path:
    """The GGUF file of one of :data:`NAMES`, or of that path.

    Raises:
        ModelNotFoundError: it is not on this machine.
    """
    if name == "smollm2":
        return resolve("bundled:smollm2").path
    if name not in _FETCHED:
        return resolve(name).path
    variable, file_name = _FETCHED[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = os.environ.get("OCTAVO_TEST_WEIGHTS") or cache / "octavo-test-weights"
    path = Path(os.environ.get(variable) or Path(folder) / file_name)
    if not path.is_file():
        raise ModelNotFoundError(f"{path.name} is not here; python tests/parity/fetch_weights.py {name} fetches it.")
    return path


def prepare(name: str, work: Path) -> ModelFiles:
    """All forms of a model; what is missing is made and kept in a folder.

    Raises:
        ModelNotFoundError: the model is not on this machine.
    """
    source = find(name)
    title = name if name in NAMES else source.stem
    home = work / title
    home.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    file_weights = LlamaFileType(_value(reader, "general.file_type")).name.removeprefix("MOSTLY_").lower()
    files = {file_weights: source}
    for weights in _MADE:
        if weights not in files:
            target = home / f"{weights}.gguf"
            _make(target, lambda path, weights=weights: write_gguf(reader, path, weights))  # type: ignore[misc]
            files[weights] = target
    folder = home / "bf16"
    _make(folder, lambda path: _write_folder(files["bf16"], path))
    return ModelFiles(title, file_weights, files, folder, _cache_bytes_per_token(reader))


def write_gguf(reader: gguf.GGUFReader, target: Path, weights: str) -> None:
    """Write a copy of a GGUF file with its matrices in another type, made from their values in bfloat16."""
    tensor_type, file_type = _MADE[weights]
    writer = gguf.GGUFWriter(target, _value(reader, "general.architecture"))
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for field in reader.fields.values():
        if not field.name.startswith(_OWN_FIELDS):
            item_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], item_type)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, values)
            continue
        values = gguf.dequantize(gguf.quantize(values, TensorType.BF16), TensorType.BF16)
        is_kept = tensor_type == TensorType.Q4_0 and tensor.name in _KEPT_IN_Q8
        stored = TensorType.Q8_0 if is_kept else tensor_type
        writer.add_tensor(tensor.name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_folder(source: Path, target: Path) -> None:
    """Write a GGUF file as a folder with safetensors, in bfloat16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # As from_pretrained does it, without the package accelerate that it insists on.
    state = load_gguf_checkpoint(source, return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16)
    loaded = model.load_state_dict(state["tensors"], strict=False)
    assert not loaded.unexpected_keys and set(loaded.missing_keys) <= {"lm_head.weight"}, loaded
    model.tie_weights()
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


def _make(target: Path, write: Callable[[Path], None]) -> None:
    """Write a file or folder unless it is there; it appears when it is whole."""
    if target.exists():
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unfinished = Path(scratch) / target.name
        write(unfinished)
        shutil.move(unfinished, target)


def _cache_bytes_per_token(reader: gguf.GGUFReader) -> int:
    architecture = _value(reader, "general.architecture")

    def value(key: str, default: Any = None) -> Any:
        return _value(reader, f"{architecture}.{key}", default)

    num_heads = value("attention.head_count")
    head_size = value("embedding_length") // num_heads
    num_kv_heads = value("attention.head_count_kv", num_heads)
    sizes = value("attention.key_length", head_size) + value("attention.value_length", head_size)
    return 2 * int(value("block_count") * num_kv_heads * sizes)


def _value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()
