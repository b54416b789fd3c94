"""Tries every causal language model or encoder of transformers through ``model_impl=transformers``; writes a table.

    PYTHONPATH=tests/parity python tests/parity/transformers_table.py --page docs/supported-models.md [NAME …]
    PYTHONPATH=tests/parity python tests/parity/transformers_table.py --encoders --page docs/supported-models.md

A tiny model is made of each architecture by shrinking its default configuration. Octavo's log-probabilities in float32
must equal those of transformers to 1e-4, in a batch, in chunks and after prefix hits; of encoders, its tokens' vectors
in a batch. Each architecture is tried in a process of its own, with limits of time and memory. With
``--outcomes FILE``, a later run tries only those that an earlier one did not reach.
"""

import argparse
import copy
import datetime
import itertools
import json
import logging
import multiprocessing
import random
import re
import resource
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from comparison import TOLERANCE, assert_logprobs, reference_logprobs
from tiny_checkpoints import _randomise
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from octavo import LLM, PoolingParams, SamplingParams
from octavo.errors import OctavoError, UnsupportedModelError
from octavo.hub.families import generic, generic_encoder

VOCAB_SIZE = 211
# Sizes of tiny models, for the keys that a configuration has.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "embedding_size": 48,
    "word_embed_proj_dim": 48,
    "intermediate_size": 80,
    "ffn_dim": 80,
    "n_inner": 80,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "decoder_layers": 4,
    "num_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 80,
    "num_key_value_heads": 2,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "num_global_key_value_heads": 2,
    "head_dim": 12,
    "global_head_dim": 12,
    "swa_head_dim": 12,
    "swa_v_head_dim": 12,
    "max_position_embeddings": 256,
    "max_seq_len": 256,
    "sliding_window": 9,
    "attention_chunk_size": 16,
    "query_pre_attn_scalar": 12,
    "rotary_dim": 8,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 20,
    "v_head_dim": 10,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "moe_num_experts": 6,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "top_k_experts": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "dense_intermediate_size": 40,
    "intermediate_size_mlp": 40,
    "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 80,
    "shared_expert_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "is_decoder": True,
    "use_cache": True,
}
HEADING = "## Causal language models of transformers\n\n"
ENCODERS = "## Encoders of transformers\n\n"
MAX_PARAMETERS = 20_000_000
MAX_SECONDS = 120
MAX_BYTES = 4 << 30
PROMPTS = [random.Random(length).choices(range(3, VOCAB_SIZE), k=length) for length in (1, 5, 23, 40)]


def architectures() -> dict[str, str]:
    """Architecture → model type, of all causal language models."""
    found: dict[str, str] = {}
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        for name in (names,) if isinstance(names, str) else names:
            own = getattr(getattr(transformers, name), "config_class", None)
            found[name] = own.model_type if own is not None and own.model_type in CONFIG_MAPPING else model_type
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def encoders() -> dict[str, str]:
    """Encoder → model type, of all that predict masked tokens."""
    names = {
        name.removesuffix("ForMaskedLM") + "Model": model_type
        for model_type, name in MODEL_FOR_MASKED_LM_MAPPING_NAMES.items()
        if isinstance(name, str) and name.endswith("ForMaskedLM")
    }
    return dict(sorted(names.items(), key=lambda item: item[0].lower()))


def tiny_configs(model_type: str) -> Iterator[Any]:
    """Small configurations of a model type, of which one should make a model."""
    kind = CONFIG_MAPPING[model_type]
    try:
        usual = kind()
    except Exception as error:  # a default configuration that is none
        raise NoTinyModelError(str(error)) from error
    present = {key: size for key, size in SIZES.items() if _value(usual, key) is not None or key == "pad_token_id"}
    known = {key: size for key, size in SIZES.items() if key in vars(usual) or key in usual.attribute_map}
    if model_type in encoders().values():
        present, known = ({key: size for key, size in own.items() if key != "is_decoder"} for own in (present, known))
    for own, changes in itertools.product((present, known), CHANGES):
        sizes = {key: changes.get(key, size) for key, size in own.items()}
        try:
            yield kind(**{key: size for key, size in sizes.items() if size is not None})
        except Exception as error:  # validators of many authors
            logging.debug("%s: %s", model_type, error)


