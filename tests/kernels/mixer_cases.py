"""Steps for latent attention and recurrent states, with results from plain definitions over whole sequences.

Sequences' blocks are strewn over caches in which everything that no earlier step wrote is NaN.
"""

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F

from octavo.kernels import AttentionInputs, DeviceRows, StepShape
from octavo.kernels.latent_attention import LatentSpec
from octavo.kernels.state_space import StateInputs

Lengths = list[tuple[int, int]]
"""Each row's tokens in the step, and tokens after it."""


@dataclass
class StepCase:
    """Rows of a step: lengths on a device, slots in any order, and tables of distinct blocks."""

    lengths: Lengths
    page_size: int
    num_padding: int
    rows: DeviceRows
    shape: StepShape
    slots: torch.Tensor
    tables: torch.Tensor
    num_blocks: int

    @classmethod
    def make(cls, lengths: Lengths, page_size: int, num_padding: int, device: torch.device) -> "StepCase":
        """A step with ``num_padding`` padding tokens and as many padding rows."""
        random = torch.Generator().manual_seed(len(lengths))
        query_lens = [query_len for query_len, _ in lengths]
        num_rows, num_tokens, num_decodes = len(lengths), sum(query_lens), query_lens.count(1)
        starts = [0, *accumulate(query_lens)] + [num_tokens] * num_padding
        seq_lens = [seq_len for _, seq_len in lengths] + [0] * num_padding
        counts = [num_rows, num_decodes, num_tokens, 0]
        slots = torch.randperm(num_rows + 2, generator=random)[:num_rows]
        counts_of_blocks = [-(-seq_len // page_size) for _, seq_len in lengths]
        num_blocks = sum(counts_of_blocks) + 2
        order = (torch.randperm(num_blocks - 1, generator=random) + 1).tolist()
        tables = torch.randint(0, num_blocks, (num_rows + 2, max(counts_of_blocks) + 1), generator=random)
        for slot, count in zip(slots.tolist(), counts_of_blocks, strict=True):
            own, order = order[:count], order[count:]
            tables[slot, :count] = torch.tensor(own)
        slots = torch.cat((slots, torch.zeros(num_padding, dtype=slots.dtype)))

        def on_device(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        rows = DeviceRows(on_device(counts), on_device(starts), on_device(seq_lens))
        shape = StepShape(
            num_rows + num_padding,
            num_tokens + num_padding,
            max(query_lens),
            num_decodes > 0,
            num_decodes < num_rows,
            False,
        )
        return cls(lengths, page_size, num_padding, rows, shape, slots.to(device), tables.int().to(device), num_blocks)

    @property
    def num_tokens(self) -> int:
        return sum(query_len for query_len, _ in self.lengths)

    def tokens(self) -> list[tuple[int, int]]:
        """(row, position) of each token of the step."""
        return [
            (row, position)
            for row, (query_len, seq_len) in enumerate(self.lengths)
            for position in range(seq_len - query_len, seq_len)
        ]

    def block(self, row: int, position: int) -> int:
        return int(self.tables[self.slots[row], position // self.page_size])

    def of_step(self, sequences: list[torch.Tensor], padding: float = float("nan")) -> torch.Tensor:
        """The step's tokens of per-row sequences, laid end to end, and padding."""
        parts = [
            sequence[seq_len - query_len : seq_len]
            for sequence, (query_len, seq_len) in zip(sequences, self.lengths, strict=True)
        ]
        rest = torch.full((self.num_padding, *parts[0].shape[1:]), padding, dtype=parts[0].dtype)
        return torch.cat((*parts, rest))


def alone(inputs: AttentionInputs, row: int, position: int) -> AttentionInputs:
    """Inputs that decode one token of a row; what the cache keeps of it is there."""
    rows = replace(
        inputs.rows,
        counts=torch.tensor([1, 1, 1, 0], dtype=torch.int32),
        query_starts=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([position + 1], dtype=torch.int32),
    )
    return replace(inputs, rows=rows, slots=inputs.slots[row : row + 1])


@dataclass
class LatentCase:
    """A step of latent attention before its store, and the results."""

    step: StepCase
    inputs: AttentionInputs
    spec: LatentSpec
    q: torch.Tensor
    latent: torch.Tensor
    cache: torch.Tensor
    expected: torch.Tensor
    sinks: torch.Tensor | None
    chosen: torch.Tensor | None

    @property
    def options(self) -> dict[str, torch.Tensor | None]:
        """What changes the softmax."""
        return {"sinks": self.sinks, "chosen": self.chosen}


def latent_case(
    lengths: Lengths,
    *,
    num_heads: int = 3,
    rank: int = 16,
    rope_dim: int = 8,
    block_size: int = 4,
    num_padding: int = 0,
    has_sinks: bool = False,
    num_chosen: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> LatentCase:
    """A step with random vectors; ``expected`` is ``[T, H, rank]`` of attention in float64, without padding.

    Args:
        num_chosen: queries attend to at most so many tokens, chosen at random; None for all.
    """
    device = device or torch.device("cpu")
    random = torch.Generator().manual_seed(rank)
    step = StepCase.make(lengths, block_size, num_padding, device)
    size = rank + rope_dim
    vectors = [torch.randn(seq_len, size, generator=random).to(dtype) for _, seq_len in lengths]
    queries = [torch.randn(seq_len, num_heads, size, generator=random).to(dtype) for _, seq_len in lengths]
    mapping = torch.full((step.shape.num_tokens,), -1)
    # Blocks of a layer lie in pages that hold other layers, too.
    pages = torch.full((step.num_blocks, block_size + 1, size), float("nan"), dtype=dtype)
    for token, (row, position) in enumerate(step.tokens()):
        mapping[token] = step.block(row, position) * block_size + position % block_size
    spec, expected = LatentSpec(num_heads, rank, rope_dim, 2 * size**-0.5), []
    sinks = torch.randn(num_heads, generator=random) if has_sinks else None
    chosen = None if num_chosen is None else torch.full((step.shape.num_tokens, num_chosen), -1)
    for row, (query_len, seq_len) in enumerate(lengths):
        for position in range(seq_len - query_len):
            pages[step.block(row, position), position % block_size] = vectors[row][position]
        wide = vectors[row].double()
        for position in range(seq_len - query_len, seq_len):
            seen = torch.arange(position + 1)
            if chosen is not None:
                seen = torch.randperm(position + 1, generator=random)[:num_chosen].sort().values
                chosen[len(expected), : len(seen)] = seen
            scores = queries[row][position].double() @ wide[seen].T * spec.scale
            if sinks is not None:
                scores = torch.cat((scores, sinks[:, None]), -1)
            expected.append(scores.softmax(-1)[:, : len(seen)] @ wide[seen, :rank])
    inputs = AttentionInputs(step.tables, step.slots, mapping.to(device), block_size, 1, 1, None, step.rows, step.shape)
    cache = pages.to(device)[:, :block_size]
    q, latent = step.of_step(queries, 0.0).to(device), step.of_step(vectors, 0.0).to(device)
    terms = (None if sinks is None else sinks.to(device), None if chosen is None else chosen.int().to(device))
    return LatentCase(step, inputs, spec, q, latent, cache, torch.stack(expected), *terms)


@dataclass
class IndexerCase:
    """A step of an indexer, keys stored, and the choice of each of its tokens, without padding."""

    step: StepCase
    inputs: AttentionInputs
    q: torch.Tensor
    weights: torch.Tensor
    cache: torch.Tensor
    expected: list[list[int]]


def indexer_case(
    lengths: Lengths,
    num_chosen: int,
    *,
    num_heads: int = 6,
    head_dim: int = 12,
    block_size: int = 4,
    num_padding: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> IndexerCase:
    """A step with small whole numbers, whose sums are exact in any order, and many of whose scores are equal."""
    device = device or torch.device("cpu")
    random = torch.Generator().manual_seed(head_dim)
    step = StepCase.make(lengths, block_size, num_padding, device)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=random).to(dtype)

    keys = [draw(seq_len, head_dim) for _, seq_len in lengths]
    queries = [draw(seq_len, num_heads, head_dim) for _, seq_len in lengths]
    weights = [draw(seq_len, num_heads).float() for _, seq_len in lengths]
    pages = torch.full((step.num_blocks, block_size + 1, head_dim), float("nan"), dtype=dtype)
    expected = []
    for row, (query_len, seq_len) in enumerate(lengths):
        for position in range(seq_len):
            pages[step.block(row, position), position % block_size] = keys[row][position]
        for position in range(seq_len - query_len, seq_len):
            found = queries[row][position].double() @ keys[row][: position + 1].double().T
            scores = (weights[row][position].double() @ found.clamp(min=0)).tolist()
            ranked = sorted(range(position + 1), key=lambda place: (-scores[place], place))
            expected.append(sorted(ranked[:num_chosen]))
    mapping = torch.full((step.shape.num_tokens,), -1, device=device)
    inputs = AttentionInputs(step.tables, step.slots, mapping, block_size, 1, 1, None, step.rows, step.shape)
    q, of_heads = step.of_step(queries, 0.0).to(device), step.of_step(weights, 0.0).to(device)
    return IndexerCase(step, inputs, q, of_heads, pages.to(device)[:, :block_size], expected)


@dataclass
class StateCase:
    """A step of convolution and scan, and the results.

    Attributes:
        conv, scan: arguments of ``causal_conv`` and ``state_space_scan`` without the inputs; the last is the state.
        expected_conv, expected_scan: ``[T, C]`` and ``[T, H, P]``, without padding.
        expected_conv_state, expected_scan_state: NaN where nothing was ever written.
    """

    step: StepCase
    inputs: StateInputs
    conv: tuple[torch.Tensor, ...]
    scan: tuple
    expected_conv: torch.Tensor
    expected_scan: torch.Tensor
    expected_conv_state: torch.Tensor
    expected_scan_state: torch.Tensor


def state_case(
    lengths: Lengths,
    *,
    num_heads: int = 4,
    head_dim: int = 6,
    state_size: int = 5,
    num_groups: int = 2,
    channels: int = 7,
    width: int = 4,
    page_size: int = 8,
    num_places: int = 1,
    num_padding: int = 0,
    has_bias: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> StateCase:
    """A step with random inputs, and what the plain recurrence from the first token gives, in float64."""
    device = device or torch.device("cpu")
    random = torch.Generator().manual_seed(num_places)
    step = StepCase.make(lengths, page_size, num_padding, device)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    weight, bias = draw(channels, width), draw(channels) if has_bias else None
    a_log, d, dt_bias, limit = draw(num_heads), draw(num_heads), draw(num_heads), (0.1, 2.0)
    totals = [seq_len for _, seq_len in lengths]
    inputs = [draw(total, channels) for total in totals]
    xs, dts = [draw(total, num_heads, head_dim) for total in totals], [draw(total, num_heads) for total in totals]
    bs, cs = ([draw(total, num_groups, state_size) for total in totals] for _ in range(2))

    nan = float("nan")
    conv_state = torch.full((step.num_blocks, num_places, channels, width - 1), nan, dtype=dtype)
    scan_state = torch.full((step.num_blocks, num_places, num_heads, head_dim, state_size), nan)
    convolved, scanned, after_conv, after_scan = [], [], [], []
    for row, (query_len, seq_len) in enumerate(lengths):
        padded = F.pad(inputs[row].double(), (0, 0, width - 1, 0))  # [S + K − 1, C]
        sums = padded.unfold(0, width, 1).mul(weight.double()).sum(-1)
        convolved.append(F.silu(sums if bias is None else sums + bias.double()))
        h, ys, of_head = torch.zeros(num_heads, head_dim, state_size).double(), [], num_heads // num_groups
        for position in range(seq_len):
            delta = F.softplus(dts[row][position].double() + dt_bias.double()).clamp(*limit)
            x, b, c = (
                xs[row][position].double(),
                bs[row][position].double().repeat_interleave(of_head, 0),
                cs[row][position].double().repeat_interleave(of_head, 0),
            )
            h = h * (-delta * a_log.double().exp()).exp()[:, None, None]
            h = h + (delta[:, None] * x)[:, :, None] * b[:, None]
            ys.append((h * c[:, None]).sum(-1) + d.double()[:, None] * x)
            is_read = position == seq_len - query_len - 1
            is_new = position >= seq_len - query_len
            if is_read or (is_new and (position >= seq_len - num_places or (position + 1) % page_size == 0)):
                place = step.block(row, position), position % num_places
                kept = padded[position + 1 : position + width].T
                if is_read:
                    conv_state[place], scan_state[place] = kept, h
                else:
                    after_conv.append((place, kept))
                    after_scan.append((place, h))
        scanned.append(torch.stack(ys))
    before_conv, before_scan = conv_state.clone(), scan_state.clone()
    for place, kept in after_conv:
        conv_state[place] = kept
    for place, h in after_scan:
        scan_state[place] = h

    def of_step(sequences: list[torch.Tensor]) -> torch.Tensor:
        # Slices of a wider projection, as in the model.
        flat = step.of_step(sequences, 0.0)
        return torch.cat((flat, flat), 1)[:, : flat.shape[1]].to(device)

    state_inputs = StateInputs(step.tables, step.slots, page_size, num_places, step.rows, step.shape)
    rest = [None if value is None else value.to(device) for value in (weight, bias, a_log, d, dt_bias)]
    projected = of_step(xs), of_step(dts), rest[2], of_step(bs), of_step(cs), rest[3], rest[4]
    unpadded = replace(step, num_padding=0)
    return StateCase(
        step,
        state_inputs,
        (of_step(inputs), rest[0], rest[1], before_conv.to(device)),
        (*projected, limit, before_scan.to(device)),
        unpadded.of_step(convolved),
        unpadded.of_step(scanned),
        conv_state,
        scan_state,
    )
