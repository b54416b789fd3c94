"""Slots that take a part of a tensor, convert it, or share it, from every kind of file."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tiny_weights import tiny, write_safetensors

from octavo.errors import WeightsError
from octavo.models.loading import gguf_weights, safetensors_files
from octavo.models.loading.checkpoint import Checkpoint, check_fit
from octavo.models.loading.gguf_weights import GGUFCheckpoint
from octavo.models.loading.safetensors_files import SafetensorsCheckpoint
from octavo.quantization.slot import Slots, WeightSlot

WEIGHT = torch.arange(64 * 32, dtype=torch.float32).view(64, 32)
NAME = "model.layers.0.self_attn.o_proj.weight"


def _safetensors(folder: Path) -> Checkpoint:
    return SafetensorsCheckpoint(write_safetensors(folder, {NAME: WEIGHT}).path)


def _gguf(folder: Path) -> Checkpoint:
    writer = gguf.GGUFWriter(str(folder / "model.gguf"), "qwen3")
    writer.add_tensor("blk.0.attn_output.weight", WEIGHT.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFCheckpoint(folder / "model.gguf", tiny("qwen3").config)


@pytest.fixture(params=[_safetensors, _gguf], ids=["safetensors", "gguf"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tensor that is read in many parts."""
    monkeypatch.setattr(safetensors_files, "CHUNK_BYTES", 200)
    monkeypatch.setattr(gguf_weights, "_PIECE", 100)
    return request.param(tmp_path)


def _copy(checkpoint: Checkpoint, *slots: WeightSlot) -> None:
    wanted: Slots = {NAME: slots}
    check_fit(wanted, checkpoint, is_tied=False)
    assert sum(checkpoint.copy_into(wanted)) == WEIGHT.numel()


def test_a_part_of_a_tensor(checkpoint: Checkpoint) -> None:
    rows = WeightSlot(torch.empty(20, 32), ((64, 32),), (slice(10, 30),))
    columns = WeightSlot(torch.empty(64, 8, dtype=torch.float64), ((64, 32),), (slice(None), slice(8, 16)))
    _copy(checkpoint, rows, columns)
    assert torch.equal(rows.view, WEIGHT[10:30])
    assert torch.equal(columns.view, WEIGHT[:, 8:16].double())


def test_a_destination_with_gaps(checkpoint: Checkpoint) -> None:
    whole = torch.zeros(64, 40)
    _copy(checkpoint, WeightSlot(whole[:, 4:36]))
    assert torch.equal(whole[:, 4:36], WEIGHT)
    assert not whole[:, :4].any() and not whole[:, 36:].any()


def test_only_the_wanted_rows_are_read(tmp_path: Path) -> None:
    stored = SafetensorsCheckpoint(write_safetensors(tmp_path, {NAME: WEIGHT}).path)
    for columns in ((), (slice(0, 32),)):
        rows = WeightSlot(torch.empty(16, 32, dtype=torch.float64), ((64, 32),), (slice(24, 40), *columns))
        assert sum(stored.copy_into({NAME: (rows,)})) == rows.view.numel()
        assert torch.equal(rows.view, WEIGHT[24:40].double())
    part = WeightSlot(torch.empty(16, 31), ((64, 32),), (slice(24, 40), slice(0, 31)))
    assert sum(stored.copy_into({NAME: (part,)})) == WEIGHT.numel()
    assert torch.equal(part.view, WEIGHT[24:40, :31])


def test_a_part_that_is_converted(checkpoint: Checkpoint) -> None:
    slot = WeightSlot(torch.empty(4), ((64, 32),), (slice(0, 4),), lambda part: part.amax(1))
    _copy(checkpoint, slot)
    assert slot.view.tolist() == [31, 63, 95, 127]


def test_shapes_are_checked_against_the_whole_tensor(checkpoint: Checkpoint) -> None:
    slots: Slots = {NAME: (WeightSlot(torch.empty(4), ((64, 16), (32, 32)), (slice(0, 4),)),)}
    with pytest.raises(WeightsError, match=r"o_proj\.weight is \[64, 32\], the configuration wants \[64, 16\]"):
        check_fit(slots, checkpoint, is_tied=False)


def test_scaled_values_go_nowhere_else(tmp_path: Path) -> None:
    scaled = SafetensorsCheckpoint(write_safetensors(tmp_path, {NAME: WEIGHT.to(torch.float8_e4m3fn)}).path)
    with pytest.raises(WeightsError, match=r"quantised in another way.*o_proj\.weight is float8_e4m3fn"):
        check_fit({NAME: (WeightSlot(torch.empty(64, 32)),)}, scaled, is_tied=False)
    slot = WeightSlot(torch.empty(64, 32, dtype=torch.float8_e4m3fn), has_scale=True)
    check_fit({NAME: (slot,)}, scaled, is_tied=False)
    assert sum(scaled.copy_into({NAME: (slot,)})) == WEIGHT.numel()
    assert torch.equal(slot.view.float(), WEIGHT.to(torch.float8_e4m3fn).float())
