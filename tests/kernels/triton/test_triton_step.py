"""The device's preparation of a step's inputs, and its end, against plain versions."""

from functools import partial

import pytest
import torch
from native_builds import built, load

from octavo.kernels import DeviceState, DraftTensors, DrawTensors, InputTensors, StepKernels
from octavo.kernels.cpu.native_step import NativeStepKernels
from octavo.kernels.triton.step import TritonStepKernels

POISON = -77


KERNELS = {"reference": StepKernels, "triton": TritonStepKernels} | {
    name: partial(lambda name: NativeStepKernels(load(name)), name) for name in built()
}


@pytest.fixture(params=KERNELS.values(), ids=KERNELS)
def kernels(request: pytest.FixtureRequest, device: torch.device) -> StepKernels:
    made: StepKernels = request.param()
    if isinstance(made, NativeStepKernels) and device.type != "cpu":
        pytest.skip("compiled kernels work on CPUs")
    return made


def make_state(
    device: torch.device,
    num_scheduled: list[int],
    *,
    num_slots: int = 400,
    max_len: int = 50,
    num_groups: int = 2,
    block_size: int = 4,
    num_decoding: int | None = None,
) -> DeviceState:
    """Rows of some lengths in slots strewn over the state; what lies past the real rows is nonsense."""
    generator = torch.Generator().manual_seed(len(num_scheduled))

    def integers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=generator).int().to(device)

    if num_decoding is None:
        num_decoding = next((row for row, count in enumerate(num_scheduled) if count > 1), len(num_scheduled))
    row_slots = torch.full((num_slots,), 10**6, dtype=torch.int32)
    row_slots[: len(num_scheduled)] = torch.randperm(num_slots, generator=generator)[: len(num_scheduled)]
    row_num_scheduled = torch.full((num_slots,), 10**6, dtype=torch.int32)
    row_num_scheduled[: len(num_scheduled)] = torch.tensor(num_scheduled, dtype=torch.int32)
    return DeviceState(
        torch.tensor([len(num_scheduled), num_decoding, sum(num_scheduled), 0], dtype=torch.int32, device=device),
        row_slots.to(device),
        row_num_scheduled.to(device),
        torch.ones(num_slots, dtype=torch.int32, device=device),
        integers(max(max_len - max(num_scheduled, default=0), 1), num_slots),
        integers(1000, num_slots, 32),  # fewer than the positions, so that they come round
        sent_tokens(integers(1000, 4000), num_scheduled),
        integers(90, num_groups, num_slots, -(-max_len // block_size)),
        # Groups may differ in their number of tokens per block.
        block_size + torch.arange(num_groups, dtype=torch.int32, device=device),
        torch.zeros(num_slots, dtype=torch.int32, device=device),
        max_len,
    )


def sent_tokens(tokens: torch.Tensor, num_scheduled: list[int]) -> torch.Tensor:
    """The same tokens, but −1 for those of every other row: the state has those."""
    start = 0
    for row, count in enumerate(num_scheduled):
        if row % 2 == 0:
            tokens[start : start + count] = -1
        start += count
    return tokens


def plain_inputs(state: DeviceState, num_rows: int, num_tokens: int) -> dict[str, torch.Tensor]:
    """What :func:`prepare_inputs` must write, on the host."""
    real_rows, _, real_tokens, _ = state.header.tolist()
    slots = state.row_slots[:real_rows].long().cpu()
    num_scheduled = state.row_num_scheduled[:real_rows].long().cpu()
    computed = state.num_computed.cpu()[slots].long()
    ends = num_scheduled.cumsum(0)
    out = {
        "token_ids": torch.zeros(num_tokens, dtype=torch.int64),
        "positions": torch.zeros(num_tokens, dtype=torch.int64),
        "slot_mapping": torch.full((len(state.block_tables), num_tokens), -1),
        "query_starts": torch.full((num_rows + 1,), real_tokens, dtype=torch.int32),
        "seq_lens": torch.zeros(num_rows, dtype=torch.int32),
        "last_tokens": torch.zeros(num_rows, dtype=torch.int64),
    }
    out["query_starts"][:real_rows] = (ends - num_scheduled).int()
    out["seq_lens"][:real_rows] = (computed + num_scheduled).int()
    out["last_tokens"][:real_rows] = ends - 1
    for slot, count, first, end in zip(slots, num_scheduled.tolist(), computed.tolist(), ends.tolist(), strict=True):
        positions = first + torch.arange(count)
        tokens = slice(end - count, end)
        out["positions"][tokens] = positions
        sent = state.step_tokens.cpu()[tokens].long()
        out["token_ids"][tokens] = torch.where(sent < 0, state.recent_tokens.cpu()[slot, positions % 32], sent)
        for group, size in enumerate(state.block_sizes.tolist()):
            blocks = state.block_tables.cpu()[group, slot, positions // size].long()
            out["slot_mapping"][group, tokens] = blocks * size + positions % size
    return out


def run(
    kernels: StepKernels, state: DeviceState, num_rows: int, num_tokens: int, decode_len: int = 1
) -> dict[str, torch.Tensor]:
    """The kernel's outputs, with three poisoned places behind each that must stay."""
    device = state.header.device
    types = {"query_starts": torch.int32, "seq_lens": torch.int32}
    sizes = {"query_starts": num_rows + 1, "seq_lens": num_rows, "last_tokens": num_rows}
    out = {}
    for name in ("token_ids", "positions", "slot_mapping", "query_starts", "seq_lens", "last_tokens"):
        shape = [sizes.get(name, num_tokens) + 3]
        if name == "slot_mapping":
            shape.insert(0, len(state.block_tables))
        out[name] = torch.full(shape, POISON, dtype=types.get(name, torch.int64), device=device)
    inputs = InputTensors(**out)
    kernels.prepare_inputs(state, inputs, num_rows=num_rows, num_tokens=num_tokens, decode_len=decode_len)
    for value in out.values():
        assert (value[..., -3:] == POISON).all()
    return {name: value[..., :-3].cpu() for name, value in out.items()}


def check(kernels: StepKernels, state: DeviceState, num_rows: int, num_tokens: int, decode_len: int = 1) -> None:
    expected = plain_inputs(state, num_rows, num_tokens)
    for name, value in run(kernels, state, num_rows, num_tokens, decode_len).items():
        assert value.dtype == expected[name].dtype
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(("num_real", "num_rows"), [(1, 1), (3, 8), (127, 128), (128, 128), (129, 130), (300, 384)])
def test_a_step_that_decodes(kernels: StepKernels, num_real: int, num_rows: int, device: torch.device) -> None:
    check(kernels, make_state(device, [1] * num_real), num_rows, num_rows)


@pytest.mark.parametrize(
    "num_scheduled", [[5], [1, 1, 7], [1] * 130 + [40, 1, 33], [9] * 40, [1, 2, 3, 4, 5] * 60, [3, 0, 2, 0, 0, 4]]
)
@pytest.mark.parametrize(("spare_rows", "spare_tokens"), [(0, 0), (3, 9), (150, 0), (0, 200)])
def test_a_step_of_chunks(
    kernels: StepKernels, num_scheduled: list[int], spare_rows: int, spare_tokens: int, device: torch.device
) -> None:
    if 0 in num_scheduled:
        # A row without tokens has no last one to check.
        state = make_state(device, num_scheduled)
        result = run(kernels, state, len(num_scheduled) + spare_rows, sum(num_scheduled) + spare_tokens)
        expected = plain_inputs(state, len(num_scheduled) + spare_rows, sum(num_scheduled) + spare_tokens)
        assert all(torch.equal(result[name], expected[name]) for name in expected if name != "last_tokens")
    else:
        check(
            kernels,
            make_state(device, num_scheduled),
            len(num_scheduled) + spare_rows,
            sum(num_scheduled) + spare_tokens,
        )


@pytest.mark.parametrize("num_scheduled", [[4], [4] * 300, [3, 1, 4, 4, 2], [2, 4, 1] * 50 + [9, 40]])
def test_decoding_rows_with_drafts(kernels: StepKernels, num_scheduled: list[int], device: torch.device) -> None:
    num_decoding = sum(count <= 4 for count in num_scheduled)
    state = make_state(device, num_scheduled, num_decoding=num_decoding)
    check(kernels, state, len(num_scheduled) + 5, sum(num_scheduled) + 20, decode_len=4)


def test_rows_of_one_token_need_not_be_called_decoding(kernels: StepKernels, device: torch.device) -> None:
    check(kernels, make_state(device, [1, 1, 1], num_decoding=1), 3, 3)
    check(kernels, make_state(device, [4, 1, 3], num_decoding=0), 8, 8)


def test_a_step_without_rows_is_padding(kernels: StepKernels, device: torch.device) -> None:
    check(kernels, make_state(device, []), 4, 6)


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("block_size", [1, 16])
def test_groups_and_block_sizes(kernels: StepKernels, num_groups: int, block_size: int, device: torch.device) -> None:
    for num_scheduled in ([1, 1], [1, 6]):
        check(kernels, make_state(device, num_scheduled, num_groups=num_groups, block_size=block_size), 4, 10)


def test_a_token_past_the_tables_goes_nowhere(kernels: StepKernels, device: torch.device) -> None:
    state = make_state(device, [1, 1], max_len=17, block_size=4, num_groups=1)
    state.block_tables = state.block_tables[:, :, :4].contiguous()
    state.num_computed[state.row_slots[0]] = 16
    state.num_computed[state.row_slots[1]] = 15
    mapping = run(kernels, state, 2, 2)["slot_mapping"]
    assert (mapping[:, 0] == -1).all()
    assert (mapping[:, 1] >= 0).all()


@pytest.mark.parametrize(("num_real", "num_rows"), [(1, 1), (5, 8), (0, 4), (200, 256)])
def test_append(kernels: StepKernels, num_real: int, num_rows: int, device: torch.device) -> None:
    num_scheduled = [1 + row % 5 for row in range(num_real)]
    state = make_state(device, num_scheduled, max_len=30)
    generator = torch.Generator().manual_seed(1)
    draws = torch.randint(2, (num_rows,), generator=generator).int().to(device)
    state.row_num_drawn = draws
    drawn = torch.randint(-1, 1000, (num_rows,), generator=generator).to(device)
    out_tokens = torch.full((num_rows + 2,), POISON, dtype=torch.int32, device=device)
    expected_computed, expected_tokens = state.num_computed.clone(), state.recent_tokens.clone()
    expected_out = out_tokens.clone()
    for row in range(num_real):
        slot = int(state.row_slots[row])
        expected_computed[slot] += num_scheduled[row]
        expected_out[row] = drawn[row] if draws[row] else 0
        if draws[row]:
            expected_tokens[slot, expected_computed[slot] % 32] = max(int(drawn[row]), 0)
    kernels.append_tokens(state, drawn, out_tokens, num_rows=num_rows)
    assert torch.equal(state.num_computed, expected_computed)
    assert torch.equal(state.recent_tokens, expected_tokens)
    assert torch.equal(out_tokens, expected_out)


def draft_tensors(num_rows: int, width: int, device: torch.device) -> DraftTensors:
    packed = torch.full((num_rows, 2 * width + 1), POISON, dtype=torch.int32, device=device)
    return DraftTensors(packed[:, :width], packed[:, width], packed[:, width + 1 : -1], packed[:, -1])


def drafting_state(device: torch.device, width: int, num_real: int = 150) -> DeviceState:
    """Rows in the middle of prompts, at their ends, and with drafts, of few different tokens."""
    generator = torch.Generator().manual_seed(width)
    num_drawn = torch.randint(0, width + 1, (num_real,), generator=generator)
    num_scheduled = torch.where(num_drawn > 1, num_drawn, torch.randint(1, 6, (num_real,), generator=generator))
    state = make_state(device, num_scheduled.tolist(), max_len=60, num_decoding=0)
    state.row_num_drawn[:num_real] = num_drawn.int().to(device)
    state.recent_tokens = torch.randint(3, state.recent_tokens.shape, generator=generator).int().to(device)
    state.num_drafts = torch.randint(width, state.num_drafts.shape, generator=generator).int().to(device)
    return state


@pytest.mark.parametrize(("width", "num_rows"), [(2, 150), (4, 160), (6, 200)])
def test_places_of_draws(width: int, num_rows: int, device: torch.device) -> None:
    state = drafting_state(device, width)
    num_real = int(state.header[0])
    found = []
    for kernels in (StepKernels(), TritonStepKernels()):
        num_tokens = int(state.header[2])
        sizes = {"query_starts": num_rows + 1, "seq_lens": num_rows, "last_tokens": num_rows}
        kinds = {"query_starts": torch.int32, "seq_lens": torch.int32}
        names = ("token_ids", "positions", "slot_mapping", "query_starts", "seq_lens", "last_tokens")
        inputs = InputTensors(
            **{
                name: torch.zeros(
                    *([len(state.block_tables)] if name == "slot_mapping" else []),
                    sizes.get(name, num_tokens),
                    dtype=kinds.get(name, torch.int64),
                    device=device,
                )
                for name in names
            }
        )
        kernels.prepare_inputs(state, inputs, num_rows=num_rows, num_tokens=num_tokens)
        draws = DrawTensors(
            *(
                torch.full((num_rows * width,), POISON, dtype=dtype, device=device)
                for dtype in (torch.int64, torch.int32, torch.int32)
            ),
            torch.zeros(1, dtype=torch.int32, device=device),
        )
        kernels.prepare_draws(state, inputs, draws, num_rows=num_rows)
        found.append(draws)
    reference, triton = found
    for name in ("tokens", "slots", "lengths", "counts"):
        assert torch.equal(getattr(reference, name), getattr(triton, name)), name
    # The last place that draws is behind the row's last token.
    num_drawn = state.row_num_drawn[:num_real].tolist()
    for row, count in enumerate(num_drawn):
        own = reference.tokens[row * width : row * width + width].tolist()
        last = int(inputs.last_tokens[row])
        assert own == [*range(last - count + 1, last + 1), *[0] * (width - count)]


@pytest.mark.parametrize(("width", "num_rows"), [(2, 150), (4, 160)])
def test_drafts_are_accepted_up_to_the_first_that_was_not_drawn(
    width: int, num_rows: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(7)
    drawn = torch.randint(-1, 3, (num_rows * width,), generator=generator).to(device)
    found = []
    for kernels in (StepKernels(), TritonStepKernels()):
        state, drafts = drafting_state(device, width), draft_tensors(num_rows, width, device)
        kernels.append_accepted(state, drawn, drafts, num_rows=num_rows)
        found.append((state.num_computed, state.recent_tokens, drafts.new_tokens, drafts.num_tokens))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert set(found[0][3][:150].tolist()) >= {0, 1, 2}


@pytest.mark.parametrize(("min_length", "max_length"), [(1, 1), (2, 4), (3, 3)])
def test_drafts_of_ngrams(min_length: int, max_length: int, device: torch.device) -> None:
    found = []
    for kernels in (StepKernels(), TritonStepKernels()):
        state, drafts = drafting_state(device, 4), draft_tensors(160, 4, device)
        kernels.propose_ngrams(state, drafts, num_rows=160, min_length=min_length, max_length=max_length)
        found.append((state.recent_tokens, state.num_drafts, drafts.drafts, drafts.num_drafts))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert set(found[0][3][:150].tolist()) >= {0, 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 4, 1, 2], [4, 1, 2]),  # the latest of equally long matches
        ([1, 2, 3, 7, 2, 3, 5, 1, 2, 3], [7, 2, 3]),  # the longest
        ([4, 4, 4], [4]),  # a place that overlaps the end
        ([1, 2, 3], []),
        ([1], []),
    ],
)
def test_what_is_drafted(kernels: StepKernels, text: list[int], expected: list[int], device: torch.device) -> None:
    state = make_state(device, [1], max_len=40, num_slots=3)
    slot = int(state.row_slots[0])
    state.recent_tokens[slot, : len(text)] = torch.tensor(text, dtype=torch.int32, device=device)
    state.num_computed[slot] = len(text) - 1
    drafts = draft_tensors(1, 4, device)
    kernels.propose_ngrams(state, drafts, num_rows=1, min_length=1, max_length=3)
    count = int(drafts.num_drafts[0])
    assert drafts.drafts[0, :count].tolist() == expected
    assert state.recent_tokens[slot, len(text) : len(text) + count].tolist() == expected
    assert int(state.num_drafts[slot]) == count


def test_drafts_are_looked_for_among_recent_tokens(kernels: StepKernels, device: torch.device) -> None:
    state = make_state(device, [1], max_len=200, num_slots=3)
    slot = int(state.row_slots[0])
    text = [8, 7, *range(100, 140), 8, 6, *range(200, 220), 8]
    for position, token in enumerate(text):
        state.recent_tokens[slot, position % 32] = token
    state.num_computed[slot] = len(text) - 1
    drafts = draft_tensors(1, 4, device)
    kernels.propose_ngrams(state, drafts, num_rows=1, min_length=1, max_length=3)
    assert drafts.drafts[0, : int(drafts.num_drafts[0])].tolist() == [6, 200, 201]
    state.recent_tokens[slot, 42 % 32] = 9  # the first 8 has long been overwritten
    kernels.propose_ngrams(state, drafts, num_rows=1, min_length=1, max_length=3)
    assert int(drafts.num_drafts[0]) == 0
