"""Decode attention of rows with drafts, up to a fixed number of new tokens each, against the plain operations."""

from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from visible_keys import first_key

from octavo.kernels import (
    AttentionInputs,
    AttentionSpec,
    DeviceRows,
    HeadNorms,
    HeadTerms,
    ReferenceAttention,
    StepShape,
)
from octavo.kernels.triton.decode_attention import Cut, DecodeTile, DecodeWorkspace, decode_attention

TOLERANCE = {torch.float32: 3e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
EPS = 1e-6


@dataclass
class Case:
    """Rows of (tokens in the cache, new tokens); whatever no row may read is not a number."""

    rows: list[tuple[int, int]]
    length: int
    device: torch.device
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    rotary_dim: int = 16
    dtype: torch.dtype = torch.float32
    block_size: int = 4
    window: int | None = None
    softcap: float | None = None
    has_norms: bool = True
    has_terms: bool = False
    num_padding: int = 1

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(len(self.rows) + self.length)
        num_rows = len(self.rows)
        blocks_per_row = max(-(-sum(row) // self.block_size) for row in self.rows) + 1
        num_blocks = num_rows * blocks_per_row + 1
        self.cache = torch.full((2, num_blocks, self.num_kv_heads, self.block_size, self.head_dim), float("nan"))
        self.tables = torch.full((num_rows + 3, blocks_per_row), 2**30, dtype=torch.int32)
        self.slots = torch.randperm(num_rows + 3, generator=random)[: num_rows + self.num_padding]
        free = (torch.randperm(num_blocks - 1, generator=random) + 1).int().tolist()
        places = []
        for row, (cached, num_new) in enumerate(self.rows):
            first = first_key(cached, self.window)
            positions = torch.arange(first, cached + num_new)
            for block in (positions // self.block_size).unique().tolist():
                self.tables[self.slots[row], block] = free.pop()
            blocks = self.tables[self.slots[row], positions // self.block_size].long()
            places.append((blocks * self.block_size + positions % self.block_size)[cached - first :])
            seen = cached - first
            self.cache[:, blocks[:seen], :, positions[:seen] % self.block_size] = torch.randn(
                seen, 2, self.num_kv_heads, self.head_dim, generator=random
            )
        num_tokens = sum(num_new for _, num_new in self.rows)
        all_heads = self.num_heads + 2 * self.num_kv_heads
        qkv = torch.randn(num_tokens, all_heads * self.head_dim, generator=random)
        self.rope = torch.randn(2, num_tokens, 1, self.rotary_dim, generator=random).to(self.device, self.dtype)
        self.qkv, self.cache = qkv.to(self.device, self.dtype), self.cache.to(self.device, self.dtype)
        self.tables, self.slots = self.tables.to(self.device), self.slots.to(self.device)
        padding = [0] * self.num_padding
        starts = [0, *accumulate(num_new for _, num_new in self.rows)]
        self.starts = torch.tensor(starts + starts[-1:] * self.num_padding, dtype=torch.int32, device=self.device)
        lengths = [sum(row) for row in self.rows] + padding
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32, device=self.device)
        mean = sum(cached for cached, _ in self.rows) // num_rows
        counts = [num_rows + self.num_padding, num_rows, num_tokens, mean, num_tokens]
        self.counts = torch.tensor(counts, dtype=torch.int32, device=self.device)
        self.mapping = torch.cat(places).to(self.device)
        weights = [(torch.rand(self.head_dim, generator=random) + 0.5).to(self.device, self.dtype) for _ in range(2)]
        self.norms = HeadNorms(*weights, EPS) if self.has_norms else None
        self.spec = AttentionSpec(self.num_heads, self.num_kv_heads, self.head_dim, self.head_dim**-0.5, self.softcap)
        self.terms = HeadTerms()
        if self.has_terms:
            sinks, slopes = 2 * torch.randn(self.num_heads, generator=random), torch.rand(self.num_heads)
            self.terms = HeadTerms(sinks.to(self.device), slopes.to(self.device))

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Attended values, and the cache afterwards."""
        num_rows, num_tokens = len(self.rows), len(self.qkv)
        shape = StepShape(num_rows, num_tokens, self.length, True, False, False, self.length)
        counts = self.counts.clone()
        counts[0] = num_rows
        tables = self.tables.clamp(max=self.cache.shape[1] - 1)
        inputs = AttentionInputs(
            tables, self.slots[:num_rows], self.mapping, self.block_size, self.num_kv_heads, self.num_kv_heads,
            self.window, DeviceRows(counts, self.starts, self.seq_lens), shape,
        )  # fmt: skip
        cache, reference = self.cache.clone(), ReferenceAttention()
        reference.run(self.qkv, (self.rope[0], self.rope[1]), self.norms, cache, inputs, self.spec, self.terms)
        clean = self.cache.nan_to_num()
        out = reference.run(self.qkv, (self.rope[0], self.rope[1]), self.norms, clean, inputs, self.spec, self.terms)
        return out.view(num_tokens, self.num_heads, self.head_dim), cache

    def run(self, cut: Cut, tile: DecodeTile | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Attended values with two rows of padding behind, and the cache afterwards."""
        out = torch.full((len(self.qkv) + 2, self.num_heads, self.head_dim), float("nan")).to(self.qkv)
        num_rows = len(self.slots)
        workspace = DecodeWorkspace.allocate(
            num_rows, self.num_heads * self.length, self.head_dim, cut.max_chunks, self.device
        )
        workspace.partials.fill_(float("nan"))
        cache, norms = self.cache.clone(), self.norms
        decode_attention(
            self.qkv, *self.rope, *((None, None) if norms is None else (norms.query, norms.key)), EPS, cache,
            self.tables, self.slots, self.seq_lens, self.counts, out, workspace, self.starts, num_rows=num_rows,
            length=self.length, scale=self.spec.scale, window=self.window, softcap=self.softcap,
            sinks=self.terms.sinks, slopes=self.terms.slopes, cut=cut, tile=tile,
        )  # fmt: skip
        assert not workspace.arrivals.any()
        return out, cache

    def check(self, cut: Cut = Cut(1, 16), tile: DecodeTile | None = None) -> None:  # noqa: B008
        out, cache = self.run(cut, tile)
        expected, expected_cache = self.expected()
        assert out[len(self.qkv) :].isnan().all()
        tolerance = {"rtol": TOLERANCE[self.dtype], "atol": TOLERANCE[self.dtype]}
        torch.testing.assert_close(out[: len(self.qkv)], expected, **tolerance)
        torch.testing.assert_close(cache, expected_cache, equal_nan=True, **tolerance)


@pytest.mark.sample(4)
@pytest.mark.parametrize("length", [2, 3, 4, 8])
@pytest.mark.parametrize("num_heads", [2, 6, 8])
def test_rows_of_all_lengths(length: int, num_heads: int, device: torch.device) -> None:
    """Pages end inside of rows; prompts without a token in the cache are among them."""
    rows = [(cached, 1 + index % length) for index, cached in enumerate((0, 37, 14, 0, 1, 3, 15, 50))]
    Case(rows, length, device, num_heads=num_heads).check()


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("length", "num_heads"), [(3, 4), (4, 8), (5, 8), (8, 16)])
def test_half_types_take_the_tile_chosen_for_them(
    dtype: torch.dtype, length: int, num_heads: int, device: torch.device
) -> None:
    rows = [(70, length), (0, 2), (16, 1), (63, length), (200, length - 1)]
    case = Case(rows, length, device, num_heads, head_dim=64, rotary_dim=64, dtype=dtype, block_size=16)
    case.check(Cut(2, 64))


@pytest.mark.sample(3)
@pytest.mark.parametrize("window", [1, 3, 17, 40, -1, -3, -20])
@pytest.mark.parametrize("max_chunks", [1, 3])
def test_each_token_has_a_window_of_its_own(window: int, max_chunks: int, device: torch.device) -> None:
    rows = [(0, 4), (33, 4), (14, 3), (129, 4), (17, 1)]
    for has_terms in (False, True):
        case = Case(rows, 4, device, window=window, softcap=3.0, has_terms=has_terms)
        case.check(Cut(max_chunks, 16), DecodeTile(16, 1, 2))


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_programs", [None, 1, 2])
def test_chunks_are_merged_whichever_program_takes_them(num_programs: int | None, device: torch.device) -> None:
    rows = [(300, 3), (64, 4), (5, 2), (128, 1)]
    Case(rows, 4, device, has_norms=False, has_terms=True).check(Cut(5, 32, num_programs), DecodeTile(16, 1, 2))


def test_only_long_rows_are_cut_in_a_large_batch(device: torch.device) -> None:
    Case([(350, 3), (110, 3), (190, 2), (60, 1)], 3, device).check(Cut(3, 32, num_long=2), DecodeTile(16, 1, 2))


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(80, 80), (64, 16)])
def test_any_head_size(head_dim: int, rotary_dim: int, device: torch.device) -> None:
    Case([(5, 3), (40, 2)], 3, device, head_dim=head_dim, rotary_dim=rotary_dim).check()


def test_more_tokens_than_a_tile_holds(device: torch.device) -> None:
    Case([(5, 33), (0, 20), (47, 31)], 33, device, num_heads=1, num_kv_heads=1).check(tile=DecodeTile(16, 1, 2))


def test_other_rows_do_not_change_a_bit_of_a_row(device: torch.device) -> None:
    rows = [(300, 4), (7, 2), (64, 3)]
    case = Case(rows, 4, device, num_padding=0)
    together, _ = case.run(Cut(5, 32, 2))
    for row, (_, num_new) in enumerate(rows):
        start = int(case.starts[row])
        alone = Case(rows, 4, device, num_padding=0)
        alone.rows, alone.qkv, alone.rope = [rows[row]], case.qkv[start:][:num_new], case.rope[:, start:][:, :num_new]
        alone.slots, alone.seq_lens = case.slots[row : row + 1], case.seq_lens[row : row + 1]
        alone.starts = case.starts[row : row + 2] - start
        alone.counts[:3] = torch.tensor([1, 1, num_new])
        out, _ = alone.run(Cut(5, 32, 5))
        assert torch.equal(out[:num_new], together[start : start + num_new])
