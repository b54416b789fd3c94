"""Kernel cases: the GEMMs of a step."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from octavo import kernels
from octavo.bench.kernels_case import KernelCase, Run, Setting, Work

_GATES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": ("silu", F.silu),
    "gelu_pytorch_tanh": ("gelu_tanh", partial(F.gelu, approximate="tanh")),
}


def _gemm(setting: Setting, num_rows: int, num_outputs: int, num_inputs: int, *, is_gated: bool = False) -> Work:
    """A GEMM of rows with a weight ``[outputs, inputs]``; with a gate it has half as many outputs."""
    itemsize = setting.dtype.itemsize
    weight_bytes = num_outputs * num_inputs * itemsize
    weights = [setting.weight(num_outputs, num_inputs) for _ in range(setting.copies(weight_bytes))]
    x = setting.random(num_rows, num_inputs)
    ours, library = _runs(setting, weights, x, is_gated)
    num_stored = num_outputs // 2 if is_gated else num_outputs
    return Work(
        run=ours,
        libraries={"F.linear": library},
        num_bytes=weight_bytes + num_rows * (num_inputs + num_stored) * itemsize,
        num_operations=2.0 * num_rows * num_outputs * num_inputs,
        num_copies=len(weights),
    )


def _runs(setting: Setting, weights: list[torch.Tensor], x: torch.Tensor, is_gated: bool) -> tuple[Run, Run]:
    gemms = [kernels.linear(weight, None, deterministic=False)[0] for weight in weights]
    if not is_gated:
        return lambda copy: gemms[copy](x), lambda copy: F.linear(x, weights[copy])
    name, activation = _GATES[setting.config.hidden_act]

    def library(copy: int) -> torch.Tensor:
        gate, up = F.linear(x, weights[copy]).chunk(2, dim=-1)
        return activation(gate) * up

    return lambda copy: gemms[copy].gated(x, name), library


def _qkv(setting: Setting) -> Work:
    config = setting.config
    num_outputs = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return _gemm(setting, setting.num_tokens, num_outputs, config.hidden_size)


def _o(setting: Setting) -> Work:
    config = setting.config
    return _gemm(setting, setting.num_tokens, config.hidden_size, config.num_heads * config.head_dim)


def _gate_up(setting: Setting) -> Work:
    config = setting.config
    return _gemm(setting, setting.num_tokens, 2 * config.intermediate_size, config.hidden_size, is_gated=True)


def _down(setting: Setting) -> Work:
    config = setting.config
    return _gemm(setting, setting.num_tokens, config.hidden_size, config.intermediate_size)


def _head(setting: Setting) -> Work:
    config = setting.config
    return _gemm(setting, setting.num_rows, config.vocab_size, config.hidden_size)


CASES = (
    KernelCase("QKV GEMM", _qkv, per_layer=1),
    KernelCase("output GEMM", _o, per_layer=1),
    KernelCase("gate and up GEMM, activation", _gate_up, per_layer=1),
    KernelCase("down GEMM", _down, per_layer=1),
    KernelCase("head", _head, per_step=1),
)
