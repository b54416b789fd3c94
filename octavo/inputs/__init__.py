"""Requests to engine requests; what is wrong with one raises InvalidRequestError, which names the field."""
