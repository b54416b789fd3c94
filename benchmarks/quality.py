"""What quantisation costs in quality: KL divergence of full logits, perplexity, task scores, the error of weights.

python benchmarks/quality.py --output-json result.json
python benchmarks/quality.py --model FILE.gguf --schemes int4 "fp8 cache" --tokens 384 --tasks 0

A scheme rounds all linear layers but the head of a model that computes in float32, with the functions that loading
uses or another library's, so that nothing else differs; or it is a setting of the engine. Models are loaded anew for
each scheme, so one copy of the weights in float32 and the logits of the text have to fit the memory.
"""

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import describe
from quality_references import REFERENCES, TransformersReader, check_installed
from quality_schemes import SCHEMES, SERVED, Product, Scheme
from quality_tasks import Task, make_tasks
from torch import nn

from octavo import LLM, SamplingParams
from octavo.kernels.linear import ComposedLinear
from octavo.layers.embedding import Head
from octavo.layers.linear import Linear

sys.path.append(str(Path(__file__).parents[1] / "tests" / "parity"))
from passage import PASSAGE

_ENGINE = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1024,
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 256 << 20,
    "use_tqdm_on_load": False,
}
_ROWS_AT_ONCE = 64
ALL = SCHEMES | SERVED | REFERENCES


class Reader:
    """A model whose logits of texts are looked at.

    Args:
        scheme: how it computes.
    """

    def __init__(self, model: str, scheme: Scheme) -> None:
        self._llm = LLM(model, **(_ENGINE | scheme.settings))
        self._seen: list[torch.Tensor] = []
        self._llm.apply_model(self._watch)
        if scheme.make is not None:
            self._round_layers(scheme.make)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        found: list[int] = self._llm.get_tokenizer().encode(text)
        return found

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Log-probabilities of every token after each of a text's but the last, ``[tokens - 1, vocabulary]``."""
        self._seen.clear()
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        self._llm.generate([{"prompt_token_ids": list(token_ids)}], params, use_tqdm=False)
        found = torch.cat([logits for logits in self._seen if len(logits) > 1])[: len(token_ids) - 1].float()
        self._seen.clear()
        assert len(found) == len(token_ids) - 1, "the prompt's positions come in order, in pieces of many rows"
        return found.sub_(found.logsumexp(-1, keepdim=True))

    def close(self) -> None:
        """Free the model."""
        self._llm.apply_model(_unwatch)
        self._llm.shutdown()

    def _watch(self, model: nn.Module) -> None:
        logits = model.logits

        def watched(hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            found: torch.Tensor = logits(hidden, out)
            self._seen.append(found.clone())
            return found

        model.logits = watched  # type: ignore[assignment]

    def _round_layers(self, make: Callable[[torch.Tensor], Product]) -> None:
        (layers,) = self._llm.apply_model(
            lambda model: [
                layer for layer in model.modules() if isinstance(layer, Linear) and not isinstance(layer, Head)
            ]
        )
        for layer in layers:
            gemm = _with_bias(make(weight_of(layer)), layer.bias)
            layer.packed, layer._gemm = None, ComposedLinear(gemm)
            layer.free_weight()


AnyReader = Reader | TransformersReader


def _unwatch(model: nn.Module) -> None:
    del model.logits  # the method of its class is seen again


def weight_of(layer: Linear) -> torch.Tensor:
    """A plain layer's weight, ``[out, in]``."""
    if layer.packed is None:
        return layer.weight.data
    return layer.packed.rows(torch.arange(layer.out_features))


def answer(reader: AnyReader, task: Task) -> tuple[bool, float]:
    """Whether greedy generation would write a task's answer, and the mean log-probability of the answer's tokens.

    The answer's first tokens may be joined with the prompt's last ones; then these are part of the answer.
    """
    prompt, text = reader.encode(task.prompt), reader.encode(task.prompt + task.answer)
    start = next((i for i, pair in enumerate(zip(prompt, text, strict=False)) if pair[0] != pair[1]), len(prompt))
    found, targets = reader.logprobs(text)[start - 1 :], torch.tensor(text[start:])
    is_found = bool((found.argmax(-1) == targets).all())
    return is_found, found.gather(1, targets[:, None]).mean().item()


def _with_bias(product: Product, bias: torch.Tensor | None) -> Product:
    return product if bias is None else lambda x: product(x) + bias


def compare(reference: torch.Tensor, found: torch.Tensor, token_ids: Sequence[int]) -> dict[str, float]:
    """Mean KL divergence in nats a token, perplexity, and how often the most likely token is the same."""
    divergence, same = 0.0, 0
    for expected, own in zip(reference.split(_ROWS_AT_ONCE), found.split(_ROWS_AT_ONCE), strict=True):
        divergence += (expected.exp() * (expected - own)).sum(-1).double().sum().item()
        same += int((expected.argmax(-1) == own.argmax(-1)).sum())
    targets = torch.tensor(token_ids[1:])[:, None]
    return {
        "kl": divergence / len(found),
        "perplexity": found.gather(1, targets).mean().neg().exp().item(),
        "agreement": same / len(found),
    }


def score(reader: AnyReader, tasks: Sequence[Task]) -> dict[str, Any]:
    """The share of answers that are found, of all tasks and by kind, and the mean log-probability of an answer."""
    if not tasks:
        return {}
    answers = [(task.name, *answer(reader, task)) for task in tasks]
    kinds = {name: [is_found for kind, is_found, _ in answers if kind == name] for name, _, _ in answers}
    return {
        "score": sum(is_found for _, is_found, _ in answers) / len(answers),
        "answers": sum(logprob for _, _, logprob in answers) / len(answers),
        "scores": {name: sum(found) / len(found) for name, found in kinds.items()},
    }


def weight_error(scheme: Scheme) -> float:
    """Relative error of a Gaussian weight of which one value in a thousand is ten times as large."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(512, 1024, generator=generator)
    weight[torch.rand(weight.shape, generator=generator) < 1e-3] *= 10
    assert scheme.make is not None
    found = scheme.make(weight.clone())(torch.eye(1024)).T
    return ((found - weight).norm() / weight.norm()).item()


def measure(
    model: str, scheme: Scheme, num_tokens: int, num_tasks: int, reference: torch.Tensor | None
) -> tuple[dict[str, Any], torch.Tensor]:
    """A scheme's figures, and its log-probabilities of the passage.

    Args:
        reference: the log-probabilities to compare with; None if these are the ones.
    """
    reader = Reader(model, scheme) if scheme.cache is None else TransformersReader(model, scheme.cache)
    token_ids = reader.encode(PASSAGE)[:num_tokens]
    found = reader.logprobs(token_ids)
    figures: dict[str, Any] = compare(found if reference is None else reference, found, token_ids)
    figures |= {"tokens": len(token_ids), **score(reader, make_tasks(num_tasks, PASSAGE))}
    reader.close()
    del reader
    gc.collect()  # the model is in a circle with what watches it
    if scheme.make is not None:
        figures["weights"] = weight_error(scheme)
    return figures, found


def print_row(name: str, row: dict[str, Any]) -> None:
    """A line of the table."""
    bound = ALL[name].bound if name in ALL else None
    cells = [
        name,
        f"{row['kl']:.5f}",
        "" if bound is None else f"{bound}",
        f"{row['perplexity']:.2f}",
        f"{row['agreement']:.1%}",
        f"{row['score']:.1%}" if "score" in row else "",
        f"{row['answers']:.3f}" if "answers" in row else "",
        f"{row['weights']:.2%}" if "weights" in row else "",
    ]
    print("|", " | ".join(cells), "|", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print a table, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2")
    parser.add_argument("--tokens", type=int, default=1000, help="at most so many of the passage")
    parser.add_argument("--tasks", type=int, default=24, help="of each kind; 0 for no scores")
    parser.add_argument(
        "--schemes",
        nargs="+",
        choices=list(ALL),
        metavar="SCHEME",
        default=[name for name in ALL if name not in REFERENCES],
        help=f"some of: {', '.join(ALL)}; those of other libraries need these",
    )
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    check_installed([ALL[name] for name in given.schemes])
    print("| | KL, nats a token | bound | perplexity | same first token | tasks | answers | weights |", file=sys.stderr)
    print("|---|---:|---:|---:|---:|---:|---:|---:|", file=sys.stderr)
    figures = {**describe(), "command": " ".join(sys.argv), "model": given.model}
    rows: dict[str, dict[str, Any]] = {}
    reference = None
    for name in ("float32", *given.schemes):
        rows[name], found = measure(given.model, ALL.get(name, Scheme()), given.tokens, given.tasks, reference)
        reference = found if reference is None else reference
        print_row(name, rows[name])
        text = json.dumps({**figures, "rows": rows}, indent=2)
        if given.output_json is not None:  # so that a run that is ended early leaves its rows
            given.output_json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
