"""Sampling without the host: every row's parameters are read on the device."""

from torch import Tensor

from octavo.kernels.triton.sampling import SamplingWorkspace, sample
from octavo.sampling.parameters import SlotParameters


class DeviceSampler:
    """Draws for requests whose parameters say all there is to know; see :meth:`Sampler.is_plain`.

    Args:
        parameters: by slot.
        tokens: ``[max rows]`` int64, where drawn tokens go; ``NAN_TOKEN`` as in :class:`Samples`.
    """

    def __init__(self, parameters: SlotParameters, tokens: Tensor) -> None:
        self._parameters = parameters
        self._tokens = tokens
        self._workspace: SamplingWorkspace | None = None

    def sample(self, logits: Tensor, slots: Tensor, counts: Tensor, lengths: Tensor) -> None:
        """Draw one token per row.

        Args:
            logits: ``[R, V]``.
            slots: ``[≥ R]`` integers.
            counts: the step's real rows first, on the device.
            lengths: ``[≥ R]``, tokens of each request known before this one.
        """
        p = self._parameters
        if self._workspace is None:
            self._workspace = SamplingWorkspace(len(self._tokens), logits.shape[1], logits.device)
        sample(
            logits,
            slots,
            counts,
            lengths,
            p.temperature,
            p.top_p,
            p.min_p,
            p.top_k,
            p.stream_key,
            p.prompt_len,
            self._tokens,
            self._workspace,
            num_rows=len(logits),
        )
