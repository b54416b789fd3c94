"""What kernels declare to support is what they do."""

from typing import get_args

import pytest
import torch
from attention_cases import make_case

from octavo.kernels.cpu.native_attention import NativeAttention, NativePlan
from octavo.kernels.support import SUPPORT, AttentionSupport, kinds_that_depend_on_the_batch
from octavo.platforms.native import CACHE_NUMBERS, TYPE_NUMBERS, NativeKernels
from octavo.records import CacheSpec, Full, Latent


def find(name: str) -> AttentionSupport:
    (found,) = [each for each in SUPPORT if each.name == name]
    return found


@pytest.mark.parametrize("kernel_set", ["cpu", "cuda"])
def test_every_kind_of_cache_has_kernels_in_every_set(kernel_set: str) -> None:
    kinds = {kind for each in SUPPORT if each.kernel_set == kernel_set for kind in each.caches}
    assert kinds == set(get_args(CacheSpec))


@pytest.mark.parametrize("block_size", [16, 48, 8, 17])
def test_compiled_attention_takes_what_it_says(block_size: int, native: NativeKernels) -> None:
    case = make_case(0, [(1, 5)], block_size=block_size)
    plan = NativeAttention(native).plan(case.inputs, torch.float32)
    assert isinstance(plan, NativePlan) is (block_size % find("compiled, attention").block_unit == 0)


@pytest.mark.parametrize("name", ["compiled, attention", "compiled, latent attention"])
def test_compiled_attention_reads_the_quantised_caches_it_names(name: str) -> None:
    quantized = {str(dtype).removeprefix("torch.") for dtype in CACHE_NUMBERS if dtype not in TYPE_NUMBERS}
    assert quantized == set(find(name).quantized)


def test_what_depends_on_the_batch_on_a_gpu() -> None:
    specs = [Full(2, 8, "float32"), Latent(8, "float32"), Latent(4, "float32")]
    assert kinds_that_depend_on_the_batch("cuda", specs) == [Latent]
    assert kinds_that_depend_on_the_batch("cpu", specs) == []
