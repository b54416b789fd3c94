"""Mamba-2's convolution, scan and norm in Triton against the recurrence over whole sequences and the twins."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1]))
from mixer_cases import Lengths, StateCase, state_case

from octavo.kernels import state_space
from octavo.kernels.triton.state_space_conv import causal_conv
from octavo.kernels.triton.state_space_norm import gated_rms_norm
from octavo.kernels.triton.state_space_scan import ScanTile, state_space_scan

STEPS: list[Lengths] = [
    [(1, 1)],
    [(1, 33), (1, 1), (1, 16), (1, 17)],
    [(2, 2), (3, 18), (4, 33), (1, 16)],
    [(1, 3), (4, 18), (70, 70), (23, 40), (7, 16)],
]


def check(case: StateCase, tolerance: float = 1e-4, tile: ScanTile | None = None) -> None:
    num_tokens = case.step.num_tokens
    conv = causal_conv(*case.conv, case.inputs)
    scan = state_space_scan(*case.scan, case.inputs, tile)
    assert conv.dtype is case.conv[0].dtype and scan.dtype is case.scan[0].dtype
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(conv[:num_tokens].double().cpu(), case.expected_conv, **close)
    torch.testing.assert_close(case.conv[-1].cpu(), case.expected_conv_state, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(scan[:num_tokens].double().cpu(), case.expected_scan, **close)
    torch.testing.assert_close(case.scan[-1].cpu(), case.expected_scan_state, equal_nan=True, **close)


@pytest.mark.parametrize("num_places", [1, 4])
@pytest.mark.parametrize("lengths", STEPS)
def test_a_step_continues_its_sequences(lengths: Lengths, num_places: int, device: torch.device) -> None:
    check(state_case(lengths, num_places=num_places, page_size=16, num_padding=2, device=device))


@pytest.mark.parametrize("chunk", [16, 32])
def test_pages_of_several_chunks_and_heads_in_parts(chunk: int, device: torch.device) -> None:
    case = state_case([(90, 100), (65, 65)], num_places=2, page_size=32, head_dim=40, channels=300, device=device)
    check(case, tile=ScanTile(16, chunk, 4, 2))


@pytest.mark.parametrize("width", [2, 3, 6])
def test_widths_and_types(width: int, device: torch.device) -> None:
    lengths = [(1, 2), (3, 40), (30, 33)]
    case = state_case(lengths, width=width, page_size=16, has_bias=False, dtype=torch.float16, device=device)
    check(case, tolerance=1e-2)


def test_tokens_past_the_longest_sequence_write_nothing(device: torch.device) -> None:
    """A step that runs ahead of the host may hold them."""
    for lengths in ([(1, 48), (1, 3)], [(30, 48), (1, 3)]):
        case = state_case(lengths, page_size=16, device=device)
        expected = [case.conv[-1].clone(), case.scan[-1].clone()]
        case.inputs.block_tables = case.inputs.block_tables[:, :2]
        state_space.causal_conv.reference(*case.conv[:-1], expected[0], case.inputs)
        state_space.state_space_scan.reference(*case.scan[:-1], expected[1], case.inputs)
        causal_conv(*case.conv, case.inputs)
        state_space_scan(*case.scan, case.inputs)
        torch.testing.assert_close(case.conv[-1], expected[0], equal_nan=True)
        torch.testing.assert_close(case.scan[-1], expected[1], equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_norm_is_that_of_its_twin(dtype: torch.dtype, device: torch.device) -> None:
    random = torch.Generator().manual_seed(0)
    x, gate = torch.randn(5, 120, generator=random).to(device, dtype).split((60, 60), 1)
    weight = torch.randn(60, generator=random).to(device, dtype)
    for weights, group_size in ((weight, 60), (weight, 20), (weight.float(), 30)):
        expected = state_space.gated_rms_norm.reference(x, gate, weights, 1e-5, group_size)
        result = gated_rms_norm(x, gate, weights, 1e-5, group_size)
        assert result.dtype is dtype
        tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
