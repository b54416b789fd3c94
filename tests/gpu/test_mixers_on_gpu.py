"""Latent attention and recurrent layers on a GPU, at models' sizes and in graphs, against their twins."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
from mixer_cases import Lengths, StepCase, indexer_case, latent_case

from octavo.kernels import (
    StateInputs,
    StepShape,
    bind_kernels,
    causal_conv,
    choose_tokens,
    gated_rms_norm,
    head_linear,
    latent_attention,
    latent_inputs,
    state_space_scan,
    store_latent,
)
from octavo.platforms import CudaPlatform

CUDA = torch.device("cuda")
CLOSE = {"rtol": 2e-2, "atol": 2e-2}


@pytest.fixture(autouse=True)
def kernels() -> None:
    bind_kernels(CudaPlatform())


@pytest.mark.parametrize("num_heads", [16, 128])
@pytest.mark.parametrize(
    "lengths", [[(1, 700)], [(1, 2000), (1, 3), (1, 64)], [(1, 100), (4, 900), (200, 200), (77, 300)], [(1, 40)] * 300]
)
def test_latent_attention_at_a_models_size(lengths: Lengths, num_heads: int) -> None:
    case = latent_case(
        lengths, num_heads=num_heads, rank=512, rope_dim=64, block_size=16, dtype=torch.bfloat16, device=CUDA
    )
    store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    output = latent_attention(case.q, case.cache, case.inputs, case.spec)
    torch.testing.assert_close(output.double().cpu(), case.expected, **CLOSE)


@pytest.mark.parametrize("num_heads", [16, 128])
@pytest.mark.parametrize("lengths", [[(1, 3000)], [(1, 5000), (1, 3), (1, 64)], [(1, 100), (4, 2900), (77, 300)]])
def test_chosen_tokens_and_sinks_at_a_models_size(lengths: Lengths, num_heads: int) -> None:
    case = latent_case(
        lengths,
        num_heads=num_heads,
        rank=512,
        rope_dim=64,
        block_size=16,
        has_sinks=True,
        num_chosen=2048,
        dtype=torch.bfloat16,
        device=CUDA,
    )
    store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    output = latent_attention(case.q, case.cache, case.inputs, case.spec, **case.options)
    torch.testing.assert_close(output.double().cpu(), case.expected, **CLOSE)


@pytest.mark.parametrize("num_heads", [16, 128])
@pytest.mark.parametrize("num_tokens", [1, 33, 200])
def test_what_stands_around_latent_attention_at_a_models_size(num_tokens: int, num_heads: int) -> None:
    """Queries, stored vectors and values, against the same in float32 on the CPU."""
    rank, rope_dim, dim = 512, 64, 128
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).bfloat16().float()

    projected = draw(num_tokens, num_heads * (dim + rope_dim) + rank + rope_dim)
    norm, weight = draw(rank), draw(num_heads, 2 * dim, rank) * dim**-0.5
    angles = draw(num_tokens, 1, rope_dim // 2)
    rope = (torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1))
    attended, slots = draw(num_tokens, num_heads, rank), torch.randperm(num_tokens, generator=random)
    results = []
    for device, dtype in ((torch.device("cpu"), torch.float32), (CUDA, torch.bfloat16)):

        def here(x: torch.Tensor, device: torch.device = device, dtype: torch.dtype = dtype) -> torch.Tensor:
            return x.to(device, dtype)

        queries, latent = here(projected).tensor_split((-rank - rope_dim,), 1)
        keys, values = here(weight).split(dim, 1)
        cache = torch.zeros(num_tokens // 16 + 1, 16, rank + rope_dim, dtype=dtype, device=device)
        absorbed = latent_inputs(
            queries.unflatten(1, (num_heads, -1)), latent, head_linear(keys.transpose(1, 2)), here(norm), 1e-6,
            (here(rope[0]), here(rope[1])), cache, slots.to(device), is_interleaved=True,
        )  # fmt: skip
        found = head_linear(values)(here(attended), absorbed.new_empty(num_tokens, num_heads, dim))
        results.append([x.float().cpu() for x in (absorbed, cache, found)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=6e-2)


@pytest.mark.parametrize("num_heads", [16, 64])
@pytest.mark.parametrize("lengths", [[(1, 30000)], [(1, 5000), (1, 3), (1, 2048)], [(1, 100), (4, 2900), (77, 2060)]])
def test_an_indexer_at_a_models_size(lengths: Lengths, num_heads: int) -> None:
    """Scores are whole numbers that bfloat16's products hold exactly, and many are equal."""
    case = indexer_case(
        lengths, 2048, num_heads=num_heads, head_dim=128, block_size=64, dtype=torch.bfloat16, device=CUDA
    )
    chosen = choose_tokens(case.q, case.weights, case.cache, case.inputs, 2048)
    assert [[place for place in places if place >= 0] for places in chosen.tolist()] == case.expected


