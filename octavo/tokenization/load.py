"""Loads a model's tokenizer.

A Hugging Face folder describes it in ``tokenizer.json`` (splitting and merging) and ``tokenizer_config.json`` (special
tokens, chat template), with older or optional files; a GGUF file in its metadata.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from octavo.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from octavo.tokenization.gguf_tokenizer import set_bos_and_eos, tokenizer_from_gguf
from octavo.tokenization.tokenizer import SPECIAL_TOKEN_NAMES, SpecialTokens, Tokenizer

# These classes add bos and eos as their configuration says, regardless of tokenizer.json.
_CLASSES_WITH_CONFIGURED_BOS_AND_EOS = ("Llama", "CodeLlama", "Gemma", "Cohere")
_OLDER_FILES = ("tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or a GGUF file.

    Raises:
        ModelNotFoundError: the path does not exist.
        UnsupportedModelError: there is no tokenizer, or an unsupported one.
    """
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_gguf_file(path)
    raise ModelNotFoundError(f"There is no tokenizer at {path}.")


def read_chat_template(template_or_path: str) -> str:
    """The template's text, read from a file if ``template_or_path`` names one.

    Raises:
        ConfigError: it is neither.
    """
    if "{" in template_or_path or "\n" in template_or_path:
        return template_or_path
    try:
        return Path(template_or_path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The chat template {template_or_path!r} is no template and no readable file: {error}."
        ) from None


def _from_gguf_file(path: Path) -> Tokenizer:
    from octavo.tokenization.gguf_file import GGUFFile

    return tokenizer_from_gguf(GGUFFile.open(path).metadata)


def _from_folder(folder: Path) -> Tokenizer:
    config = _read_json(folder / "tokenizer_config.json")
    backend = _backend(folder)
    _add_configured_tokens(backend, config, _read_json(folder / "added_tokens.json"))
    special_tokens = _special_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
    class_name = str(config.get("tokenizer_class", ""))
    if class_name.removesuffix("Fast").removesuffix("Tokenizer") in _CLASSES_WITH_CONFIGURED_BOS_AND_EOS:
        _configure_bos_and_eos(backend, config, special_tokens)
    return Tokenizer(backend, special_tokens, _chat_templates(folder, config))


def _backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return _converted_backend(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # The tokenizers library raises plain Exception.
        raise UnsupportedModelError(f"{file} cannot be read as a tokenizer: {error}.") from None


def _converted_backend(folder: Path) -> tokenizers.Tokenizer:
    """Build a fast tokenizer from older files with transformers."""
    if not any((folder / name).is_file() for name in _OLDER_FILES):
        raise UnsupportedModelError(f"{folder} has no tokenizer: no tokenizer.json nor {', '.join(_OLDER_FILES)}.")
    from transformers import AutoTokenizer

    try:
        converted = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        backend = converted.backend_tokenizer
    except Exception as error:  # Whatever its many converters raise.
        reason = str(error).partition("\n")[0].rstrip(".:")
        raise UnsupportedModelError(
            f"{folder} has no tokenizer.json, and none can be made from its other files: {reason}."
        ) from None
    if not isinstance(backend, tokenizers.Tokenizer):
        raise UnsupportedModelError(
            f"{folder} has a slow tokenizer, which is not supported; it needs a tokenizer.json."
        )
    return backend


def _add_configured_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any], added: dict[str, Any]) -> None:
    """Add tokens that the other files name but ``tokenizer.json`` does not, in the order of their ids."""
    wanted: dict[int, tokenizers.AddedToken] = {
        token_id: tokenizers.AddedToken(token, normalized=False)
        for token, token_id in added.items()
        if isinstance(token_id, int)
    }
    for token_id, token in config.get("added_tokens_decoder", {}).items():
        flags = {name: bool(token.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        wanted[int(token_id)] = tokenizers.AddedToken(token["content"], special=bool(token.get("special")), **flags)
    known = backend.get_added_tokens_decoder()
    for token_id, token in sorted(wanted.items()):
        if token_id not in known and backend.token_to_id(token.content) in (None, token_id):
            add = backend.add_special_tokens if token.special else backend.add_tokens
            add([token])


def _special_tokens(config: Mapping[str, Any]) -> SpecialTokens:
    named = {name: text for name in SPECIAL_TOKEN_NAMES if (text := _token_text(config.get(name))) is not None}
    others = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(others, Mapping):
        others = list(others.values())
    return SpecialTokens(named, tuple(text for other in others if (text := _token_text(other)) is not None))


def _token_text(token: object) -> str | None:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _configure_bos_and_eos(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: SpecialTokens
) -> None:
    if not isinstance(config.get("add_bos_token"), bool) and not isinstance(config.get("add_eos_token"), bool):
        return
    wanted = [
        special_tokens.named.get(f"{name}_token") if config.get(f"add_{name}_token", name == "bos") else None
        for name in ("bos", "eos")
    ]
    bos, eos = (token if token is not None and backend.token_to_id(token) is not None else None for token in wanted)
    if bos is None and eos is None:
        backend.post_processor = None
    else:
        set_bos_and_eos(backend, bos, eos)


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Name → template. A ``chat_template.jinja`` takes precedence over other places."""
    templates: dict[str, str] = {}
    for source in (config, _read_json(folder / "chat_template.json")):
        match source.get("chat_template"):
            case str(template):
                templates["default"] = template
            case list(entries):
                templates.update({entry["name"]: entry["template"] for entry in entries})
            case dict(named):
                templates.update(named)
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    if (file := folder / "chat_template.jinja").is_file():
        templates["default"] = file.read_text(encoding="utf-8")
    return templates


def _read_json(file: Path) -> dict[str, Any]:
    """The object in ``file``; empty if there is no such file."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{file} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{file} must hold a JSON object.")
    return content
