"""Weights from safetensors, sound and damaged."""

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from cpu_time import within_cpu_seconds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.torch import save_file
from tiny_weights import FAMILIES, Tiny, folder_of, tiny, write_safetensors, write_shards

from octavo.errors import OctavoError, UnsupportedModelError, WeightsError
from octavo.hub import ModelSource
from octavo.models.loading import LoadReport, load_weights, safetensors_files
from octavo.models.loading.checkpoint import check_fit
from octavo.models.loading.files import in_natural_order
from octavo.models.loading.safetensors_files import SafetensorsCheckpoint
from octavo.quantization.slot import WeightSlot


def load(model: Tiny, source: ModelSource, load_format: str = "auto") -> LoadReport:
    return load_weights(model.model, source, model.config, load_format=load_format, seed=0, show_progress=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_file(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    report = load(model, write_safetensors(tmp_path, model.weights))
    model.assert_loaded()
    assert report.num_bytes == sum(weight.numel() for weight in model.weights.values()) * 4


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_types_are_converted(stored: torch.dtype, tmp_path: Path) -> None:
    model = tiny("llama", torch.bfloat16)
    model.weights.update({name: weight.to(stored) for name, weight in model.weights.items()})
    load(model, write_safetensors(tmp_path, model.weights))
    model.assert_loaded()


@pytest.mark.parametrize("load_format", ["auto", "safetensors", "fastsafetensors", "hf"])
def test_shards(load_format: str, tmp_path: Path) -> None:
    model = tiny("qwen3")
    load(model, write_shards(tmp_path, model.weights), load_format)
    model.assert_loaded()


def test_shards_without_an_index(tmp_path: Path) -> None:
    model = tiny("qwen3")
    source = write_shards(tmp_path, model.weights)
    (tmp_path / "model.safetensors.index.json").unlink()
    load(model, source)
    model.assert_loaded()


@pytest.mark.parametrize("has_index", [True, False])
def test_shards_come_in_natural_order_whatever_the_index_says(has_index: bool, tmp_path: Path) -> None:
    numbers = [10, 1, 9, 2, 100]
    names = [f"model-{number}.safetensors" for number in numbers]
    for number, name in zip(numbers, names, strict=True):
        save_file({f"w{number}": torch.zeros(1)}, tmp_path / name)
    if has_index:
        index = {f"w{number}": name for number, name in zip(numbers, names, strict=True)}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert list(SafetensorsCheckpoint(tmp_path).shapes()) == ["w1", "w2", "w9", "w10", "w100"]


def test_numbers_in_names_are_compared_by_value() -> None:
    names = ["b", "a10", "a010", "a9b2", "a9b10", "a9", "10", "9", "a" + "1" * 5000]
    assert in_natural_order([*names, "b"]) == ["9", "10", "a9", "a9b2", "a9b10", "a010", "a10", "a" + "1" * 5000, "b"]


def test_a_consolidated_copy_is_not_read(tmp_path: Path) -> None:
    model = tiny("mistral")
    save_file({"layers.0.wq": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    load(model, write_safetensors(tmp_path, model.weights))
    model.assert_loaded()


def test_harmless_extras_are_ignored(tmp_path: Path) -> None:
    model = tiny("qwen2")
    extras = {"lm_head.weight": torch.zeros(64, 64), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    load(model, write_safetensors(tmp_path, model.weights | extras))
    model.assert_loaded()


def test_everything_that_does_not_fit_is_named(tmp_path: Path) -> None:
    model = tiny("llama")
    weights = dict(model.weights)
    del weights["lm_head.weight"], weights["model.layers.1.self_attn.k_proj.weight"]
    weights |= {f"extra.{number}": torch.zeros(1) for number in range(7)}
    weights["model.norm.weight"] = torch.zeros(32)
    with pytest.raises(WeightsError) as caught:
        load(model, write_safetensors(tmp_path, weights))
    sentence = str(caught.value)
    assert "2 missing: " in sentence
    assert "lm_head.weight" in sentence
    assert "model.layers.1.self_attn.k_proj.weight" in sentence
    assert "7 unexpected: extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more" in sentence
    assert "1 of the wrong shape: model.norm.weight is [32], the configuration wants [64]" in sentence
    assert all(slot.view.isnan().all() for (slot,) in model.slots.values()), "something was copied before the check"


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..", "x.bin"])
def test_an_index_may_not_lead_elsewhere(name: str, tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(WeightsError, match="not a safetensors file beside it"):
        SafetensorsCheckpoint(inner)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"w": 3}}, {"weight_map": {"w": None}}])
def test_an_index_of_another_form(index: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="weight_map"):
        SafetensorsCheckpoint(tmp_path)


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    model = tiny("llama")
    source = write_shards(tmp_path, model.weights)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00003\.safetensors, which is missing"):
        load(model, source)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"w": torch.zeros(1)}, tmp_path / name)
    with pytest.raises(WeightsError, match="another file"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickles_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=f"{name}.*can run code.*Convert it to safetensors"):
        load(tiny("llama"), folder_of(tmp_path))


