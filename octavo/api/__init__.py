"""Octavo over HTTP.

What is wrong with a request raises InvalidRequestError, which names the field; ``errors.py`` makes answers of errors.
What is wrong with a setting raises ConfigError before the server starts.
"""
