"""Configurations of tiny models, a module for each kind of architecture."""
