"""The compiled CPU kernels: which build of them fits this processor.

Their source is in ``native/``; the package holds one build per instruction set, named ``_native_<instruction set>``.
A build may refuse to be imported, for instance if the operating system does not grant the use of AMX; then the next
best one runs. Where none fits, or none was built, kernels run in PyTorch. Functions take tensors as addresses, and
types as the numbers of :data:`TYPE_NUMBERS`; :mod:`octavo.kernels.cpu` is their only caller.
"""

import importlib
import os
from contextlib import AbstractContextManager
from functools import cache
from platform import machine
from types import ModuleType
from typing import Any, Protocol, cast

import torch

from octavo.errors import ConfigError

ENVIRONMENT_VARIABLE = "OCTAVO_CPU_KERNELS"
"""Names the instruction set whose kernels are used in place of the best one, or ``torch`` for none."""

_PREFIX = "octavo.platforms._native_"

BLOCK_NUMBERS = {
    name: 16 + index
    for index, name in enumerate(
        (
            *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_NL", "IQ4_XS"),
            *("nvfp4", "int8", "int4", "mxfp4"),
        )
    )
}
"""The compiled kernels' numbers of formats of integers in groups."""

INT8_NUMBER = 15
"""The compiled kernels' number of weights of 8 bits with a scale per output."""

TYPE_NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The compiled kernels' numbers of types."""

CACHE_NUMBERS = {torch.float8_e4m3fn: 1, torch.float8_e5m2: 2, torch.int8: 3}
"""The compiled kernels' numbers of types of quantised caches; 0 is the type of the computation."""


def profiled(name: str) -> AbstractContextManager[object]:
    """A context that PyTorch's profiler shows under a name; it may be entered again and again, and costs 0.1 µs."""
    return torch._C._profiler._RecordFunctionFast(f"octavo::{name}")


class NativeKernels(Protocol):
    """The compiled module. All addresses are integers, 0 for none; sizes are numbers of elements unless noted."""

    def set_num_threads(self, num_threads: int) -> None:
        """Set the size of the thread team, the calling thread included."""

    def num_threads(self) -> int:
        """The size of the thread team."""

    def bind_threads(self, cpus: int, num_cpus: int, one_each: bool) -> None:
        """Let the team's threads but for the calling one run on these CPUs (int32): one each, or any; 0 unbinds."""

    def start_tape(self, owners: list[object]) -> None:
        """Also put all operations on a tape from now on; plans that they use are appended to the list."""

    def end_tape(self) -> object:
        """Stop that; returns the tape. Whoever replays it keeps the operations' tensors alive."""

    def replay(self, tape: object) -> None:
        """Run a tape's operations again, on the same memory."""

    def packed_bytes(self, type_number: int, num_outputs: int, num_inputs: int) -> int:
        """Bytes of a packed weight."""

    def pack(self, weight: int, packed: int, num_outputs: int, num_inputs: int, type_number: int) -> None:
        """Pack a weight, or a GGUF tensor's rows; ``packed`` may be the same memory if both have the same size."""

    def pack_int8(self, weight: int, scales: int, packed: int, num_outputs: int, num_inputs: int) -> None:
        """Pack an int8 weight and its float32 scales per output."""

    def quantize(
        self, weight: int, packed: int, num_outputs: int, num_inputs: int, type_number: int, weight_type: int
    ) -> None:
        """Round a weight to int8 or int4, and pack it."""

    def gather_packed(
        self, packed: int, index: int, to: int, num_rows: int, num_inputs: int, type_number: int, to_type: int
    ) -> None:
        """Rows of a packed weight as they were; integers in groups become numbers of the type ``to_type``."""

    def linear(
        self,
        packed: int,
        x: int,
        y: int,
        bias: int,
        num_rows: int,
        num_outputs: int,
        num_inputs: int,
        x_row_bytes: int,
        y_row_size: int,
        weight_type: int,
        x_type: int,
        y_type: int,
        gate: int,
    ) -> None:
        """``y = x Wᵀ + b``, or with a gate ``act(y₁) · y₂``; ``b`` has the type of ``y``."""

    def rms_norm(
        self,
        x: int,
        residual: int,
        to: int,
        weight: int,
        num_rows: int,
        size: int,
        eps: float,
        x_type: int,
        weight_type: int,
    ) -> None:
        """Norm rows, after adding them to the residual if there is one."""

    def layer_norm(
        self,
        x: int,
        residual: int,
        to: int,
        weight: int,
        bias: int,
        num_rows: int,
        size: int,
        eps: float,
        x_type: int,
    ) -> None:
        """Norm rows, after adding them to the residual if there is one; weight and bias have the type of ``x``."""

    def activate(
        self,
        x: int,
        times: int,
        to: int,
        num_rows: int,
        size: int,
        x_row_size: int,
        times_row_size: int,
        to_row_size: int,
        activation: int,
        x_type: int,
    ) -> None:
        """``act(x)`` or ``act(x) · times``; ``to`` may be ``x``."""

    def combine(self, x: int, y: int, to: int, number: float, upper: float, *numbers: int) -> None:
        """Value by value in four dimensions; see :func:`octavo.platforms.combine.combine`.

        Args:
            numbers: sizes, strides of ``x``, ``y`` and ``to``, kind, types of ``x`` and ``to``.
        """

    def split_identities(self, *arguments: int) -> None:
        """See :func:`octavo.kernels.routing.split_identities`: addresses of its tensors, sizes, ``first``."""

    def xielu(self, x: int, to: int, slopes: int, size: int, type: int) -> None:
        """See :func:`octavo.kernels.basic.xielu`; ``to`` may be ``x``."""

    def gather(self, table: int, index: int, to: int, num_rows: int, row_bytes: int) -> None:
        """Rows of a table."""

    def prepare_inputs(self, *arguments: int) -> None:
        """A step's inputs: addresses and sizes of the batch's state, addresses of the inputs, bounds."""

    def append_tokens(self, *arguments: int) -> None:
        """Drawn tokens to the batch's state: its addresses and sizes, those of the tokens."""

    def argmax(self, x: int, values: int, places: int, num_rows: int, size: int, row_bytes: int, x_type: int) -> None:
        """The largest value of each row, float32, and the first place that has it, int64."""

    def sample(self, *arguments: int) -> None:
        """One token per row, by parameters in tables: addresses of all, sizes and strides."""

    def new_plan(self) -> object:
        """An empty plan of attention."""

    def plan_attention(self, plan: object, *arguments: int) -> None:
        """Divide a step's attention into units of work."""

    def attention(self, plan: object, *arguments: Any) -> None:
        """Attention of one layer."""

    def packed_attention(self, *arguments: Any) -> None:
        """Attention of one layer of an encoder."""

    def head_linear(self, *arguments: int) -> None:
        """``y[:, h] = x[:, h] W[h]ᵀ``: addresses of weights, x and y; strides, sizes, and types."""

    def rotate_heads(self, *arguments: int) -> None:
        """Rotate a part of each head: addresses, rotary tables, sizes, strides, and the type."""

    def store_latent(self, *arguments: Any) -> None:
        """Write a step's latent vectors into the cache, perhaps normed and rotated first."""

    def latent_attention(self, plan: object, *arguments: Any) -> None:
        """Plan a step's latent attention, and attend."""

    def choose_tokens(self, plan: object, *arguments: int) -> None:
        """The positions of the tokens that each of a step's sees, by an indexer."""

    def choose_experts(self, *arguments: Any) -> None:
        """Each token's experts and their shares, from its logits."""

    def experts_workspace(
        self, num_tokens: int, num_chosen: int, num_experts: int, hidden_size: int, inner_size: int, x_type: int
    ) -> int:
        """Bytes that :meth:`experts` needs beside its arguments."""

    def experts(self, *arguments: Any) -> None:
        """Each token's experts of one layer, and their weighted sum."""

    def causal_conv(self, *arguments: int) -> None:
        """Mamba-2's convolution of a step's rows, and its states."""

    def state_space_scan(self, *arguments: Any) -> None:
        """Mamba-2's scan of a step's rows, and its states."""

    def gated_norm(
        self,
        x: int,
        gate: int,
        weight: int,
        to: int,
        num_rows: int,
        size: int,
        group_size: int,
        x_row_size: int,
        gate_row_size: int,
        eps: float,
        x_type: int,
        weight_type: int,
    ) -> None:
        """Norm ``x · silu(gate)``, each ``group_size`` values by themselves."""