# What is tried if the usual sizes make no model.
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"head_dim": 8},
    {"head_dim": 8, "num_key_value_heads": 4},
    {"head_dim": None},
    {"hidden_size": 64, "head_dim": 16},
    {"num_key_value_heads": 4},
    {"num_hidden_layers": 6},
)


def _value(config: Any, key: str) -> Any:
    try:
        return getattr(config, key, None)
    except Exception:  # configurations whose layers differ have no single value
        return None


def make_model(architecture: str, model_type: str) -> Any:
    """A tiny random model that transformers itself can run."""
    errors = []
    for config in tiny_configs(model_type):
        try:
            kind = getattr(transformers, architecture)
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in kind._from_config(copy.deepcopy(config)).parameters())
            if count > MAX_PARAMETERS:
                raise NoTinyModelError(f"{count / 1e6:.0f} M parameters")
            model = kind._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
            _randomise(model, seed=zlib.crc32(architecture.encode()))
            with torch.inference_mode():
                model(torch.tensor([PROMPTS[1]]), **({} if architecture in encoders() else {"use_cache": False}))
            return model
        except Exception as error:  # the next configuration may do
            errors.append(f"{type(error).__name__}: {str(error).strip()[:120]}")
    raise NoTinyModelError(errors[0] if errors else "no configuration")


class NoTinyModelError(Exception):
    """The shrunk configuration makes no model."""


def compare(model: Any) -> None:
    """Run a model in Octavo and hold its log-probabilities against its own."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        llm = LLM(
            folder,
            model_impl="transformers",
            dtype="float32",
            skip_tokenizer_init=True,
            max_model_len=128,
            max_logprobs=-1,
            block_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            num_gpu_blocks_override=512,
            num_threads=1,
            use_tqdm_on_load=False,
        )
        try:
            options = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": -1, "detokenize": False}
            first = llm.generate(PROMPTS, SamplingParams(prompt_logprobs=-1, **options), use_tqdm=False)
            again = llm.generate([PROMPTS[3], PROMPTS[3][:30] + PROMPTS[2]], SamplingParams(**options), use_tqdm=False)
        finally:
            llm.shutdown()
    assert again[0].num_cached_tokens, "no prefix hit"
    for output in (*first, *again):
        assert_logprobs(model, output)


@torch.inference_mode()
def token_vectors(model: Any, prompt: list[int]) -> torch.Tensor:
    """An encoder's vectors of a text, ``[tokens, hidden]``."""
    vectors: torch.Tensor = model(torch.tensor([prompt])).last_hidden_state[0]
    return vectors


def compare_vectors(model: Any) -> None:
    """Run an encoder in Octavo and hold its tokens' vectors against its own."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        options = {"dtype": "float32", "skip_tokenizer_init": True, "use_tqdm_on_load": False, "num_threads": 1}
        llm = LLM(folder, model_impl="transformers", runner="pooling", max_num_batched_tokens=256, **options)
        try:
            raw = PoolingParams(use_activation=False)
            found = llm.encode(PROMPTS, raw, pooling_task="token_embed", use_tqdm=False)
        finally:
            llm.shutdown()
    for prompt, output in zip(PROMPTS, found, strict=True):
        torch.testing.assert_close(output.outputs.data, token_vectors(model, prompt), rtol=0, atol=TOLERANCE)


def rounding(model: Any) -> float:
    """The greatest difference of a model's results in float32 from those in float64."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    exact = copy.deepcopy(model).double()
    results = token_vectors if type(model).__name__ in encoders() else reference_logprobs
    differences = (results(model, prompt) - results(exact, prompt) for prompt in PROMPTS)
    return max(float(difference.abs().max()) for difference in differences)


