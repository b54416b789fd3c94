"""Grammars that bind what a model may write: structured output."""
