"""What quantisation costs in quality: KL divergence of full logits, perplexity, and the error of weights.

python benchmarks/quality.py --output-json result.json

Each scheme rounds all linear layers but the head of a model that computes in float32, with the functions that loading
uses, so that nothing else differs. ``settings`` are whole engines as they are served.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import describe, save
from torch import nn

from octavo import LLM, SamplingParams
from octavo.kernels import LinearOp
from octavo.kernels.float4 import float4_codes, float4_values
from octavo.kernels.grouped import Rounding, dequantize, round_weight
from octavo.kernels.linear import ComposedLinear
from octavo.kernels.scaled import FLOAT8, INT8, float8_linear, int8_linear, quantize_rows
from octavo.layers.embedding import Head
from octavo.layers.linear import Linear

sys.path.append(str(Path(__file__).parents[1] / "tests" / "parity"))
from passage import PASSAGE

BOUNDS = {"fp8": 0.005, "int8": 0.002, "int4": 0.05, "mxfp4": 0.08, "nvfp4": 0.06}
"""The largest mean KL divergence from float32 that a scheme may have, in nats a token."""
SETTINGS: dict[str, dict[str, Any]] = {
    "--dtype bfloat16 --quantization fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "--dtype bfloat16 --quantization int8": {"dtype": "bfloat16", "quantization": "int8"},
    "--dtype bfloat16 --quantization int4": {"dtype": "bfloat16", "quantization": "int4"},
    "--dtype bfloat16 --quantization mxfp4": {"dtype": "bfloat16", "quantization": "mxfp4"},
    "--dtype bfloat16 (GGUF as it is)": {"dtype": "bfloat16"},
}
_NVFP4_GROUP = 16
_ENGINE = {
    "max_model_len": 1024,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1024,
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 128 << 20,
    "use_tqdm_on_load": False,
}


def rounded_op(scheme: str, weight: torch.Tensor) -> LinearOp:
    """The GEMM of a float32 weight ``[out, in]`` that a scheme rounds."""
    if scheme == "fp8":
        values, scales = quantize_rows(weight, FLOAT8)
        return float8_linear(values.float(), scales[:, 0], None, deterministic=False)[0]
    if scheme == "int8":
        values, scales = quantize_rows(weight, INT8)
        return int8_linear(values, scales[:, 0], None)[0]
    values = nvfp4_values(weight) if scheme == "nvfp4" else grouped_values(scheme, weight)
    return ComposedLinear(partial(F.linear, weight=values))


def grouped_values(scheme: str, weight: torch.Tensor) -> torch.Tensor:
    """A weight rounded as at load; integers in groups of 128, or the largest half of it that divides the inputs."""
    form: Rounding = "mxfp4" if scheme == "mxfp4" else "int4"
    group = next(size for size in (128, 64, 32) if weight.shape[1] % size == 0) if form == "int4" else 32
    return dequantize(round_weight(weight, form, group), torch.float32)


def nvfp4_values(weight: torch.Tensor) -> torch.Tensor:
    """A weight rounded to 4-bit floats, a float8 scale per 16 inputs and one factor for all."""
    groups = weight.unflatten(1, (-1, _NVFP4_GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    factor = largest.max() / 6 / 448
    scales = (largest / 6 / factor).to(FLOAT8).float() * factor
    return (float4_values(float4_codes(groups / scales.clamp(min=1e-30))) * scales).flatten(1)


class Reader:
    """A model whose logits of a text are looked at.

    Args:
        text: of fewer tokens than the model's context.
        num_tokens: read so many of them.
    """

    def __init__(self, model: str, text: str, num_tokens: int, **settings: Any) -> None:
        self._llm = LLM(model, **(_ENGINE | settings))
        self.token_ids = self._llm.get_tokenizer().encode(text)[:num_tokens]
        self._seen: list[torch.Tensor] = []
        self._llm.apply_model(self._watch)

    def logprobs(self) -> torch.Tensor:
        """Log-probabilities of every token after each of the text's but the last, ``[tokens - 1, vocabulary]``."""
        self._seen.clear()
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        self._llm.generate([{"prompt_token_ids": self.token_ids}], params, use_tqdm=False)
        rows = [logits for logits in self._seen if len(logits) > 1]
        found = torch.cat(rows).float().log_softmax(-1)[: len(self.token_ids) - 1]
        assert len(found) == len(self.token_ids) - 1, "the prompt's positions come in order, in pieces of many rows"
        return found

    def round_layers(self, make: Callable[[torch.Tensor], LinearOp]) -> Callable[[], None]:
        """Replace the GEMMs of linear layers; returns what puts them back."""
        (layers,) = self._llm.apply_model(
            lambda model: [
                layer for layer in model.modules() if isinstance(layer, Linear) and not isinstance(layer, Head)
            ]
        )
        kept = [layer._gemm for layer in layers]
        for layer in layers:
            layer._gemm = make(layer(torch.eye(layer.in_features)).T.contiguous())

        def restore() -> None:
            for layer, gemm in zip(layers, kept, strict=True):
                layer._gemm = gemm

        return restore

    def close(self) -> None:
        """Free the model."""
        self._llm.shutdown()

    def _watch(self, model: nn.Module) -> None:
        logits = model.logits

        def watched(hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            found: torch.Tensor = logits(hidden, out)
            self._seen.append(found.clone())
            return found

        model.logits = watched  # type: ignore[assignment]


def compare(reference: torch.Tensor, found: torch.Tensor, token_ids: list[int]) -> dict[str, float]:
    """Mean KL divergence in nats a token, perplexity, and how often the most likely token is the same."""
    divergence = (reference.exp() * (reference - found)).sum(-1)
    targets = torch.tensor(token_ids[1:])[:, None]
    return {
        "kl": divergence.mean().item(),
        "perplexity": found.gather(1, targets).mean().neg().exp().item(),
        "agreement": (reference.argmax(-1) == found.argmax(-1)).float().mean().item(),
    }


def weight_error(scheme: str) -> float:
    """Relative error of a Gaussian weight of which one value in a thousand is ten times as large."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(512, 1024, generator=generator)
    weight[torch.rand(weight.shape, generator=generator) < 1e-3] *= 10
    found = rounded_op(scheme, weight)(torch.eye(1024)).T
    return ((found - weight).norm() / weight.norm()).item()


def main() -> None:
    """Measure, print a table, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2")
    parser.add_argument("--tokens", type=int, default=1000, help="at most so many of the passage")
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    reader = Reader(given.model, PASSAGE, given.tokens, dtype="float32")
    reference = reader.logprobs()
    rows = {"float32": compare(reference, reference, reader.token_ids)}
    for scheme in BOUNDS:
        restore = reader.round_layers(partial(rounded_op, scheme))
        rows[scheme] = compare(reference, reader.logprobs(), reader.token_ids) | {"weights": weight_error(scheme)}
        restore()
    reader.close()
    for name, settings in SETTINGS.items():
        served = Reader(given.model, PASSAGE, given.tokens, **settings)
        rows[name] = compare(reference, served.logprobs(), served.token_ids)
        served.close()
    print("| | KL, nats a token | bound | perplexity | same first token | error of weights |", file=sys.stderr)
    print("|---|---:|---:|---:|---:|---:|", file=sys.stderr)
    for name, row in rows.items():
        bound = f"{BOUNDS[name]}" if name in BOUNDS else ""
        error = f"{row['weights']:.2%}" if "weights" in row else ""
        figures = f"{row['kl']:.5f} | {bound} | {row['perplexity']:.2f} | {row['agreement']:.1%} | {error}"
        print(f"| {name} | {figures} |", file=sys.stderr)
    save({**describe(), "model": given.model, "tokens": len(reader.token_ids), "rows": rows}, given.output_json)


if __name__ == "__main__":
    main()
