"""Mamba-2's compiled kernels against the plain recurrence and the PyTorch references."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from mixer_cases import Lengths, StateCase, state_case
from native_builds import operations_of, threads

from octavo.kernels import state_space
from octavo.kernels.cpu import native_state_space
from octavo.kernels.state_space import StateInputs
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
NAMES = ("causal_conv", "state_space_scan", "gated_rms_norm")
DECODES: Lengths = [(1, 9), (1, 1), (1, 16), (1, 17)]
MIXED: Lengths = [(2, 2), (1, 8), (40, 40), (23, 30), (7, 8), (4, 17)]


@pytest.fixture
def mixer(native: NativeKernels) -> SimpleNamespace:
    """This build's operations by name."""
    return operations_of(native, native_state_space.register, {name: getattr(state_space, name) for name in NAMES})


def make(lengths: Lengths, **options: object) -> StateCase:
    """A case with the types that the engine has."""
    case = state_case(lengths, **options)
    x, dt, a_log, b, c, d, dt_bias, limit, state = case.scan
    scan = (x, dt, a_log.float(), b, c, d.float(), dt_bias.float(), limit, state)
    return replace(case, scan=scan, inputs=replace(case.inputs, slots=case.inputs.slots.int()))


def check(mixer: SimpleNamespace, case: StateCase) -> None:
    """Results and states after the step, against the plain recurrence; nothing else is written."""
    num_tokens, dtype = case.step.num_tokens, case.conv[0].dtype
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    conv = mixer.causal_conv(*case.conv, case.inputs)
    scan = mixer.state_space_scan(*case.scan, case.inputs)
    assert conv.dtype is scan.dtype is dtype
    torch.testing.assert_close(conv[:num_tokens].double(), case.expected_conv, **tolerance)
    torch.testing.assert_close(case.conv[-1], case.expected_conv_state, equal_nan=True)
    torch.testing.assert_close(scan[:num_tokens].double(), case.expected_scan, **tolerance)
    torch.testing.assert_close(case.scan[-1], case.expected_scan_state, rtol=2e-5, atol=2e-5, equal_nan=True)
    assert not conv[num_tokens:].any() and not scan[num_tokens:].any()


@pytest.mark.parametrize("num_padding", [0, 2])
@pytest.mark.parametrize("num_places", [1, 4])
@pytest.mark.parametrize("lengths", [[(1, 1)], DECODES, MIXED])
def test_a_step_continues_its_sequences(
    mixer: SimpleNamespace, lengths: Lengths, num_places: int, num_padding: int
) -> None:
    for num_threads in (1, 3):
        with threads(mixer.native, num_threads):
            check(mixer, make(lengths, num_places=num_places, num_padding=num_padding))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num_heads", "head_dim", "state_size", "num_groups"),
    [(1, 1, 1, 1), (3, 16, 16, 3), (6, 17, 31, 2), (4, 64, 128, 1)],
)
def test_sizes_of_states(
    mixer: SimpleNamespace, dtype: torch.dtype, num_heads: int, head_dim: int, state_size: int, num_groups: int
) -> None:
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "state_size": state_size, "num_groups": num_groups}
    check(mixer, make([(1, 9), (5, 12)], dtype=dtype, **sizes))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 9])
@pytest.mark.parametrize("channels", [1, 16, 130, 300])
def test_sizes_of_convolutions(
    mixer: SimpleNamespace, dtype: torch.dtype, channels: int, width: int, has_bias: bool
) -> None:
    check(mixer, make([(1, 9), (5, 12), (1, 2)], dtype=dtype, channels=channels, width=width, has_bias=has_bias))


