"""GPT-Neo."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.models.gpt2 import GPT2LMHeadModel


class GPTNeoForCausalLM(GPT2LMHeadModel):
    """GPT-2 with separate projections and layers of local attention (Black et al., 2021)."""

    module_names: ClassVar[Mapping[str, str]] = {
        **GPT2LMHeadModel.module_names,
        "self_attn": "attn.attention",
        "o_proj": "out_proj",
    }
