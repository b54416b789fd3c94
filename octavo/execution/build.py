"""Puts a runner together from the parts that the platform and the model ask for."""

from collections.abc import Sequence
from typing import Protocol

from octavo.execution.draws import DraftedDraws, Draws, SingleDraws
from octavo.execution.forward import ForwardPass
from octavo.execution.pooling_tail import PoolingTail
from octavo.execution.results import HeldStep, PendingStep
from octavo.execution.runner import ModelRunner
from octavo.execution.sampling_tail import SamplingTail
from octavo.execution.sizes import DeviceSizes, HostSizes, StepSizes
from octavo.hub.model_config import ModelConfig
from octavo.kernels import CompileOnly, StepKernels, attention_backend, step_kernels
from octavo.kernels.draw import draw_maker
from octavo.models.base import CausalLM
from octavo.models.pooled import PooledModel
from octavo.platforms import Platform
from octavo.records import Plan, Step
from octavo.sampling.processors import LogitsProcessor
from octavo.speculation.drafter import make_drafter


class Runner(Protocol):
    """Runs steps."""

    def execute(self, step: Step) -> PendingStep | HeldStep:
        """Run one step; on asynchronous devices, queue it."""

    def rehearse(self, compile_only: CompileOnly) -> None:
        """Launch all kernels of all kinds of steps, to have them compiled together."""

    def capture(self, *, show_progress: bool = False) -> int:
        """Capture the steps worth capturing, after :meth:`rehearse`; returns their number."""

    def warm_up(self) -> None:
        """Run every other kind of step once, so that no request waits for anything."""


def build_runner(
    model: CausalLM | PooledModel,
    config: ModelConfig,
    plan: Plan,
    platform: Platform,
    processors: Sequence[LogitsProcessor] = (),
    *,
    deterministic: bool,
    enforce_eager: bool = False,
) -> Runner:
    """The runner for a model on a platform, ready for steps but for its warm-up.

    Args:
        deterministic: a row's bits must not depend on the other rows.
        enforce_eager: no step is captured when it first occurs.
    """
    device = platform.device
    if isinstance(model, PooledModel) and config.is_encoder:
        from octavo.execution.encoder_runner import EncoderRunner

        return EncoderRunner(model, plan, device)
    decoder = model.backbone if isinstance(model, PooledModel) else model
    assert isinstance(decoder, CausalLM)
    sizes: StepSizes = HostSizes(plan, device)
    if platform.runs_ahead:
        sizes = DeviceSizes(plan, captures=not isinstance(model, PooledModel))
    backend = attention_backend(device, plan.max_num_seqs, plan.max_model_len, deterministic=deterministic)
    kernels = step_kernels(device)
    forward = ForwardPass(decoder, plan, device, backend, kernels, sizes.max_tokens)
    draws = make_draws(forward, plan, kernels)
    if isinstance(model, PooledModel):
        return ModelRunner(forward, PoolingTail(draws, model.pooler, device), sizes)
    draw_on_device = draw_maker(device)
    if platform.runs_ahead:
        from octavo.sampling.device_sampler import DeviceSampler

        draw_on_device = DeviceSampler
    # Recordings have compiled kernels only; what routers choose is noted by other operations.
    records = platform.records_steps and not enforce_eager and plan.routing is None
    tail = SamplingTail(forward, draws, plan, config.vocab_size, processors, draw_on_device)
    return ModelRunner(forward, tail, sizes, records=records)


def make_draws(forward: ForwardPass, plan: Plan, kernels: StepKernels) -> Draws:
    """One draw per row, or as many as the plan's drafter asks for."""
    if plan.drafter is None:
        return SingleDraws(forward.state, forward.inputs, kernels)
    return DraftedDraws(forward.state, forward.inputs, plan, kernels, make_drafter(plan.drafter, kernels))
