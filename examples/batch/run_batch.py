"""Answer a file of requests without a server, and read the answers.

The same from a shell: ``octavo run-batch -i examples/batch/requests.jsonl -o answers.jsonl bundled:smollm2``.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

REQUESTS = Path(__file__).with_name("requests.jsonl")


def main() -> None:
    """Run the batch into a temporary folder and print each answer."""
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.jsonl"
        command = [sys.executable, "-m", "octavo.cli.main", "run-batch", "-i", str(REQUESTS), "-o", str(answers)]
        subprocess.run([*command, "bundled:smollm2"], check=True)
        for line in answers.read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            choice = answer["response"]["body"]["choices"][0]
            print(answer["custom_id"], "->", repr(choice.get("text") or choice["message"]["content"]))


if __name__ == "__main__":
    main()
