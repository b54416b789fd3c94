"""The sampler's arithmetic once more, one row at a time in plain Python and float64."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.records import SamplingParams

Row = NDArray[np.float64]


def edited(
    logits: Row,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
) -> Row:
    """Logits after masks, bias and penalties."""
    x = logits.copy()
    if params.allowed_token_ids is not None:
        x[[i for i in range(len(x)) if i not in params.allowed_token_ids]] = -np.inf
    for token, value in (params.logit_bias or {}).items():
        x[token] += value
    for word in bad_words:
        prefix = list(word[:-1])
        if len(prefix) <= len(output) and list(output[len(output) - len(prefix) :]) == prefix:
            x[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        x[list(stop)] = -np.inf
    for token in {*prompt, *output}:
        penalty = params.repetition_penalty
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token in set(output):
        x[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    return x


def probabilities(logits: Row, params: SamplingParams) -> Row:
    """What a random row draws from; ties with the last token kept are kept."""
    p = np.exp((logits - logits.max()) / params.temperature)
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    if 0 < params.top_k < len(p):
        p[p < np.sort(p)[-params.top_k]] = 0
    if params.top_p < 1:
        descending = np.sort(p)[::-1]
        last = int(np.searchsorted(descending.cumsum(), params.top_p * p.sum()))
        p[p < descending[min(last, len(p) - 1)]] = 0
    return p / p.sum()
