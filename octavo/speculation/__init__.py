"""Drafters: they propose tokens that the model then verifies, several in one step."""
