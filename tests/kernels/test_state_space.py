"""Mamba-2's convolution and scan in plain PyTorch against the recurrence over whole sequences and transformers."""

import pytest
import torch
from mixer_cases import Lengths, state_case
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from octavo.kernels import DeviceRows, StepShape, state_space
from octavo.kernels.state_space import StateInputs, causal_conv, gated_rms_norm, state_space_scan

STEPS: list[Lengths] = [
    [(1, 1)],
    [(1, 9), (1, 1), (1, 16), (1, 17)],
    [(2, 2), (3, 10), (4, 17), (1, 8)],
    [(40, 40), (23, 30), (7, 8), (1, 3)],
]


@pytest.mark.parametrize("num_padding", [0, 2])
@pytest.mark.parametrize("num_places", [1, 4])
@pytest.mark.parametrize("lengths", STEPS)
def test_a_step_continues_its_sequences(lengths: Lengths, num_places: int, num_padding: int) -> None:
    case = state_case(lengths, num_places=num_places, num_padding=num_padding)
    num_tokens = case.step.num_tokens
    conv = causal_conv.reference(*case.conv, case.inputs)
    torch.testing.assert_close(conv[:num_tokens].double(), case.expected_conv, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(case.conv[-1], case.expected_conv_state, equal_nan=True)
    scan = state_space_scan.reference(*case.scan, case.inputs)
    torch.testing.assert_close(scan[:num_tokens].double(), case.expected_scan, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(case.scan[-1], case.expected_scan_state, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert conv.isfinite().all() and scan.isfinite().all()


@pytest.mark.parametrize("max_chunk", [5, 8, 128])
def test_the_size_of_chunks_does_not_matter(max_chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_space, "_MAX_CHUNK", max_chunk)
    case = state_case([(50, 50), (31, 40)], num_places=3, page_size=16)
    scan = state_space_scan.reference(*case.scan, case.inputs)
    torch.testing.assert_close(scan.double(), case.expected_scan, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(case.scan[-1], case.expected_scan_state, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_states_keep_their_types() -> None:
    case = state_case([(6, 6), (1, 5)], dtype=torch.bfloat16, has_bias=False)
    conv = causal_conv.reference(*case.conv, case.inputs)
    scan = state_space_scan.reference(*case.scan, case.inputs)
    assert conv.dtype is scan.dtype is torch.bfloat16
    torch.testing.assert_close(case.conv[-1], case.expected_conv_state, equal_nan=True)
    torch.testing.assert_close(case.scan[-1], case.expected_scan_state, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_tokens_past_the_longest_sequence_write_nothing() -> None:
    """A step that runs ahead of the host may hold them."""
    case = state_case([(1, 24), (1, 3)], num_padding=1)
    short = case.inputs.block_tables[:, :2]
    before = case.scan[-1].clone()
    state_space_scan.reference(*case.scan, StateInputs(short, *list(vars(case.inputs).values())[1:]))
    is_changed = (case.scan[-1] != before) & ~case.scan[-1].isnan()
    assert is_changed.flatten(1).any(1).nonzero().tolist() == [[case.step.block(1, 2)]]


class PagedMixer:
    """The mixer of a transformers module, computed step by step over paged states of two requests."""

    PAGE, PLACES = 8, 3

    def __init__(self, module: Mamba2Mixer) -> None:
        self.module = module
        self.conv_state = torch.full((9, self.PLACES, module.conv_dim, module.conv_kernel_size - 1), float("nan"))
        shape = (module.num_heads, module.head_dim, module.ssm_state_size)
        self.scan_state = torch.full((9, self.PLACES, *shape), float("nan"))
        self.tables = torch.tensor([[1, 3, 5, 7], [2, 4, 6, 8]], dtype=torch.int32)
        self.num_computed = torch.zeros(2, dtype=torch.int32)

    def step(self, hidden: list[torch.Tensor]) -> list[torch.Tensor]:
        module, lengths = self.module, torch.tensor([len(part) for part in hidden])
        starts = torch.cat((torch.zeros(1), lengths.cumsum(0))).int()
        self.num_computed += lengths.int()
        rows = DeviceRows(torch.tensor([2, 0, int(starts[2]), 0]), starts, self.num_computed)
        shape = StepShape(2, int(starts[2]), int(lengths.max()), True, True, False)
        inputs = StateInputs(self.tables, torch.arange(2), self.PAGE, self.PLACES, rows, shape)
        sizes = module.intermediate_size, module.conv_dim, module.num_heads
        gate, x, dt = module.in_proj(torch.cat(hidden)).split(sizes, -1)
        x = causal_conv.reference(x, module.conv1d.weight[:, 0], module.conv1d.bias, self.conv_state, inputs)
        states = module.n_groups * module.ssm_state_size
        x, b, c = x.split((module.intermediate_size, states, states), -1)
        b, c = (part.unflatten(1, (module.n_groups, -1)) for part in (b, c))
        y = state_space_scan.reference(
            x.unflatten(1, (module.num_heads, -1)), dt, module.A_log, b, c, module.D, module.dt_bias,
            module.time_step_limit, self.scan_state, inputs,
        )  # fmt: skip
        norm = module.norm
        y = gated_rms_norm.reference(y.flatten(1), gate, norm.weight, norm.variance_epsilon, norm.group_size)
        return list(module.out_proj(y).split(lengths.tolist()))


@torch.no_grad()
def test_the_mixer_is_that_of_transformers() -> None:
    torch.manual_seed(0)
    config = Mamba2Config(
        num_heads=8, head_dim=8, hidden_size=32, state_size=16, n_groups=2, conv_kernel=4, num_hidden_layers=1
    )
    module = Mamba2Mixer(config, 0).eval()
    torch.nn.init.normal_(module.norm.weight)
    sequences = [torch.randn(30, 32), torch.randn(21, 32)]
    expected = [module(sequence[None])[0] for sequence in sequences]
    mixer, done = PagedMixer(module), [0, 0]
    for lengths in [(11, 1), (1, 14), (3, 2), (1, 1), (14, 3)]:
        parts = [sequence[start : start + n] for sequence, start, n in zip(sequences, done, lengths, strict=True)]
        for row, output in enumerate(mixer.step(parts)):
            reference = expected[row][done[row] : done[row] + lengths[row]]
            torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
        done = [start + n for start, n in zip(done, lengths, strict=True)]
    assert done == [len(sequence) for sequence in sequences]


@torch.no_grad()
def test_after_rejected_drafts_a_row_continues_from_the_last_accepted_token() -> None:
    torch.manual_seed(0)
    config = Mamba2Config(num_heads=4, head_dim=8, hidden_size=16, state_size=8, n_groups=1, num_hidden_layers=1)
    module = Mamba2Mixer(config, 0).eval()
    sequences = [torch.randn(20, 16), torch.randn(20, 16)]
    expected = [module(sequence[None])[0] for sequence in sequences]
    mixer = PagedMixer(module)
    mixer.step([sequence[:6] for sequence in sequences])
    # Two drafts each; request 0 accepts none, request 1 both.
    mixer.step([torch.cat((sequences[0][6:7], torch.randn(2, 16))), sequences[1][6:9]])
    mixer.num_computed[0] = 7
    for row, output in enumerate(mixer.step([sequences[0][7:10], sequences[1][9:12]])):
        start = (7, 9)[row]
        torch.testing.assert_close(output, expected[row][start : start + 3], rtol=1e-4, atol=1e-4)
