"""A causal language model of the transformers library, put together from its modules and Octavo's layers."""

from typing import Any

import torch
from torch import nn

from octavo.hub.families.generic import not_served
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.embedding import Embedding, Head
from octavo.layers.weights import collect_slots
from octavo.models.base import CausalLM
from octavo.models.generic.attention import ATTENTION, AttentionCalls
from octavo.models.generic.division import division_of
from octavo.models.generic.library import empty_model
from octavo.models.generic.library_head import LibraryHead
from octavo.models.generic.memory import allocate
from octavo.models.generic.names import CheckpointConversion
from octavo.models.generic.replace import TokenEmbedding, make_embedding, replace_layers, replace_module
from octavo.models.generic.rotary import fix_frequencies
from octavo.models.generic.rotary_tables import tabulate
from octavo.models.generic.trace import trace
from octavo.models.loading.checkpoint import Checkpoint


class GenericForCausalLM(CausalLM):
    """The library's layers under ``model``, Octavo's head under ``lm_head``.

    What the library does between the last layer and the logits (scales, caps) runs as its own code, too.

    Attributes:
        conversion: how checkpoints' names and tensors become the library's.

    Raises:
        UnsupportedModelError: the model does something that Octavo cannot; the message says what.
        ConfigError: it cannot be divided over so many devices.
    """

    _embedding: TokenEmbedding

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        super().__init__()
        traced = trace(config, max_positions)
        whole = empty_model(config, ATTENTION, "cpu")
        base, embeddings, head = whole.base_model, whole.get_input_embeddings(), whole.get_output_embeddings()
        _check_parts(config, whole, base, head)
        division = division_of(whole.config, config.architecture, traced, build.tensor_parallel)
        names = {module: name for name, module in whole.named_modules()}
        stored = build.quantization.embedding_scheme(names[embeddings])
        embedding = make_embedding(embeddings, stored, build.tensor_parallel)
        if embedding is None:
            raise not_served(config.architecture, "its token embedding is of a kind of its own")
        prefix, head_name, embedding_name = names[base], names[head], names[embeddings]
        self.checkpoint_names = {"model.": f"{prefix}.", "lm_head.": f"{head_name}."}  # type: ignore[misc]
        self.conversion = CheckpointConversion(whole)
        fix_frequencies(base, config, max_positions)
        self.calls = AttentionCalls(traced.attention, build.at(prefix), division)
        tabulate(base, max_positions, self.calls)
        replace_module(base, embeddings, embedding)
        replace_layers(base, build.at(prefix), traced, division)
        self.model = allocate(base, whole._keep_in_fp32_modules_strict)
        object.__setattr__(self, "_embedding", embedding)  # not a submodule: it is one of the model
        tied = embedding if head.weight is embeddings.weight else None
        self.lm_head = Head(
            head.out_features,
            head.in_features,
            build,
            tied=tied,
            tied_name=embedding_name,
            bias=head.bias is not None,
        )
        self.calls.attach(base)
        self.calls.take_head_norms(base)
        self._library_head = LibraryHead(whole, base, head, self)

    def convert_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """See :class:`octavo.models.loading.load.ReadsConverted`."""
        from octavo.models.loading.converted import ConvertedCheckpoint

        return ConvertedCheckpoint(checkpoint, self.conversion, collect_slots(self))

    @property
    def input_embedding(self) -> Embedding:
        return self._embedding

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepContext) -> torch.Tensor:
        self.calls.begin(positions, step)
        outputs = self.model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        self.calls.end()
        hidden: torch.Tensor = outputs.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        logits = self._library_head(hidden)
        return logits.to(hidden.dtype) if out is None else out.copy_(logits)


def _check_parts(config: ModelConfig, whole: Any, base: Any, head: Any) -> None:
    """Reject models that are not layers, an embedding and a head."""
    if base is whole or type(head) is not nn.Linear:
        raise not_served(config.architecture, "its head is not a linear layer")
    inside = {id(parameter) for module in (base, head) for parameter in module.parameters()}
    outside = [name for name, parameter in whole.named_parameters() if id(parameter) not in inside]
    if outside:
        raise not_served(config.architecture, f"it has weights outside of its layers and head ({outside[0]})")