def test_latent_attention_in_a_graph() -> None:
    """One graph serves steps of fewer rows and other lengths."""
    case = latent_case([(1, 900)] * 4, num_heads=16, rank=512, rope_dim=64, block_size=16, device=CUDA)
    store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    rows = case.inputs.rows
    output = _captured(lambda: latent_attention(case.q, case.cache, case.inputs, case.spec))
    for seq_lens in ([900, 900, 900, 900], [1, 500, 20, 0], [64, 65, 0, 0]):
        num_rows = sum(seq_len > 0 for seq_len in seq_lens)
        rows.seq_lens.copy_(torch.tensor(seq_lens))
        rows.counts.copy_(torch.tensor([num_rows, num_rows, num_rows, 0]))
        rows.query_starts.copy_(torch.arange(5).clamp(max=num_rows))
        expected = latent_attention.reference(case.q, case.cache, replace(case.inputs), case.spec)
        torch.testing.assert_close(output()[:num_rows], expected[:num_rows], rtol=1e-4, atol=1e-4)


class _Mixer:
    """A layer of Mamba-2's sizes with states of its own."""

    HEADS, DIM, SIZE, GROUPS, PAGE = 16, 64, 128, 2, 64

    def __init__(self, num_places: int, num_blocks: int) -> None:
        random = torch.Generator(CUDA).manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, device=CUDA).bfloat16()

        self.channels = self.HEADS * self.DIM + 2 * self.GROUPS * self.SIZE
        self.weight, self.bias, self.norm = draw(self.channels, 4), draw(self.channels), draw(self.HEADS * self.DIM)
        self.a_log, self.d, self.dt_bias = draw(self.HEADS), draw(self.HEADS), draw(self.HEADS)
        nan = float("nan")
        self.conv_state = torch.full((num_blocks, num_places, self.channels, 3), nan, device=CUDA).bfloat16()
        self.scan_state = torch.full((num_blocks, num_places, self.HEADS, self.DIM, self.SIZE), nan, device=CUDA)

    def run(self, x: torch.Tensor, dt: torch.Tensor, inputs: StateInputs, *, is_reference: bool) -> torch.Tensor:
        ops = causal_conv, state_space_scan, gated_rms_norm
        conv, scan, norm = (op.reference for op in ops) if is_reference else ops
        mixed = conv(x, self.weight, self.bias, self.conv_state, inputs)
        inner, b, c = mixed.split((self.HEADS * self.DIM, *[self.GROUPS * self.SIZE] * 2), 1)
        b, c = (part.unflatten(1, (self.GROUPS, -1)) for part in (b, c))
        y = scan(
            inner.unflatten(1, (self.HEADS, -1)), dt, self.a_log, b, c, self.d, self.dt_bias,
            (0.0, float("inf")), self.scan_state, inputs,
        ).flatten(1)  # fmt: skip
        return norm(y, inner, self.norm, 1e-5, self.HEADS * self.DIM // self.GROUPS)


@pytest.mark.parametrize("num_places", [1, 4])
def test_a_recurrent_layer_step_by_step(num_places: int) -> None:
    """Launches follow each other without gaps, as in a model; each step continues from the states of the last."""
    final = StepCase.make([(1, 400), (1, 350), (1, 90)], _Mixer.PAGE, 0, CUDA)
    ours, theirs = (_Mixer(num_places, final.num_blocks) for _ in range(2))
    random = torch.Generator(CUDA).manual_seed(1)
    done = [0, 0, 0]
    for step, query_lens in enumerate(
        [(200, 65, 1), (1, 1, 1), (130, 4, 3), *[(1, 1, 1)] * 20, (2, 4, 3), (1, 64, 30)]
    ):
        done = [count + query_len for count, query_len in zip(done, query_lens, strict=True)]
        case = StepCase.make(list(zip(query_lens, done, strict=True)), _Mixer.PAGE, 1, CUDA)
        inputs = StateInputs(final.tables, final.slots, _Mixer.PAGE, num_places, case.rows, case.shape)
        # The padding row's slot is any.
        inputs.slots = torch.cat((inputs.slots, inputs.slots[:1]))
        x = torch.randn(case.shape.num_tokens, ours.channels, generator=random, device=CUDA).bfloat16()
        dt = torch.randn(len(x), ours.HEADS, generator=random, device=CUDA).bfloat16()
        y = ours.run(x, dt, inputs, is_reference=False)
        expected = theirs.run(x, dt, inputs, is_reference=True)
        torch.testing.assert_close(y[: sum(query_lens)], expected[: sum(query_lens)], rtol=5e-2, atol=5e-2)
        assert torch.equal(ours.conv_state.isnan(), theirs.conv_state.isnan()), step
        assert torch.equal(ours.scan_state.isnan(), theirs.scan_state.isnan()), step
    torch.testing.assert_close(ours.conv_state, theirs.conv_state, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("max_query_len", [1, 3])
def test_a_recurrent_layer_in_a_graph(max_query_len: int) -> None:
    case = StepCase.make([(max_query_len, 100)] * 4, _Mixer.PAGE, 0, CUDA)
    shape = StepShape(4, 4 * max_query_len, max_query_len, max_query_len == 1, max_query_len > 1, False)
    inputs = StateInputs(case.tables, case.slots, _Mixer.PAGE, max_query_len, case.rows, shape)
    ours, theirs = (_Mixer(max_query_len, case.num_blocks) for _ in range(2))
    random = torch.Generator(CUDA).manual_seed(1)
    x = torch.randn(shape.num_tokens, ours.channels, generator=random, device=CUDA).bfloat16()
    dt = torch.randn(len(x), ours.HEADS, generator=random, device=CUDA).bfloat16()
    case.rows.counts.zero_()
    output = _captured(lambda: ours.run(x, dt, inputs, is_reference=False))
    done = torch.zeros(4, dtype=torch.int32)
    for query_lens in ([1, 1, 1, 1], [max_query_len, 1, max_query_len, 0], [1, max_query_len, 0, 0]) * 3:
        num_rows = sum(query_len > 0 for query_len in query_lens)
        done += torch.tensor(query_lens)
        case.rows.counts.copy_(torch.tensor([num_rows, 0, sum(query_lens), 0]))
        case.rows.query_starts.copy_(torch.tensor([0, *query_lens]).cumsum(0))
        case.rows.seq_lens.copy_(done * (torch.tensor(query_lens) > 0))
        x.normal_(generator=random)
        expected = theirs.run(x, dt, replace(inputs), is_reference=True)[: sum(query_lens)]
        torch.testing.assert_close(output()[: sum(query_lens)], expected, rtol=5e-2, atol=5e-2)
        torch.testing.assert_close(ours.scan_state, theirs.scan_state, rtol=2e-2, atol=2e-2, equal_nan=True)


def _captured(function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The function as a graph, whose calls return the same tensor."""
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = function()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay
