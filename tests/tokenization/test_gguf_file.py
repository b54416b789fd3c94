"""The GGUF container, sound and damaged in every way a header can be."""

import errno
import struct
import tracemalloc
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from cpu_time import within_cpu_seconds
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelNotFoundError, OctavoError, UnsupportedModelError, WeightsError
from octavo.tokenization.gguf_file import GGUFFile, GGUFStrings

from .tiny import demo_model_file

UINT8, UINT32, FLOAT32, STRING, ARRAY, UINT64 = 0, 4, 6, 8, 9, 10
METADATA: dict[str, Any] = {
    "a.u8": (np.uint8(200), gguf.GGUFValueType.UINT8),
    "a.i8": (-100, gguf.GGUFValueType.INT8),
    "a.u16": (60000, gguf.GGUFValueType.UINT16),
    "a.i16": (-30000, gguf.GGUFValueType.INT16),
    "a.u32": (4_000_000_000, gguf.GGUFValueType.UINT32),
    "a.i32": (-2_000_000_000, gguf.GGUFValueType.INT32),
    "a.f32": (0.5, gguf.GGUFValueType.FLOAT32),
    "a.bool": (True, gguf.GGUFValueType.BOOL),
    "a.text": ("Grüße, 世界", gguf.GGUFValueType.STRING),
    "a.u64": (1 << 63, gguf.GGUFValueType.UINT64),
    "a.i64": (-(1 << 62), gguf.GGUFValueType.INT64),
    "a.f64": (1e-300, gguf.GGUFValueType.FLOAT64),
    "a.words": (["", "zwei", "▁three"], gguf.GGUFValueType.ARRAY),
    "a.scores": ([0.25, -1.5], gguf.GGUFValueType.ARRAY),
    "a.kinds": ([1, 2, 3], gguf.GGUFValueType.ARRAY),
}
TENSORS = {
    "token_embd.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "output_norm.weight": np.ones(5, np.float16),
    "blk.0.cube": np.zeros((2, 3, 4), np.float32),
}


def _write(path: Path, alignment: int | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, (value, kind) in METADATA.items():
        writer.add_key_value(key, value, kind)
    for name, tensor in TENSORS.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _write(tmp_path_factory.mktemp("gguf") / "sound.gguf").read_bytes()


@pytest.fixture
def open_bytes(tmp_path: Path) -> Callable[[bytes], GGUFFile]:
    """Opens a file of the given content."""

    def open_file(content: bytes) -> GGUFFile:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return GGUFFile.open(path)

    return open_file


def _text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def _header(
    num_tensors: int = 0, num_keys: int = 0, body: bytes = b"", *, magic: bytes = b"GGUF", version: int = 3
) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys) + body


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _info(shape: tuple[int, ...], type_id: int = 0, offset: int = 0, name: str = "t") -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return _text(name) + dims + struct.pack("<IQ", type_id, offset)


def _with_data(header: bytes, num_bytes: int, alignment: int = 32) -> bytes:
    return header + bytes(-len(header) % alignment + num_bytes)


def listed(value: Any) -> Any:
    """A value, with an array as a list."""
    return list(value) if isinstance(value, GGUFStrings | array) else value


def test_a_header_is_read_once_until_the_file_changes(tmp_path: Path) -> None:
    path = _write(tmp_path / "model.gguf")
    first = GGUFFile.open(path)
    assert GGUFFile.open(path) is first
    _write(path, alignment=64)
    assert GGUFFile.open(path).metadata["general.alignment"] == 64


def test_strings_of_a_file_that_was_cut_off_since(tmp_path: Path) -> None:
    words = GGUFFile.open(_write(tmp_path / "model.gguf")).metadata["a.words"]
    assert words[1:] == ["zwei", "▁three"]
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match="has changed while it was read"):
        list(words)


@pytest.mark.parametrize("alignment", [None, 64, 4096])
def test_reads_what_the_library_writes(tmp_path: Path, alignment: int | None) -> None:
    path = _write(tmp_path / "model.gguf", alignment)
    file = GGUFFile.open(path)
    assert file.path == path
    assert file.metadata["general.architecture"] == "llama"
    for key, (value, _) in METADATA.items():
        assert listed(file.metadata[key]) == value, key
    content = path.read_bytes()
    assert list(file.tensors) == list(TENSORS)
    for name, values in TENSORS.items():
        tensor = file.tensors[name]
        assert (tensor.name, tensor.shape) == (name, values.shape)
        assert tensor.num_rows == values.size // values.shape[-1]
        assert content[tensor.offset : tensor.offset + tensor.num_bytes] == values.tobytes()


@pytest.mark.long
def test_reads_the_demo_model_as_the_library_does() -> None:
    path = demo_model_file()
    file, reference = GGUFFile.open(path), gguf.GGUFReader(path)
    keys = [key for key in reference.fields if not key.startswith("GGUF.")]
    assert list(file.metadata) == keys
    for key in keys:
        field = reference.fields[key]
        expected = field.contents() if len(field.data) < 1000 else _sampled(file, key, field)
        assert listed(file.metadata[key]) == expected, key
    assert len(file.tensors) == len(reference.tensors)
    for tensor in reference.tensors:
        ours = file.tensors[tensor.name]
        assert ours.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (ours.type_id, ours.type_name) == (tensor.tensor_type.value, tensor.tensor_type.name)
        assert (ours.offset, ours.num_bytes) == (tensor.data_offset, tensor.n_bytes)


def _sampled(file: GGUFFile, key: str, field: gguf.ReaderField) -> list[Any]:
    """The library takes long over a whole vocabulary: our list with some of its values put in."""
    expected = list(file.metadata[key])
    assert len(expected) == len(field.data)
    for index in (0, 1, 7, len(expected) // 2, len(expected) - 1):
        expected[index] = field.contents(index)
    return expected


@pytest.mark.parametrize("kind", list(GGMLQuantizationType), ids=lambda kind: kind.name)
def test_knows_the_size_of_every_type(kind: GGMLQuantizationType, open_bytes: Callable[[bytes], GGUFFile]) -> None:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    tensor = open_bytes(_with_data(_header(1, 0, _info((3, 2 * block), kind.value)), 6 * block_bytes)).tensors["t"]
    assert (tensor.type_name, tensor.num_bytes) == (kind.name, 6 * block_bytes)


def test_tokens_need_not_be_utf8_and_arrays_may_nest(open_bytes: Callable[[bytes], GGUFFile]) -> None:
    tokens = struct.pack("<IQ", STRING, 2) + _text(b"\xff\xfe") + _text("ok")
    nested = struct.pack("<IQ", ARRAY, 2) + (struct.pack("<IQ", UINT8, 2) + b"\1\2") + struct.pack("<IQ", UINT8, 0)
    file = open_bytes(_header(0, 2, _key("tokens", ARRAY, tokens) + _key("nested", ARRAY, nested)))
    assert listed(file.metadata["tokens"]) == ["\ufffd\ufffd", "ok"]
    assert file.metadata["nested"] == [[1, 2], []]


def test_version_2_is_read(open_bytes: Callable[[bytes], GGUFFile]) -> None:
    body = _key("k", UINT32, struct.pack("<I", 7))
    assert open_bytes(_header(0, 1, body, version=2)).metadata == {"k": 7}


def test_a_file_cut_off_anywhere_is_refused(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(sound)
    last = max(tensor.offset + tensor.num_bytes for tensor in GGUFFile.open(path).tensors.values())
    for length in range(last):
        path.write_bytes(sound[:length])
        with pytest.raises((WeightsError, UnsupportedModelError), match=r"cut\.gguf"):
            GGUFFile.open(path)


NESTED = b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(40)) + struct.pack("<IQ", UINT8, 0)
LIES = {
    "not a gguf": (_header(magic=b"GGML"), "is not a GGUF file"),
    "a text": (b"Once upon a time there was a model.", "is not a GGUF file"),
    "nothing": (b"", "is empty"),
    "only magic": (b"GGUF", "truncated"),
    "version 1": (_header(version=1), "version 1"),
    "version of the future": (_header(version=9), "version 9"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "countless keys": (_header(0, 1 << 60), f"{1 << 60} keys"),
    "countless tensors": (_header(1 << 60), f"{1 << 60} tensors"),
    "more keys than bytes": (_header(0, 60_000), "past the end"),
    "more tensors than bytes": (_header(1_000_000), "past the end"),
    "endless text": (_header(0, 1, struct.pack("<Q", 1 << 62)), "past the end"),
    "endless value": (_header(0, 1, _key("k", STRING, struct.pack("<Q", (1 << 64) - 1))), "past the end"),
    "endless array": (_header(0, 1, _key("k", ARRAY, struct.pack("<IQ", UINT8, 1 << 62))), f"{1 << 62} values"),
    "long array": (_header(0, 1, _key("k", ARRAY, struct.pack("<IQ", UINT64, 8_000_000))), "past the end"),
    "long array of texts": (_header(0, 1, _key("k", ARRAY, struct.pack("<IQ", STRING, 8_000_000))), "past the end"),
    "deep array": (_header(0, 1, _key("k", ARRAY, NESTED)), "deeper"),
    "unknown value type": (_header(0, 1, _key("k", 13, b"")), "unknown type 13"),
    "unknown type in array": (_header(0, 1, _key("k", ARRAY, struct.pack("<IQ", 77, 1))), "unknown type 77"),
    "key is not text": (_header(0, 1, _text(b"\xff") + struct.pack("<I", UINT8) + b"\0"), "is not text"),
    "key of control characters": (_header(0, 1, _key("a\0b", UINT8, b"\0")), "is not text"),
    "long name": (_header(1, 0, _info((4,), name="n" * 100_000)), "100000 bytes"),
    "same key twice": (_header(0, 2, _key("k", UINT8, b"\0") * 2), "key 'k' twice"),
    "same tensor twice": (_with_data(_header(2, 0, _info((4,)) * 2), 64), "tensor 't' twice"),
    "no dimensions": (_header(1, 0, _info(())), "0 dimensions"),
    "many dimensions": (_header(1, 0, _info((1,) * 5)), "5 dimensions"),
    "endless dimensions": (_header(1, 0, _text("t") + struct.pack("<I", 0xFFFFFFFF)), "4294967295 dimensions"),
    "huge shape": (_with_data(_header(1, 0, _info((1 << 63,) * 4)), 64), "truncated"),
    "offset outside": (_with_data(_header(1, 0, _info((4,), offset=1 << 40)), 64), "truncated"),
    "offset between": (_with_data(_header(1, 0, _info((4,), offset=4)), 64), "no multiple of 32"),
    "overlap": (_with_data(_header(2, 0, _info((16,)) + _info((4,), offset=32, name="u")), 64), "overlap"),
    "unknown tensor type": (_with_data(_header(1, 0, _info((32,), 1234)), 64), "type 1234"),
    "half a block": (_with_data(_header(1, 0, _info((2, 48), 2)), 640), "Q4_0 blocks"),
    "alignment 0": (_header(0, 1, _key("general.alignment", UINT32, bytes(4))), "alignment is 0"),
    "alignment 48": (_header(0, 1, _key("general.alignment", UINT32, struct.pack("<I", 48))), "alignment is 48"),
    "alignment text": (_header(0, 1, _key("general.alignment", STRING, _text("32"))), "alignment is '32'"),
    "alignment beyond": (
        _header(1, 1, _key("general.alignment", UINT64, struct.pack("<Q", 1 << 60)) + _info((4,))) + bytes(64),
        "truncated",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_rejected_with_an_error_and_costs_little(
    lie: str, open_bytes: Callable[[bytes], GGUFFile]
) -> None:
    content, reason = LIES[lie]
    tracemalloc.start()
    try:
        with pytest.raises((WeightsError, UnsupportedModelError), match=reason) as caught:
            open_bytes(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "model.gguf" in str(caught.value)
    assert str(caught.value).endswith(".")
    assert peak < 32 << 20


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@within_cpu_seconds(2)
def test_a_damaged_header_ends_in_a_sentence_or_not_at_all(
    data: st.DataObject, sound: bytes, open_bytes: Callable[[bytes], GGUFFile]
) -> None:
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(content) - 9))
        size = data.draw(st.sampled_from([1, 4, 8]))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
        if data.draw(st.booleans()):
            content[position : position + size] = data.draw(st.sampled_from([b"\xff" * size, bytes(size)]))
    tracemalloc.start()
    try:
        file = open_bytes(bytes(content))
        assert all(tensor.offset + tensor.num_bytes <= len(content) for tensor in file.tensors.values())
    except OctavoError as error:
        assert "model.gguf" in str(error)
        assert len(str(error)) < 1000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20


@given(body=st.binary(max_size=200), num_tensors=st.integers(0, 5), num_keys=st.integers(0, 5))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@within_cpu_seconds(2)
def test_noise_behind_a_good_start_ends_in_a_sentence(
    body: bytes, num_tensors: int, num_keys: int, open_bytes: Callable[[bytes], GGUFFile]
) -> None:
    try:
        open_bytes(_header(num_tensors, num_keys, body))
    except OctavoError as error:
        assert "model.gguf" in str(error)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no file"):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(WeightsError, match="cannot be read"):
        GGUFFile.open(tmp_path)


def test_a_failing_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "model.gguf")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(WeightsError, match="cannot be read: Input/output error"):
        GGUFFile.open(path)
