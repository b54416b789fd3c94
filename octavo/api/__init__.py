"""Octavo over HTTP."""
