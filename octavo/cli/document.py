"""Writes ``docs/configuration.md`` from the settings: ``python -m octavo.cli.document > docs/configuration.md``."""

import sys

from octavo.cli.flags import ALL_SECTIONS, TITLES, Flag, flags_of, format_default

_INTRODUCTION = """\
# Configuration

Every setting exists once, in `octavo/config/settings.py`. It is a flag of `octavo serve`, `octavo chat`, \
`octavo plan` and the offline benchmarks (`--max-num-seqs 64`), a keyword argument of `LLM` and `AsyncLLM` \
(`max_num_seqs=64`), and an entry of a settings file. This page is generated from there by \
`python -m octavo.cli.document > docs/configuration.md`.

Settings without a default are decided at start from the model and the device. `octavo plan MODEL` shows what \
would be decided, and why, without loading the model.

## What to set for what

| You want to | Set |
|---|---|
| use less memory | `--kv-cache-memory-bytes 2GiB`, or a smaller `--gpu-memory-utilization`; `--max-model-len 4k` |
| serve more requests at once | a larger `--max-num-seqs`, and memory for the cache |
| answer the first token sooner under load | a smaller `--max-num-batched-tokens`: long prompts hold others up less |
| get more tokens a second over all requests | a larger `--max-num-batched-tokens` |
| keep overload away | `--max-num-waiting 256`: more requests are refused with status 429 |
| serve some requests before others | `--scheduling-policy priority`, and `priority` in the requests |
| use fewer processor cores | `--num-threads 4` |
| serve under another name | `--served-model-name my-model` |
| keep strangers out | `--api-key SECRET`, `--host 127.0.0.1` |
| use several processor cores for HTTP | `--api-server-count 4` |
| try an architecture without its weights | `--load-format dummy` |
| change a model's configuration | `--hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'` |
| have the same text again | `seed` in the request; `--seed` for the requests without one |

## How values are written

- Flags may be spelled with hyphens or underscores. A flag that is on or off has a twin: \
`--enable-prefix-caching`, `--no-enable-prefix-caching`.
- Whole numbers take suffixes: `8k` is 8000 and `8K` is 8192 (likewise m/M, g/G), `500MB` counts thousands, `4GiB` \
counts 1024s; `1e9` works too. `auto` leaves a setting without a default to be decided at start.
- Lists are several values (`--api-key A B`), repeated flags, or JSON. Objects are JSON, or one flag a field: \
`--hf-overrides.rope_scaling.factor 4`; `--hf-overrides.architectures+ A,B` appends to a list.
- Flags, arguments and environment variables of vLLM are listed in [vllm-arguments.md](vllm-arguments.md).
- `--config FILE` reads settings from YAML, TOML or JSON, by the names below; flags on the command line win:

```yaml
model: bundled:smollm2
max-model-len: 4k
api-key: [A, B]
```

`LLM` and `AsyncLLM` take Python values: numbers, booleans, lists, dictionaries.
"""


_TABLE_HEAD = "| flag | value | default | meaning |\n|---|---|---|---|\n"


def document() -> str:
    """The page."""
    parts = [_INTRODUCTION]
    for name, settings in ALL_SECTIONS.items():
        parts.append(
            f"\n## {TITLES[name]}\n\n{settings.__doc__}\n\n| flag | value | default | meaning |\n|---|---|---|---|\n"
        )
        parts += [_row(flag) for flag in flags_of(settings)]
    return "".join(parts)


def _row(flag: Flag) -> str:
    value = " \\| ".join(flag.choices) if flag.choices else _VALUES[flag.kind]
    default = f"`{format_default(flag)}`" if flag.default not in (None, "", []) else ""
    meaning = flag.description.replace("|", "\\|")
    return f"| `{flag.option}` | {value} | {default} | {meaning} |\n"


_VALUES = {
    "bool": "on, off",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "list": "list",
    "object": "JSON object",
}


if __name__ == "__main__":
    sys.stdout.write(document())
