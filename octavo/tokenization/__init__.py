"""Tokenizers and chat templates; start in ``tokenizer.py`` and ``load.py``."""

from octavo.tokenization.load import load_tokenizer, read_chat_template
from octavo.tokenization.tokenizer import SpecialTokens, Tokenizer

__all__ = ["SpecialTokens", "Tokenizer", "load_tokenizer", "read_chat_template"]
