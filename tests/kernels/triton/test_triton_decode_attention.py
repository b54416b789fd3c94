"""Decode attention in Triton, with what comes before it, against plain loops over rows."""

import copy
from dataclasses import dataclass

import pytest
import torch
from visible_keys import first_key

from octavo.kernels.basic import apply_rope, rms_norm
from octavo.kernels.triton.decode_attention import (
    MAX_CHUNKS,
    Cut,
    DecodeTile,
    DecodeWorkspace,
    choose_cut,
    choose_tile,
    decode_attention,
)

LENGTHS = [1, 37, 16, 150]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """A step of rows that decode, poisoned wherever a kernel has no business to read."""

    lengths: list[int]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    has_slopes: bool = False
    num_padding: int = 0

    def __post_init__(self) -> None:
        rows, blocks_per_row = len(self.lengths), -(-max(self.lengths) // self.block_size) + 1
        shape = (2, rows * blocks_per_row + 1, self.num_kv_heads, self.block_size, self.head_dim)
        self.kv_cache = torch.full(shape, float("nan"))
        self.slots = torch.randperm(rows + 2)[: rows + self.num_padding]
        # A block far outside the cache, for a kernel that follows a stale entry.
        self.block_tables = torch.full((rows + 2, blocks_per_row), 2**30, dtype=torch.int32)
        free = (torch.randperm(rows * blocks_per_row) + 1).tolist()
        for row, length in enumerate(self.lengths):
            seen = range(self.first(row), length)
            for block in sorted({position // self.block_size for position in seen}):
                self.block_tables[self.slots[row], block] = free.pop()
            self.kv_cache[:, self.blocks(row), :, torch.tensor(seen) % self.block_size] = torch.randn(
                len(seen), 2, self.num_kv_heads, self.head_dim
            )
        self.seq_lens = torch.tensor(self.lengths + [7] * self.num_padding, dtype=torch.int32)
        mean = sum(self.lengths) // rows
        self.counts = torch.tensor([rows + self.num_padding, rows, 0, mean], dtype=torch.int32)
        self.q = torch.randn(rows + self.num_padding, self.num_heads, self.head_dim)
        self.sinks = torch.randn(self.num_heads) * 2 if self.has_sinks else None
        self.slopes = torch.rand(self.num_heads, device=self.device) if self.has_slopes else None
        self.kv_cache, self.q = self.kv_cache.to(self.device, self.dtype), self.q.to(self.device, self.dtype)
        for name in ("slots", "block_tables", "seq_lens", "counts"):
            setattr(self, name, getattr(self, name).to(self.device))
        self.sinks = None if self.sinks is None else self.sinks.to(self.device)

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def first(self, row: int) -> int:
        return first_key(self.lengths[row] - 1, self.window)

    def blocks(self, row: int) -> torch.Tensor:
        """The block of each token that a row sees."""
        positions = torch.arange(self.first(row), self.lengths[row], device=self.block_tables.device)
        return self.block_tables[self.slots[row], positions // self.block_size].long()

    def product(self) -> torch.Tensor:
        """Each row's queries, and the key and value of its last token, ``[R, (H + 2·Hkv)·D]``."""
        qkv = torch.full((len(self.q), self.num_heads + 2 * self.num_kv_heads, self.head_dim), float("nan"))
        qkv = qkv.to(self.device, self.dtype)
        qkv[:, : self.num_heads] = self.q
        for row, length in enumerate(self.lengths):
            last = self.kv_cache[:, self.blocks(row)[-1], :, (length - 1) % self.block_size]
            qkv[row, self.num_heads :] = last.flatten(0, 1)
        return qkv.flatten(1)

    def run(
        self, max_chunks: int, tile: DecodeTile | None = None, min_tokens: int = 32, num_programs: int | None = None
    ) -> torch.Tensor:
        """The kernel's output, rows past those that decode included."""
        return self.run_cut(Cut(max_chunks, min_tokens, num_programs), tile)[0]

    def run_cut(self, cut: Cut, tile: DecodeTile | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The kernel's output, and how many chunks each row was cut into: 0 for one that needs no merge."""
        out = torch.full_like(self.q, float("nan"))
        rows = len(self.q)
        workspace = DecodeWorkspace.allocate(rows + 1, self.num_heads, self.head_dim, cut.max_chunks, self.device)
        workspace.partials.fill_(float("nan"))
        # Queries and keys as they are: no norms, and a rotation by nothing.
        ones = torch.ones(rows, 1, self.head_dim, dtype=self.dtype, device=self.device)
        decode_attention(
            self.product(), ones, ones * 0, None, None, 0.0, self.kv_cache, self.block_tables, self.slots,
            self.seq_lens, self.counts, out, workspace, num_rows=rows, scale=self.scale, window=self.window,
            softcap=self.softcap, sinks=self.sinks, slopes=self.slopes, cut=cut, tile=tile,
        )  # fmt: skip
        assert not workspace.arrivals.any()
        partials = workspace.partials.view(rows + 1, cut.max_chunks, self.num_heads, self.head_dim)
        return out, (~partials.isnan().any(-1).any(-1)).sum(1)[: len(self.lengths)]

    def expected(self, queries: torch.Tensor | None = None) -> torch.Tensor:
        """A row after another in float32."""
        queries = self.q if queries is None else queries
        output = torch.full_like(queries, float("nan"))
        for row, length in enumerate(self.lengths):
            offsets = torch.arange(self.first(row), length, device=self.device) % self.block_size
            keys, values = self.kv_cache[:, self.blocks(row), :, offsets].float().unbind(1)  # [n, Hkv, D] each
            groups = self.num_heads // self.num_kv_heads
            keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
            scores = torch.einsum("hd,nhd->hn", queries[row].float(), keys) * self.scale
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            if self.slopes is not None:
                scores -= self.slopes[:, None] * (length - 1 - torch.arange(self.first(row), length)).to(scores)
            if self.sinks is not None:
                scores = torch.cat((scores, self.sinks[:, None].float()), dim=1)
            weights = scores.softmax(-1)[:, : len(keys)]
            output[row] = torch.einsum("hn,nhd->hd", weights, values).to(output.dtype)
        return output

    def alone(self, row: int) -> "Case":
        """A step of one of the rows, over the same cache."""
        case = copy.copy(self)
        case.lengths = [self.lengths[row]]
        case.slots, case.seq_lens, case.q = (x[row : row + 1] for x in (self.slots, self.seq_lens, self.q))
        case.counts = torch.ones_like(self.counts)
        return case

    def check(self, output: torch.Tensor, expected: torch.Tensor | None = None) -> None:
        tolerance = TOLERANCE[self.dtype]
        expected = self.expected() if expected is None else expected
        torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("tile", [(32, 4, 2), (64, 4, 2), (32, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_attends_as_its_twin(
    dtype: torch.dtype, num_splits: int, tile: tuple[int, int, int], device: torch.device
) -> None:
    case = Case(LENGTHS, 6, 2, 64, device, dtype, num_padding=1)
    case.check(case.run(num_splits, DecodeTile(*tile)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_any_head_size(head_dim: int, device: torch.device) -> None:
    case = Case([5, 140], 2, 1, head_dim, device)
    case.check(case.run(2))


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_half_types_take_the_tile_chosen_for_them(dtype: torch.dtype, head_dim: int, device: torch.device) -> None:
    case = Case([5, 140], 4, 1, head_dim, device, dtype)
    case.check(case.run(2))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (3, 3), (5, 1), (24, 1)])
def test_any_group(num_heads: int, num_kv_heads: int, device: torch.device) -> None:
    case = Case([33, 150], num_heads, num_kv_heads, 16, device)
    case.check(case.run(2))


@pytest.mark.sample(3)
@pytest.mark.parametrize("group", [1, 2, 3, 5, 6, 7, 9, 11, 13, 16])
@pytest.mark.parametrize("num_programs", [1, 64, 4096])
def test_any_group_by_the_tiles_of_half_types(group: int, num_programs: int, device: torch.device) -> None:
    case = Case([33, 150], 2 * group, 2, 64, device, torch.float16)
    case.check(case.run(2, choose_tile(128, torch.float16, num_programs, group)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("num_tokens", [16, 32])
def test_any_block_size(block_size: int, num_tokens: int, device: torch.device) -> None:
    case = Case([63, 130], 2, 2, 16, device, block_size=block_size)
    case.check(case.run(2, tile=DecodeTile(num_tokens, 4, 2)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("window", [1, 16, 70, -83, -50, -1])
@pytest.mark.parametrize("num_splits", [1, 2])
def test_reads_only_the_window(window: int, num_splits: int, device: torch.device) -> None:
    case = Case([1, 20, 250], 2, 1, 16, device, window=window)
    case.check(case.run(num_splits))


@pytest.mark.parametrize("num_splits", [1, 3])
def test_softcap_and_sinks(num_splits: int, device: torch.device) -> None:
    case = Case(LENGTHS, 4, 2, 16, device, softcap=2.5, has_sinks=True)
    case.check(case.run(num_splits))


@pytest.mark.sample(4)
@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 17, 70])
@pytest.mark.parametrize(("ratio", "head_dim"), [(1, 16), (3, 64), (5, 80), (7, 128)])
def test_slopes(
    ratio: int, head_dim: int, window: int | None, has_sinks: bool, softcap: float | None, device: torch.device
) -> None:
    options = {"window": window, "softcap": softcap, "has_sinks": has_sinks, "has_slopes": True}
    case = Case(LENGTHS, 2 * ratio, 2, head_dim, device, **options)
    case.check(case.run(1))
    case.check(case.run(3, num_programs=2))


def test_a_poisoned_row_stays_alone(device: torch.device) -> None:
    case = Case([40, 40, 40], 4, 2, 16, device)
    clean = case.run(1)
    case.kv_cache[0, case.blocks(1)[3], 0, 3] = float("nan")
    poisoned = case.run(1)
    assert poisoned[1, :2].isnan().all()
    poisoned[1, :2] = clean[1, :2]
    assert torch.equal(poisoned, clean)


def test_more_chunks_than_one_merge_reads_at_once(device: torch.device) -> None:
    case = Case([40 * 128 + 3], 64, 1, 16, device, has_sinks=True, block_size=64)
    case.check(case.run(41, DecodeTile(128, 4, 2)))


def test_chunks_get_a_second_tile_rather_than_the_merge_a_second_read(device: torch.device) -> None:
    case = Case([8 * 16 + 1, 8 * 16 + 2, 40 * 16], 4, 2, 16, device)
    out, num_chunks = case.run_cut(Cut(64, 16), DecodeTile(16, 1, 2))
    case.check(out)
    assert num_chunks.tolist() == [8, 5, 20]


@pytest.mark.parametrize("has_terms", [False, True])
def test_other_rows_do_not_change_a_bit_of_a_row(has_terms: bool, device: torch.device) -> None:
    case = Case([1, 700, 300], 2, 1, 16, device, has_sinks=has_terms, has_slopes=has_terms)
    together = case.run(5)
    case.check(together)
    for row in range(3):
        alone = case.alone(row).run(5)
        assert torch.equal(alone[0], together[row])


def test_which_program_takes_a_chunk_does_not_change_a_bit(device: torch.device) -> None:
    case = Case([1, 300, 130, 64], 4, 2, 16, device, has_sinks=True)
    expected = case.run(5)
    case.check(expected)
    for num_programs in (1, 2, 3):
        assert torch.equal(case.run(5, num_programs=num_programs), expected)


def test_of_many_rows_only_the_first_that_are_much_longer_than_the_mean_are_cut(device: torch.device) -> None:
    case = Case([350, 110, 190, 200, 60, 40], 4, 2, 16, device, num_padding=2)
    case.counts[3] = 100
    out, num_chunks = case.run_cut(Cut(4, 32, num_long=3), DecodeTile(16, 1, 2))
    case.check(out)
    assert num_chunks.tolist() == [4, 0, 2, 0, 0, 0]
    alike = Case([170] * 4, 4, 2, 16, device)
    out, num_chunks = alike.run_cut(Cut(4, 32, num_long=4), DecodeTile(16, 1, 2))
    alike.check(out)
    assert not num_chunks.any()


@pytest.mark.parametrize(
    ("num_rows", "num_kv_heads", "max_len", "cut"),
    [
        (1, 8, 100, Cut(2, 64)),
        (1, 8, 32768, Cut(16, 64)),
        (1, 1, 32768, Cut(MAX_CHUNKS, 64)),
        (4, 8, 32768, Cut(4, 64)),
        (8, 8, 32768, Cut(2, 512)),
        (32, 8, 4096, Cut(2, 1024)),
        (100, 8, 4096, Cut(3, 512, num_long=13)),
        (256, 8, 4096, Cut(1, 512)),
    ],
)
def test_a_cut_fills_the_device(num_rows: int, num_kv_heads: int, max_len: int, cut: Cut) -> None:
    tile = choose_tile(256, torch.bfloat16, num_rows * num_kv_heads, 4)
    assert choose_cut(num_rows, num_kv_heads, 256, max_len, 132, tile) == cut


@pytest.mark.parametrize(("num_rows", "max_chunks"), [(1, 33), (8, 4), (16, 2), (32, 2)])
def test_a_cut_over_8_bits_gives_a_multiprocessor_two_programs(num_rows: int, max_chunks: int) -> None:
    tile = choose_tile(128, torch.bfloat16, num_rows * 8, 4, is_quantized=True)
    assert choose_cut(num_rows, 8, 128, 32768, 132, tile, is_quantized=True).max_chunks == max_chunks


def test_a_cut_keeps_to_the_workspace() -> None:
    assert choose_cut(4, 1, 128, 100_000, 132, DecodeTile(64, 4, 3), max_places=32).max_chunks == 8


@pytest.mark.parametrize("num_programs", [1, 64, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tiles_fit_the_smallest_head_and_the_largest(dtype: torch.dtype, num_programs: int) -> None:
    for head_dim in (16, 256):
        tile = choose_tile(head_dim * dtype.itemsize, dtype, num_programs)
        assert 2 * tile.num_tokens * head_dim * dtype.itemsize * tile.num_stages <= 227 * 1024


def run_fused(
    case: Case,
    qkv: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    norms: list[torch.Tensor | None],
    num_splits: int,
    tile: DecodeTile | None,
) -> torch.Tensor:
    out = torch.full((len(qkv), case.num_heads, case.head_dim), float("nan"), dtype=qkv.dtype, device=qkv.device)
    workspace = DecodeWorkspace.allocate(len(qkv), case.num_heads, case.head_dim, num_splits, case.device)
    decode_attention(
        qkv, *rope, *norms, 1e-6, case.kv_cache, case.block_tables, case.slots, case.seq_lens, case.counts,
        out, workspace, num_rows=len(qkv), scale=case.scale, window=case.window, softcap=case.softcap,
        sinks=case.sinks, slopes=case.slopes, cut=Cut(num_splits, 32), tile=tile,
    )  # fmt: skip
    assert not workspace.arrivals.any()
    return out


def check_fused(
    case: Case, rotary_dim: int, norm_dtype: torch.dtype | None, num_splits: int, tile: DecodeTile | None = None
) -> None:
    """Hold the fused kernel against the twins one after another."""
    rows, heads, kv_heads = len(case.q), case.num_heads, case.num_kv_heads
    qkv = torch.randn(rows, heads + 2 * kv_heads, case.head_dim).to(case.q)
    cos, sin = torch.randn(2, rows, 1, rotary_dim).to(case.q).unbind(0)
    norms: list[torch.Tensor | None] = [None, None]
    if norm_dtype is not None:
        norms = [(torch.rand(case.head_dim) + 0.5).to(case.device, norm_dtype) for _ in range(2)]
    stored = case.kv_cache.clone()
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    q, k = (
        apply_rope((x if w is None else rms_norm(x, w, 1e-6)).float(), cos.float(), sin.float()).to(x.dtype)
        for x, w in zip((q, k), norms, strict=True)
    )
    for row, length in enumerate(case.lengths):
        place = (slice(None), case.blocks(row)[-1], slice(None), (length - 1) % case.block_size)
        case.kv_cache[place] = float("nan")
        stored[place] = torch.stack((k[row], v[row]))

    output = run_fused(case, qkv.flatten(1), (cos, sin), norms, num_splits, tile)
    tolerance = TOLERANCE[case.dtype]
    torch.testing.assert_close(case.kv_cache, stored, rtol=tolerance, atol=tolerance, equal_nan=True)
    torch.testing.assert_close(case.kv_cache[1], stored[1], rtol=0, atol=0, equal_nan=True)
    case.check(output, case.expected(q))


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("norm_dtype", [None, torch.float32])
def test_fused_does_what_its_parts_do(norm_dtype: torch.dtype | None, num_splits: int, device: torch.device) -> None:
    check_fused(Case([1, 17, 16, 300], 6, 2, 32, device, num_padding=1), 32, norm_dtype, num_splits)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_in_half_types(dtype: torch.dtype, is_wide: bool, device: torch.device) -> None:
    norm_dtype = torch.float32 if is_wide else dtype
    check_fused(Case([2, 150], 4, 2, 64, device, dtype), 64, norm_dtype, 2, DecodeTile(32, 2, 2))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(80, 80), (64, 16), (96, 48), (64, 0)])
def test_fused_with_a_part_rotated(head_dim: int, rotary_dim: int, device: torch.device) -> None:
    check_fused(Case([65, 3], 2, 1, head_dim, device), rotary_dim, torch.float32, 1)
    check_fused(Case([65, 3], 2, 1, head_dim, device, has_sinks=True, has_slopes=True), rotary_dim, None, 1)


@pytest.mark.parametrize("window", [1, 17, -32])
def test_fused_with_window_softcap_and_sinks(window: int, device: torch.device) -> None:
    case = Case([1, 33, 129], 4, 2, 16, device, window=window, softcap=3.0, has_sinks=True)
    check_fused(case, 16, torch.float32, 2)