def test_gguf_weights_beside_a_config_must_be_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=r"no weights.*name the file: .*model\.gguf"):
        load(tiny("llama"), folder_of(tmp_path))


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no weights"):
        load(tiny("llama"), folder_of(tmp_path))


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    model = tiny("llama")
    weights = model.weights | {"model.norm.weight": torch.ones(64, dtype=torch.int8)}
    with pytest.raises(WeightsError, match=r"another way than the configuration says: model\.norm\.weight is int8"):
        load(model, write_safetensors(tmp_path, weights))


def test_quantised_checkpoints_are_refused_by_their_method(tmp_path: Path) -> None:
    model = tiny("llama", quantization_config={"quant_method": "quip", "bits": 4})
    with pytest.raises(UnsupportedModelError, match="quip"):
        load(model, write_safetensors(tmp_path, model.weights))


def test_another_format_than_asked_for(tmp_path: Path) -> None:
    model = tiny("llama")
    with pytest.raises(UnsupportedModelError, match=r"'gguf'.*holds safetensors"):
        load(model, write_safetensors(tmp_path, model.weights), "gguf")


def test_truncated_anywhere(tmp_path: Path) -> None:
    model = tiny("llama")
    source = write_safetensors(tmp_path, model.weights)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    for length in [0, 4, 8, 100, len(content) // 2, len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(WeightsError, match=r"model\.safetensors is truncated or corrupted"):
            load(model, source)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    model = tiny("llama")
    source = write_safetensors(tmp_path, model.weights)
    checkpoint = SafetensorsCheckpoint(source.path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-20_000])
    with pytest.raises(WeightsError, match=r"model\.safetensors is truncated: it ends before byte"):
        list(checkpoint.copy_into(model.slots))
    file.unlink()
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read: No such file"):
        list(checkpoint.copy_into(model.slots))


def test_a_disk_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    checkpoint = SafetensorsCheckpoint(write_safetensors(tmp_path, model.weights).path)
    monkeypatch.setattr(Path, "open", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read: Input/output error"):
        list(checkpoint.copy_into(model.slots))


@pytest.mark.sample(4)
@pytest.mark.parametrize("chunk_bytes", [8, 24, 4096, 1 << 20])
@pytest.mark.parametrize("stored", [torch.float64, torch.float16])
def test_chunks_of_any_size(chunk_bytes: int, stored: torch.dtype, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(safetensors_files, "CHUNK_BYTES", chunk_bytes)
    model = tiny("llama-biased", torch.float16, num_hidden_layers=1, vocab_size=24)
    # Every other tensor is of another type, so that chunks mix them.
    for index, name in enumerate(model.weights):
        model.weights[name] = model.weights[name].to(stored if index % 2 else torch.float32)
    load(model, write_shards(tmp_path, model.weights))
    model.assert_loaded()


def test_values_that_lie_crooked(tmp_path: Path) -> None:
    """The format does not promise that a tensor begins at a multiple of its item size."""
    entries = {
        "half": {"dtype": "F16", "shape": [3], "data_offsets": [0, 6]},
        "double": {"dtype": "F64", "shape": [2], "data_offsets": [6, 22]},
        "none": {"dtype": "F32", "shape": [0], "data_offsets": [22, 22]},
        "single": {"dtype": "F32", "shape": [], "data_offsets": [22, 26]},
    }
    content = (
        torch.tensor([1, 2, 3], dtype=torch.float16).numpy().tobytes()
        + torch.tensor([4, 5], dtype=torch.float64).numpy().tobytes()
        + torch.tensor(6, dtype=torch.float32).numpy().tobytes()
    )
    write_raw(tmp_path / "model.safetensors", json.dumps(entries).encode(), content)
    slots = {name: (WeightSlot(torch.empty(entry["shape"])),) for name, entry in entries.items()}
    assert sum(SafetensorsCheckpoint(tmp_path).copy_into(slots)) == 6
    assert {name: slot.view.tolist() for name, (slot,) in slots.items()} == {
        "half": [1, 2, 3],
        "double": [4, 5],
        "none": [],
        "single": 6,
    }


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {"dtype": "F32", "shape": [1]},
        {"dtype": 5, "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]},
    ],
)
def test_a_header_that_does_not_hold_together(entry: Any, tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", json.dumps({"w": entry}).encode(), bytes(4))
    with pytest.raises(WeightsError, match="is truncated or corrupted"):
        SafetensorsCheckpoint(tmp_path)


def test_a_header_nested_to_no_end(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", b"[" * 200_000, b"")
    with pytest.raises(WeightsError, match="is truncated or corrupted: its header is no JSON"):
        SafetensorsCheckpoint(tmp_path)


def write_raw(path: Path, header: bytes, content: bytes) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@within_cpu_seconds(2)
def test_a_damaged_header_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    weights = {"a": torch.ones(2, 3), "b": torch.ones(4)}
    write_safetensors(tmp_path, weights)
    file = tmp_path / "model.safetensors"
    content = bytearray(file.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from(list(b'0123456789[]{},":F'))
        )
    file.write_bytes(content)
    slots = {name: (WeightSlot(torch.zeros_like(weight)),) for name, weight in weights.items()}
    try:
        checkpoint = SafetensorsCheckpoint(tmp_path)
    except OctavoError:
        return
    deserialize(bytes(content))  # the format's own library accepts what was accepted here
    try:
        check_fit(slots, checkpoint, is_tied=False)
    except OctavoError:
        return
    list(checkpoint.copy_into(slots))
