"""Kernel cases: everything in a step other than GEMMs and attention."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from octavo import kernels
from octavo.bench.kernels_case import KernelCase, Run, Setting, Work
from octavo.kernels import DeviceState, InputTensors, step_kernels
from octavo.records import NewRow, SamplingParams, as_token_ids
from octavo.sampling.parameters import SlotParameters
from octavo.sampling.sampler import Sampler

_EPS = 1e-6
_BLOCK_SIZE = 16


def _norm(setting: Setting) -> Work:
    size = setting.config.hidden_size
    x, residual = (setting.random(setting.num_tokens, size) for _ in range(2))
    weight = torch.ones(size, dtype=setting.dtype, device=setting.device)

    def library(copy: int) -> torch.Tensor:
        return F.rms_norm(residual.add_(x), (size,), weight, _EPS)

    return Work(
        run=lambda copy: kernels.add_rms_norm(x, residual, weight, _EPS),
        libraries={"add, F.rms_norm": library},
        num_bytes=4 * x.nbytes,
    )


def _activation(setting: Setting) -> Work:
    x = setting.random(setting.num_tokens, 2 * setting.config.intermediate_size)

    def library(copy: int) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    return Work(run=lambda copy: kernels.silu_and_mul(x), libraries={"F.silu, mul": library}, num_bytes=1.5 * x.nbytes)


def _sampling(params: SamplingParams) -> Callable[[Setting], Work]:
    """Sample one token per row from fresh logits."""

    def make(setting: Setting) -> Work:
        num_rows, vocab_size = setting.num_rows, setting.config.vocab_size
        num_bytes = num_rows * vocab_size * setting.dtype.itemsize
        logits = [setting.random(num_rows, vocab_size).mul_(2) for _ in range(setting.copies(num_bytes))]
        rows = [NewRow(slot, as_token_ids([0] * 4), 4, params, slot, [], []) for slot in range(num_rows)]
        run = _sample_on_gpu if setting.platform.runs_ahead else _sample_on_cpu
        return Work(
            run=run(setting, rows, logits),
            libraries=_torch_sampling(logits, params),
            num_bytes=num_bytes,
            num_copies=len(logits),
        )

    return make


def _sample_on_gpu(setting: Setting, rows: list[NewRow], logits: list[torch.Tensor]) -> Run:
    from octavo.sampling.device_sampler import DeviceSampler

    parameters = SlotParameters(len(rows), setting.device)
    for row in rows:
        parameters.write(row)
    parameters.flush()
    sampler = DeviceSampler(parameters, len(rows), setting.config.vocab_size)
    tokens = setting.indices([0] * len(rows), torch.int64)
    slots = setting.indices([row.slot for row in rows])
    counts, lengths = setting.indices([len(rows)] * 4), setting.indices([5] * len(rows))
    return lambda copy: sampler.sample(logits[copy], slots, counts, lengths, tokens)


def _sample_on_cpu(setting: Setting, rows: list[NewRow], logits: list[torch.Tensor]) -> Run:
    sampler = Sampler(len(rows), setting.config.vocab_size, setting.device)
    for row in rows:
        sampler.add_row(row)
    slot_list = [row.slot for row in rows]
    slots = setting.indices(slot_list, torch.int64)
    lengths = torch.full_like(slots, 5)
    # No token is read.
    return lambda copy: sampler.sample(logits[copy], slots, lengths, lambda slots, positions: positions, slot_list)


def _torch_sampling(logits: list[torch.Tensor], params: SamplingParams) -> dict[str, Run]:
    if params.is_greedy:
        return {"argmax": lambda copy: logits[copy].argmax(-1)}

    def draw(copy: int) -> torch.Tensor:
        weights = (logits[copy].float() / params.temperature).softmax(-1)
        if params.top_p < 1:
            ordered, order = weights.sort(-1, descending=True)
            ordered.masked_fill_(ordered.cumsum(-1) - ordered > params.top_p, 0)
            weights = torch.zeros_like(weights).scatter_(-1, order, ordered)
        # Exponential race: a multinomial draw that can be captured in a graph.
        return weights.div_(torch.empty_like(weights).exponential_()).argmax(-1)

    return {"sort, softmax, draw" if params.top_p < 1 else "softmax, draw": draw}


def _inputs(setting: Setting) -> Work:
    """From batch state to model inputs, and from sampled tokens back to batch state."""
    num_rows, num_tokens, context = setting.num_rows, setting.num_tokens, setting.context
    num_scheduled = num_tokens // num_rows
    blocks_each = -(-context // _BLOCK_SIZE)
    is_decode = setting.phase == "decode"

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=setting.device)

    state = DeviceState(
        header=setting.indices([num_rows, num_rows if is_decode else 0, num_tokens, 0]),
        row_slots=setting.indices(list(range(num_rows))),
        row_num_scheduled=setting.indices([num_scheduled] * num_rows),
        row_num_drawn=setting.indices([1] * num_rows),
        num_computed=setting.indices([context - num_scheduled] * num_rows),
        recent_tokens=zeros(num_rows, 256),
        step_tokens=zeros(num_tokens) - (1 if is_decode else 0),
        block_tables=zeros(1, num_rows, blocks_each),
        block_sizes=setting.indices([_BLOCK_SIZE]),
        num_drafts=zeros(num_rows),
        max_len=context + 1,
    )
    inputs = InputTensors(
        token_ids=zeros(num_tokens, dtype=torch.int64),
        positions=zeros(num_tokens, dtype=torch.int64),
        slot_mapping=zeros(1, num_tokens, dtype=torch.int64),
        query_starts=zeros(num_rows + 1),
        seq_lens=zeros(num_rows),
        last_tokens=zeros(num_rows, dtype=torch.int64),
    )
    drawn, new_tokens = zeros(num_rows, dtype=torch.int64), zeros(num_rows)
    # Runs must not change the state that they read, so they advance a copy.
    advanced = replace(state, num_computed=state.num_computed.clone())
    own = step_kernels(setting.device)

    def run(copy: int) -> None:
        own.prepare_inputs(state, inputs, num_rows=num_rows, num_tokens=num_tokens)
        own.append_tokens(advanced, drawn, new_tokens, num_rows=num_rows)

    return Work(run=run, num_bytes=num_tokens * 28 + num_rows * 44)


CASES = (
    KernelCase("add and norm", _norm, per_layer=2, per_step=1),
    KernelCase("activation alone", _activation, phases=("prefill",)),
    KernelCase("greedy sampling", _sampling(SamplingParams(temperature=0.0)), per_step=1),
    KernelCase("sampling at a temperature", _sampling(SamplingParams(temperature=0.8))),
    KernelCase("sampling with top-k and top-p", _sampling(SamplingParams(temperature=0.8, top_k=50, top_p=0.9))),
    KernelCase("inputs and new tokens", _inputs, per_step=1, kernel_set="cuda"),
)