@cache
def native_kernels() -> NativeKernels | None:
    """The build for the best instruction set that this processor has; None if there is none.

    Raises:
        ConfigError: the environment names a build that does not exist or does not run here.
    """
    wanted = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if wanted == "torch":
        return None
    names = instruction_sets()
    if wanted:
        if wanted not in names:
            raise ConfigError(
                f"{ENVIRONMENT_VARIABLE} is {wanted!r}, but this processor runs {', '.join(names) or 'none'}; 'torch' "
                "uses no compiled kernels."
            )
        names = [wanted]
    for name in names:
        try:
            return cast(NativeKernels, importlib.import_module(_PREFIX + name))
        except ModuleNotFoundError:
            reason = "were not built"
        except ImportError as error:  # the module asked the operating system, for instance for the use of AMX
            reason = f"do not run here: {error}"
    if wanted:
        raise ConfigError(f"{ENVIRONMENT_VARIABLE} is {wanted!r}, but these kernels {reason}.")
    return None


def instruction_set(native: NativeKernels) -> str:
    """The instruction set that a build is for."""
    return cast(ModuleType, native).__name__.removeprefix(_PREFIX)


def why_missing() -> str:
    """Why no compiled kernels run here, and what to do about it; empty if they do."""
    if native_kernels() is not None:
        return ""
    if os.environ.get(ENVIRONMENT_VARIABLE) == "torch":
        return f"{ENVIRONMENT_VARIABLE} is 'torch'"
    if not instruction_sets():
        return "there are none for this processor, which lacks AVX2 and NEON"
    return "none were built; install Octavo again where there is a C++ compiler"


def instruction_sets() -> list[str]:
    """The instruction sets of this processor that kernels can be built for, the best first."""
    if machine() in ("aarch64", "arm64"):
        return ["neon"]
    if machine() not in ("x86_64", "AMD64"):
        return []
    features = torch.cpu
    has_vnni = features._is_avx512_supported() and features._is_vnni_supported()
    has_bf16 = has_vnni and features._is_avx512_bf16_supported()
    found = {
        "amx": has_bf16 and features._is_amx_tile_supported(),
        "avx512_bf16": has_bf16,
        "avx512_vnni": has_vnni,
        "avx2": features._is_avx2_supported(),
    }
    return [name for name, is_there in found.items() if is_there]