def test_types_that_the_kernels_lack_run_as_the_reference(mixer: SimpleNamespace) -> None:
    case = make(DECODES, dtype=torch.float64)
    expected = state_space.causal_conv.reference(*(None if x is None else x.clone() for x in case.conv), case.inputs)
    assert torch.equal(mixer.causal_conv(*case.conv, case.inputs), expected)
    case = make(DECODES)
    narrow = case.scan[-1].bfloat16()
    expected = state_space.state_space_scan.reference(*case.scan[:-1], narrow.clone(), case.inputs)
    assert torch.equal(mixer.state_space_scan(*case.scan[:-1], narrow, case.inputs), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_token_has_the_same_bits_in_every_step(mixer: SimpleNamespace, dtype: torch.dtype) -> None:
    """In a batch or alone, in one chunk or several, on any number of threads; states, too."""
    together = make(MIXED, dtype=dtype, channels=40, head_dim=16, state_size=24)
    before = together.conv[-1].clone(), together.scan[-1].clone()
    conv = mixer.causal_conv(*together.conv, together.inputs)
    scan = mixer.state_space_scan(*together.scan, together.inputs)
    for num_threads, most in ((1, 1), (2, 5), (4, 16)):
        conv_state, scan_state = before[0].clone(), before[1].clone()
        start = 0
        for row, (query_len, seq_len) in enumerate(MIXED):
            for first in range(0, query_len, most):
                count = min(most, query_len - first)
                own = slice(start + first, start + first + count)
                inputs = alone(together, row, count, seq_len - query_len + first + count)
                x, dt, a_log, b, c, d, dt_bias, limit, _ = together.scan
                with threads(mixer.native, num_threads):
                    part = mixer.causal_conv(together.conv[0][own], *together.conv[1:3], conv_state, inputs)
                    assert torch.equal(part, conv[own])
                    part = mixer.state_space_scan(
                        x[own], dt[own], a_log, b[own], c[own], d, dt_bias, limit, scan_state, inputs
                    )
                    assert torch.equal(part, scan[own])
            start += query_len
        for row, (_, seq_len) in enumerate(MIXED):
            block = together.step.block(row, seq_len - 1)
            assert torch.equal(conv_state[block], together.conv[-1][block])
            assert torch.equal(scan_state[block], together.scan[-1][block])


def alone(case: StateCase, row: int, query_len: int, seq_len: int) -> StateInputs:
    """Inputs of a step of one of the case's rows."""
    rows = replace(
        case.inputs.rows,
        counts=torch.tensor([1, int(query_len == 1), query_len, 0], dtype=torch.int32),
        query_starts=torch.tensor([0, query_len], dtype=torch.int32),
        seq_lens=torch.tensor([seq_len], dtype=torch.int32),
    )
    return replace(case.inputs, rows=rows, slots=case.inputs.slots[row : row + 1])


def test_tokens_past_the_longest_sequence_write_nothing(mixer: SimpleNamespace) -> None:
    """A step that runs ahead of the host may hold them."""
    case = make([(1, 24), (1, 3)], num_padding=1)
    inputs = replace(case.inputs, block_tables=case.inputs.block_tables[:, :2])
    for operation, arguments in ((mixer.causal_conv, case.conv), (mixer.state_space_scan, case.scan)):
        before = arguments[-1].clone()
        operation(*arguments, inputs)
        is_changed = (arguments[-1] != before) & ~arguments[-1].isnan()
        assert is_changed.flatten(1).any(1).nonzero().tolist() == [[case.step.block(1, 2)]]


def test_a_nan_stays_in_its_row(mixer: SimpleNamespace) -> None:
    case = make(DECODES)
    for operation, arguments in ((mixer.causal_conv, case.conv), (mixer.state_space_scan, case.scan)):
        arguments[0][2] = torch.nan
        is_nan = operation(*arguments, case.inputs).isnan().flatten(1)
        assert is_nan[2].all() and is_nan.any(1).tolist() == [False, False, True, False]


def test_a_replay_follows_the_steps_rows(mixer: SimpleNamespace) -> None:
    """Where the rows are is on the tape, not how long they are."""
    case, later = make([(1, 9), (1, 15)], head_dim=16), make([(1, 9), (1, 15)], head_dim=16)
    mixer.native.start_tape([])
    conv = mixer.causal_conv(*case.conv, case.inputs)
    scan = mixer.state_space_scan(*case.scan, case.inputs)
    tape = mixer.native.end_tape()
    mixer.causal_conv(*later.conv, later.inputs)
    mixer.state_space_scan(*later.scan, later.inputs)
    for seed in range(3):  # the second row's page ends on the way
        tensors = (case.conv[0], case.scan[0])
        for tensor, other in zip(tensors, (later.conv[0], later.scan[0]), strict=True):
            values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
            tensor.copy_(values)
            other.copy_(values)
        for inputs in (case.inputs, later.inputs):
            inputs.rows.seq_lens += 1
        mixer.native.replay(tape)
        assert torch.equal(conv, mixer.causal_conv(*later.conv, later.inputs))
        assert torch.equal(scan, mixer.state_space_scan(*later.scan, later.inputs))
        assert torch.equal(case.conv[-1].nan_to_num(), later.conv[-1].nan_to_num())
        assert torch.equal(case.scan[-1].nan_to_num(), later.scan[-1].nan_to_num())


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_groups", "group_size"), [(1, 1), (1, 96), (3, 17), (2, 64)])
def test_gated_norms(
    mixer: SimpleNamespace, dtype: torch.dtype, weight_type: torch.dtype, num_groups: int, group_size: int
) -> None:
    size = num_groups * group_size
    random = torch.Generator().manual_seed(size)
    for num_rows in (0, 1, 8, 21):
        # The gate is a slice of a wider projection, as in the model.
        x = 3 * torch.randn(num_rows, size, generator=random).to(dtype)
        gate = torch.randn(num_rows, 2 * size, generator=random).to(dtype)[:, :size]
        weight = torch.randn(size, generator=random).to(weight_type)
        expected = state_space.gated_rms_norm.reference(x, gate, weight, 1e-5, group_size)
        normed = mixer.gated_rms_norm(x, gate, weight, 1e-5, group_size)
        assert normed.dtype == expected.dtype
        torch.testing.assert_close(normed, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        for num_threads in (1, 3):
            with threads(mixer.native, num_threads):
                assert torch.equal(mixer.gated_rms_norm(x[5:9], gate[5:9], weight, 1e-5, group_size), normed[5:9])