def outcome(architecture: str, model_type: str) -> tuple[str, str]:
    """A word and a reason."""
    try:
        raw = CONFIG_MAPPING[model_type]().to_dict() | {"architectures": [architecture]}
        (generic_encoder if architecture in encoders() else generic).parse(architecture, raw)
    except UnsupportedModelError as error:
        if "cannot be used: " in str(error):
            return "rejected", str(error).partition("cannot be used: ")[2]
    except Exception as error:  # a default configuration that is none
        logging.debug("%s: %s", architecture, error)
    model = None
    try:
        model = make_model(architecture, model_type)
        (compare_vectors if architecture in encoders() else compare)(model)
    except NoTinyModelError as error:
        return "not tried", str(error)
    except OctavoError as error:
        return "rejected", str(error).partition("cannot be used: ")[2] or str(error)
    except AssertionError as error:
        found = re.search(r"Greatest absolute difference: (\S+)", str(error))
        if found is None:
            return "differs", " ".join(str(error).split())[:160]
        difference, noise = float(found.group(1)), rounding(model)
        word = "parity" if difference < 2 * noise else "differs"
        return word, f"to {difference:.1e}; the reference differs by {noise:.1e} from itself in float64"
    except Exception as error:  # everything is a row of the table
        return "fails", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return "parity", ""


def limited_outcome(architecture: str, model_type: str) -> tuple[str, str]:
    """The same from a process of its own, which may need more time or memory than it is given, or end."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # A fork has all modules already; no thread has computed in this process.
    process = multiprocessing.get_context("fork").Process(target=_send, args=(sender, architecture, model_type))
    process.start()
    sender.close()
    try:
        if not receiver.poll(MAX_SECONDS):
            return "fails", f"not done after {MAX_SECONDS} s"
        word, reason = receiver.recv()
    except EOFError:
        process.join()
        return "fails", f"its process ended with exit code {process.exitcode}"
    else:
        return word, reason
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, architecture: str, model_type: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    sender.send(outcome(architecture, model_type))


def read_outcomes(path: Path | None) -> dict[str, tuple[str, str]]:
    """Words and reasons by architecture, which an earlier run with the same transformers library wrote."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {name: (word, reason) for version, name, word, reason in rows if version == transformers.__version__}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all if none is given")
    parser.add_argument("--encoders", action="store_true", help="try encoders instead of causal language models")
    parser.add_argument(
        "--outcomes", type=Path, help="what was found so far: read at the start, extended by each model"
    )
    parser.add_argument("--page", type=Path, help="where the table goes, behind the last heading")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    known = read_outcomes(options.outcomes)
    rows = []
    for architecture, model_type in (encoders() if options.encoders else architectures()).items():
        if options.names and architecture not in options.names:
            continue
        word, reason = known.get(architecture) or limited_outcome(architecture, model_type)
        rows.append((architecture, word, reason))
        print(architecture, word, reason, flush=True)
        if options.outcomes is not None and architecture not in known:
            with options.outcomes.open("a", encoding="utf-8") as file:
                file.write(json.dumps([transformers.__version__, architecture, word, reason]) + "\n")
    if options.page is not None:
        page = options.page.read_text(encoding="utf-8")
        heading = ENCODERS if options.encoders else HEADING
        start = page.index(heading)
        end = page.find("\n## ", start)
        rest = "" if end < 0 else page[end:]
        options.page.write_text(page[:start] + heading + _table(rows, options.encoders) + rest, encoding="utf-8")


def _table(rows: list[tuple[str, str, str]], are_encoders: bool) -> str:
    held = (
        "equal vectors of all tokens to 1e-4 (or to twice the reference's own rounding) in a batch"
        if are_encoders
        else "equal log-probabilities to 1e-4 (or to twice the reference's own rounding) in a batch, in chunks and "
        "after prefix hits"
    )
    counts = Counter(word for _, word, _ in rows)
    head = (
        f"transformers {transformers.__version__}, {datetime.date.today()}, tiny random models in float32 on a CPU: "
        f"{', '.join(f'{count} {word}' for word, count in counts.most_common())}. "
        f"*Parity* means {held}; for *not tried*, no tiny model could be made.\n\n"
        "| architecture | outcome | reason |\n|---|---|---|\n"
    )
    return head + "".join(f"| `{name}` | {word} | {_cell(reason)} |\n" for name, word, reason in rows)


def _cell(reason: str) -> str:
    return " ".join(reason.replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")").split())[:160]


if __name__ == "__main__":
    main()
