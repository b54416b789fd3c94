"""Writes ``docs/configuration.md`` from the settings: ``python -m octavo.cli.document > docs/configuration.md``."""

import sys

from octavo.cli.flags import ALL_SECTIONS, TITLES, Flag, flags_of, format_default

_INTRODUCTION = """\
# Configuration

Every setting exists once, in `octavo/config/settings.py`. It is a flag of `octavo serve`, `octavo chat`, \
`octavo plan` and the offline benchmarks (`--max-num-seqs 64`), a keyword argument of `LLM` and `AsyncLLM` \
(`max_num_seqs=64`), and an entry of a settings file. This page is generated from there by \
`python -m octavo.cli.document > docs/configuration.md`.

Settings without a default are chosen at startup for the model and the device. `octavo plan MODEL` shows the \
choices and their reasons without loading the model.

## Common goals

| to | set |
|---|---|
| use less memory | `--kv-cache-memory-bytes 2GiB`, or a smaller `--gpu-memory-utilization`; `--max-model-len 4k` |
| serve more requests at once | a larger `--max-num-seqs`, and memory for the cache |
| shorten the time to first token under load | a smaller `--max-num-batched-tokens`: long prompts delay others less |
| get more tokens/s over all requests | a larger `--max-num-batched-tokens` |
| reject requests under overload | `--max-num-waiting 256`: further requests get status 429 |
| prioritise requests | `--scheduling-policy priority`, and `priority` in the requests |
| use fewer CPU cores | `--num-threads 4` |
| serve the model under another name | `--served-model-name my-model` |
| restrict access | `--api-key SECRET`, `--host 127.0.0.1` |
| use several CPU cores for HTTP | `--api-server-count 4` |
| try an architecture without its weights | `--load-format dummy` |
| change a model's configuration | `--hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'` |
| reproduce output | `seed` in the request; `--seed` for the requests without one |

## How values are written

- Flags may be spelled with hyphens or underscores. Boolean flags have a negation: \
`--enable-prefix-caching`, `--no-enable-prefix-caching`.
- Whole numbers take suffixes: `8k` is 8000 and `8K` is 8192 (likewise m/M, g/G), `500MB` uses powers of 1000, `4GiB` \
powers of 1024; `1e9` works too. `auto` leaves the choice to Octavo.
- Lists are several values (`--api-key A B`), repeated flags, or JSON. Objects are JSON, or one flag per field: \
`--hf-overrides.rope_scaling.factor 4`; `--hf-overrides.architectures+ A,B` appends to a list.
- Flags and arguments of vLLM and all environment variables are listed in [vllm-arguments.md](vllm-arguments.md).
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
        parts.append(f"\n## {TITLES[name]}\n\n{settings.__doc__}\n\n{_TABLE_HEAD}")
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
