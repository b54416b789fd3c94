"""The Responses API: ``/v1/responses``, what it keeps, and the tools that the server itself calls."""
