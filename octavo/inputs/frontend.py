"""The text side of a model: tokenizer, chat template and sampling defaults."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.hub import ModelSource, find_files, find_model, load_generation_config, tokenizer_path
from octavo.inputs.chat import ChatRenderer
from octavo.inputs.processor import InputProcessor
from octavo.inputs.reasoning import ReasoningBinder, check_reasoning_parser
from octavo.records import EngineInfo, SamplingParams
from octavo.tokenization import Tokenizer, load_tokenizer, read_chat_template
from octavo.tokenization.hugging_face import to_hugging_face

if TYPE_CHECKING:  # takes a second to import, and servers do without
    from transformers import PreTrainedTokenizerBase


@dataclass(slots=True)
class TextFrontend:
    """The text side of a model. Loads no weights and no torch.

    Attributes:
        tokenizer, chat_renderer: None with ``skip_tokenizer_init``.
        default_params: sampling defaults, with generation_config's names.
        own_template: the chat template that was given instead of the model's; None if none was.
    """

    settings: EngineConfig
    tokenizer: Tokenizer | None
    chat_renderer: ChatRenderer | None
    eos_token_ids: list[int]
    default_params: dict[str, Any]
    own_template: str | None = None
    _callers_tokenizer: "PreTrainedTokenizerBase | None" = None

    @classmethod
    def load(cls, settings: EngineConfig, chat_template: str | None = None) -> "TextFrontend":
        """Read tokenizer and configuration.

        Args:
            chat_template: a template, or a file with one, instead of the model's own.
        """
        model = settings.model
        check_reasoning_parser(model)
        source, config = find_model(settings)
        generation = load_generation_config(source)
        eos = set(config.eos_token_ids)
        tokenizer = None
        if not model.skip_tokenizer_init:
            tokenizer = load_tokenizer(tokenizer_path(settings, source))
            if tokenizer.eos_token_id is not None:
                eos.add(tokenizer.eos_token_id)
        template = None if chat_template is None else read_chat_template(chat_template)
        if template is not None:
            from octavo.tokenization.chat_template import compile_template

            # The model's own template may be broken and never used; one set explicitly must fail now.
            compile_template(template)
        renderer = None if tokenizer is None else ChatRenderer(tokenizer, template)
        return cls(settings, tokenizer, renderer, sorted(eos), _default_params(settings, generation), template)

    def callers_tokenizer(self, max_model_len: int) -> "PreTrainedTokenizerBase":
        """The tokenizer for callers, as transformers has it; made when it is first asked for.

        Raises:
            ConfigError: the model was loaded without one.
        """
        if self.tokenizer is None:
            raise ConfigError("The model was loaded with skip_tokenizer_init; it has no tokenizer.")
        if self._callers_tokenizer is None:
            model = self.settings.model
            self._callers_tokenizer = to_hugging_face(self.tokenizer, model.tokenizer or model.model, max_model_len)
        return self._callers_tokenizer

    def input_processor(self, info: EngineInfo, *, settles_reasoning: bool = True) -> InputProcessor:
        """The processor for an engine that has started.

        Args:
            settles_reasoning: let structured output begin after the model's reasoning, if there is a parser for it.
        """
        model = self.settings.model
        return InputProcessor(
            info,
            self.tokenizer,
            eos_token_ids=self.eos_token_ids,
            default_params=self.default_params,
            max_logprobs=model.max_logprobs,
            seed=model.seed,
            validators=_validators(model.logits_processors or []),
            reasoning=ReasoningBinder.of(model, self.tokenizer) if settles_reasoning else None,
        )


def _validators(specs: Sequence[type | str]) -> list[Callable[[SamplingParams], None]]:
    """What logits processors have to say on a request's parameters."""
    if not specs:
        return []
    # Only here a frontend needs torch, which takes a second to import.
    from octavo.sampling.processors import processor_classes

    classes = processor_classes(specs)
    return [found.validate_params for found in classes if callable(getattr(found, "validate_params", None))]


def _default_params(settings: EngineConfig, generation: dict[str, Any]) -> dict[str, Any]:
    model = settings.model
    if model.generation_config in ("vllm", "octavo"):
        generation = {}
    elif model.generation_config != "auto":
        generation = load_generation_config(
            ModelSource("folder", find_files(model.generation_config), model.generation_config)
        )
    return {**generation, **(model.override_generation_config or {})}
