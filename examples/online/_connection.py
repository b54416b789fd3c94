"""Where the server is: ``OCTAVO_URL`` and ``OCTAVO_API_KEY``, with the defaults of ``octavo serve``."""

import os

URL = os.environ.get("OCTAVO_URL", "http://localhost:8000")
API_KEY = os.environ.get("OCTAVO_API_KEY", "none")
MODEL = os.environ.get("OCTAVO_MODEL", "bundled:smollm2")
