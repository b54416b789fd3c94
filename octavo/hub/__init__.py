"""Resolves model names to local files and reads their configurations; loads no weights.

A file that is missing, broken or asks for what is not supported raises UnsupportedModelError, which names the file or
the key.
"""

from octavo.hub.load import find_model, load_generation_config, load_model_config, tokenizer_path
from octavo.hub.model_config import ModelConfig, RopeConfig
from octavo.hub.source import ModelSource, find_files, resolve
