"""Other libraries' roundings of the same weights, which ``quality.py`` measures beside Octavo's.

None is needed to run Octavo; ``requirements/references.txt`` lists those that it does not have. vLLM's quantised
checkpoints are made with compressed-tensors, PyTorch's with torchao, llama.cpp's with gguf; HQQ searches ranges without
data. For FP8 caches, the keys and values of a Hugging Face model are rounded with one scale per layer, as by vLLM.
"""

import importlib.util
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from quality_schemes import Product, Scheme, largest_group, weights_only

from octavo.hub import resolve
from octavo.kernels.float4 import MX_GROUP
from octavo.kernels.scaled import FLOAT8


def check_installed(schemes: Collection[Scheme]) -> None:
    """End the program, with the command that helps, if a library that a scheme needs is missing."""
    missing = {scheme.needs for scheme in schemes if scheme.needs and importlib.util.find_spec(scheme.needs) is None}
    if missing:
        names = ", ".join(sorted(missing))
        raise SystemExit(f"Not installed: {names}. Run: pip install --no-deps -r requirements/references.txt")


def _torchao_float8(weight: torch.Tensor) -> Product:
    from torchao.quantization import Float8Tensor, PerRow

    def rounded(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Float8Tensor.from_hp(x, FLOAT8, granularity=PerRow()).dequantize(torch.float32)
        return found

    values = rounded(weight)
    return lambda x: F.linear(rounded(x), values)


def _torchao_layer(config: Callable[[], Any], weight: torch.Tensor) -> Product:
    from torchao.quantization import quantize_

    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    quantize_(layer, config())
    return layer


def _torchao_int8() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig()


def _torchao_int4(weight: torch.Tensor) -> Product:
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    group = largest_group(weight)
    return _torchao_layer(lambda: IntxWeightOnlyConfig(torch.int4, granularity=PerGroup(group)), weight)


def _torchao_mxfp4(weight: torch.Tensor) -> torch.Tensor:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    found: torch.Tensor = MXTensor.to_mx(weight, torch.float4_e2m1fn_x2, MX_GROUP).dequantize(torch.float32)
    return found


def _torchao_nvfp4(weight: torch.Tensor) -> torch.Tensor:
    from torchao.prototype.mx_formats import nvfp4_tensor

    scale = nvfp4_tensor.per_tensor_amax_to_scale(weight.abs().max())
    found: torch.Tensor = nvfp4_tensor.NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale).dequantize(torch.float32)
    return found


def _compressed_tensors(preset: str, weight: torch.Tensor) -> Product:
    """A layer as one of the library's presets has it; activations too, where these are rounded."""
    from compressed_tensors.quantization import preset_name_to_scheme

    scheme = preset_name_to_scheme(preset, ["Linear"])
    values = weight.copy_(compressed_tensors_rounded(weight, scheme.weights))
    inputs = scheme.input_activations
    if inputs is None:
        return partial(F.linear, weight=values)
    return lambda x: F.linear(compressed_tensors_rounded(x, inputs), values)


def compressed_tensors_rounded(x: torch.Tensor, args: Any) -> torch.Tensor:
    """A matrix rounded by the library's settings, in smaller groups if its rows are no multiple of theirs."""
    from compressed_tensors.quantization import fake_quantize

    args = args.model_copy(update={"group_size": args.group_size and min(args.group_size, largest_group(x))})
    scales, zeros, factor = compressed_tensors_scales(x, args)
    found: torch.Tensor = fake_quantize(x, scales, zeros, args, global_scale=factor)
    return found


def compressed_tensors_scales(x: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """How the library rounds a matrix by its largest magnitudes.

    Args:
        args: its settings: per tensor, row, group of a row, or block.

    Returns:
        Scales, zeros, and the factor of all scales (NVFP4).
    """
    from compressed_tensors.quantization import QuantizationStrategy as Strategy
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    factor = generate_gparam(x.amin(), x.amax()) if args.strategy == Strategy.TENSOR_GROUP else None
    if args.strategy == Strategy.BLOCK:
        parts = _blocks(x, *args.block_structure)
    elif args.strategy == Strategy.TENSOR:
        parts = x.flatten()
    elif args.group_size is None:
        parts = x[:, None]
    else:
        parts = x.unflatten(1, (-1, args.group_size))
    return *calculate_qparams(parts.amin(-1), parts.amax(-1), args, global_scale=factor), factor


def _blocks(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """``[rows, columns]`` → ``[blocks of rows, blocks of columns, values]``, zeros where a block is not full."""
    padded = F.pad(x, (0, -x.shape[1] % width, 0, -x.shape[0] % height))
    return padded.unflatten(1, (-1, width)).unflatten(0, (-1, height)).transpose(1, 2).flatten(2)


def _hqq_int4(weight: torch.Tensor) -> torch.Tensor:
    from hqq.core.quantize import Quantizer

    codes, meta = Quantizer.quantize(
        weight, nbits=4, group_size=largest_group(weight), axis=1, compute_dtype=torch.float32, device="cpu"
    )
    found: torch.Tensor = Quantizer.dequantize(codes, meta)
    return found


def _gguf_mxfp4(weight: torch.Tensor) -> torch.Tensor:
    from gguf import GGMLQuantizationType, dequantize, quantize

    kind = GGMLQuantizationType.MXFP4
    return torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))


