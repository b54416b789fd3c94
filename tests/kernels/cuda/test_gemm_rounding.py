"""Gated outputs that a GEMM by thread-block clusters rounds to float8 for the next one, by scales of whole rows.

A Hopper GPU (H100 or H200) runs the kernel.
"""

import pytest
import torch
from test_gemm import DIVISIONS, FLOAT8, Case, tile_of

from octavo.kernels.cuda.gemm_tiles import GemmTile
from octavo.kernels.linear import RoundedRows
from octavo.kernels.scaled import quantize_rows
from octavo.platforms import runtime_of

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)

NUM_SMS = 132


class RoundingCase(Case):
    """A GEMM of float8 values, whose gated outputs are rounded."""

    def __init__(
        self, num_rows: int, num_outputs: int, out_dtype: torch.dtype = torch.bfloat16, activation: str = "silu"
    ) -> None:
        super().__init__((num_rows, num_outputs, 1040), FLOAT8, out_dtype, activation)

    def round(self, tile: GemmTile) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and scales."""
        num_rows, num_outputs = self.out.shape
        rounded = RoundedRows.empty(num_rows, num_outputs, self.out.dtype, self.out.device)
        self.gemm().multiply(self.x, self.row_scales, None, self.activation, tile, rounded=rounded)
        return rounded.values, rounded.scales


def meeting_tile(division: tuple[int, ...], case: RoundingCase) -> GemmTile:
    tile = tile_of(division, len(case.weight))
    if not tile.can_meet(len(case.x), len(case.weight), NUM_SMS):
        pytest.skip("not all blocks run at once")
    return tile


@pytest.mark.parametrize("division", [each for each in DIVISIONS if each[3] * each[4] <= 2], ids=str)
@pytest.mark.parametrize(("num_rows", "num_outputs"), [(17, 64), (100, 328), (250, 1024), (250, 1096)])
@pytest.mark.parametrize(
    ("activation", "out_dtype"), [("silu", torch.bfloat16), ("silu", torch.float16), ("gelu_tanh", torch.bfloat16)]
)
def test_rows_have_the_bits_of_a_launch(
    division: tuple[int, ...], num_rows: int, num_outputs: int, activation: str, out_dtype: torch.dtype
) -> None:
    if division[1] // division[4] % 32:
        pytest.skip("with a gate, 32 rows are written at once")
    case = RoundingCase(num_rows, num_outputs, out_dtype, activation)
    tile = meeting_tile(division, case)
    values, scales = case.round(tile)
    expected, expected_scales = quantize_rows.reference(case.multiply(tile))
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scales, expected_scales)


def test_what_is_no_number_stays_in_its_row() -> None:
    case = RoundingCase(100, 320)
    assert case.row_scales is not None
    case.row_scales[3], case.row_scales[50] = float("inf"), float("nan")
    values, scales = case.round(meeting_tile((2, 64, 4, 2, 1), case))
    is_number = (values.float() * scales).isfinite().all(1)
    assert is_number.nonzero().flatten().tolist() == [row for row in range(100) if row not in (3, 50)]


def test_rows_of_zeros_have_a_scale() -> None:
    case = RoundingCase(40, 320)
    assert case.row_scales is not None
    case.row_scales[5] = 0
    case.bias.zero_()
    values, scales = case.round(meeting_tile((1, 32, 10, 1, 1), case))
    assert not values[5].float().any() and scales[5] > 0


def test_launches_of_all_sizes_meet_one_after_another() -> None:
    """Each finds the counter and the maxima as the one before, which may have had more rows, has left them."""
    cases = [
        (RoundingCase(num_rows, num_outputs), division)
        for num_rows, num_outputs, division in (
            (250, 4096, (3, 256, 4, 1, 1)),
            (17, 64, (1, 32, 10, 1, 1)),
            (250, 1024, (1, 128, 9, 2, 1)),
            (100, 320, (2, 128, 6, 1, 1)),
            (250, 1024, (1, 256, 5, 1, 2)),
        )
    ]
    tiles = [meeting_tile(division, case) for case, division in cases]

    def run() -> tuple[torch.Tensor, ...]:
        return tuple(result for (case, _), tile in zip(cases, tiles, strict=True) for result in case.round(tile))

    expected = run()
    with runtime_of(expected[0].device).graph_capture() as capture:
        graph, results = capture.capture(run)
    for _ in range(50):
        for result in results:
            result.zero_()
        graph.replay()
        assert all(
            torch.equal(result.view(torch.uint8), other.view(torch.uint8))
            for result, other in zip(results, expected, strict=True)
        )