def float8_unscaled(x: torch.Tensor) -> torch.Tensor:
    """What vLLM's FP8 cache holds without calibration: its scales are 1."""
    return x.clamp(-448, 448).to(FLOAT8).float()


def float8_by_tensor(x: torch.Tensor) -> torch.Tensor:
    """What it holds with the scale that suits the keys, or values, of all tokens and heads of a layer."""
    scale = x.abs().max() / 448
    return (x / scale).to(FLOAT8).float() * scale


class TransformersReader:
    """A Hugging Face model whose keys and values are rounded before attention reads them.

    Args:
        model: a GGUF file, or the name of a bundled one.
        rounding: of all keys, or all values, of a layer.
    """

    def __init__(self, model: str, rounding: Callable[[torch.Tensor], torch.Tensor]) -> None:
        from gguf_reference import load_reference_model, load_reference_tokenizer

        path = resolve(model).path
        self._model = load_reference_model(path)
        self._tokenizer = load_reference_tokenizer(path)
        self._rounding = rounding

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        found: list[int] = self._tokenizer.encode(text)
        return found

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Log-probabilities of every token after each of a text's but the last, ``[tokens - 1, vocabulary]``."""
        cache = _rounding_cache(self._rounding, self._model.config)
        logits: torch.Tensor = self._model(torch.tensor([token_ids]), past_key_values=cache).logits[0, :-1]
        return logits.sub_(logits.logsumexp(-1, keepdim=True))

    def close(self) -> None:
        """Free the model."""
        del self._model


def _rounding_cache(rounding: Callable[[torch.Tensor], torch.Tensor], config: Any) -> Any:
    from transformers import DynamicCache

    class RoundingCache(DynamicCache):
        def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().update(rounding(keys), rounding(values), *args, **kwargs)

    return RoundingCache(config=config)


def _by_compressed_tensors(preset: str) -> Scheme:
    return Scheme(partial(_compressed_tensors, preset), needs="compressed_tensors")


REFERENCES = {
    "torchao fp8": Scheme(_torchao_float8, needs="torchao"),
    "torchao w8a8": Scheme(partial(_torchao_layer, _torchao_int8), needs="torchao"),
    "torchao int4": Scheme(_torchao_int4, needs="torchao"),
    "torchao mxfp4": Scheme(weights_only(_torchao_mxfp4), needs="torchao"),
    "torchao nvfp4": Scheme(weights_only(_torchao_nvfp4), needs="torchao"),
    "compressed-tensors fp8": _by_compressed_tensors("FP8_DYNAMIC"),
    "compressed-tensors fp8 blocks": _by_compressed_tensors("FP8_BLOCK"),
    "compressed-tensors w8a8": _by_compressed_tensors("W8A8"),
    "compressed-tensors int8": _by_compressed_tensors("W8A16"),
    "compressed-tensors int4": _by_compressed_tensors("W4A16"),
    "compressed-tensors int4 with zeros": _by_compressed_tensors("W4A16_ASYM"),
    "compressed-tensors mxfp4": _by_compressed_tensors("MXFP4A16"),
    "compressed-tensors nvfp4": _by_compressed_tensors("NVFP4A16"),
    "hqq int4": Scheme(weights_only(_hqq_int4), needs="hqq"),
    "gguf mxfp4": Scheme(weights_only(_gguf_mxfp4)),
    "unscaled fp8 cache": Scheme(cache=float8_unscaled),
    "per-tensor fp8 cache": Scheme(cache=float8_by_tensor),
}
"""FP8 and INT8 with their rounding of activations, if not otherwise said; integers of 4 bits in Octavo's groups."""
