"""The pipelines `text2text-generation`, `summarization`, and `translation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import fields

from bertkit.errors import CheckpointError
from bertkit.extensions.transformers_pipelines.base import Arguments, TransformersPipeline, cleaned

BEAMS = 4
"""Default of `num_beams`. As in transformers, it overrides the value in the model directory."""

NEW_TOKENS = 256
"""Default of `max_new_tokens`, unless the model directory or the call sets `max_length`."""

NO_MAX_LENGTH = (None, 20)
"""Values of `max_length` that transformers treats as if it was not set."""


class GenerationArguments(Arguments, frozen=True):
    """Arguments of the pipelines in this file. All other arguments are generation settings."""

    task: str = "text2text-generation"
    """Name of the task whose settings in `task_specific_params` of config.json are used."""
    generation: Mapping[str, Any] = {}
    """Generation settings, named as in transformers."""
    truncation: bool = False
    """Whether to truncate texts that exceed the maximum length of the model."""
    max_length: Annotated[int, Meta(ge=2)] | None = None
    """Maximum number of generated tokens plus one. It is ignored if `max_new_tokens` is set."""
    clean_up_tokenization_spaces: bool = False
    """Whether to remove the spaces before punctuation and English contractions."""
    return_tensors: bool = False
    """Must be false, because returning tensors is not supported."""
    return_text: bool | None = None
    """This has no effect, as in transformers."""

    def __post_init__(self) -> None:
        if self.return_tensors:
            raise ValueError("return_tensors = true is not supported; remove this argument")


class SummarizationArguments(GenerationArguments, frozen=True):
    """Arguments of `SummarizationPipeline`."""

    task: str = "summarization"


class TranslationArguments(GenerationArguments, frozen=True):
    """Arguments of `TranslationPipeline`."""

    task: Annotated[str, Meta(pattern=r"^translation(_\w+_to_\w+)?$")] = "translation"
    src_lang: str | None = None
    """This has no effect, as in transformers for the models that bertkit supports."""
    tgt_lang: str | None = None
    """This has no effect, as in transformers for the models that bertkit supports."""


class Text2TextGenerationPipeline(TransformersPipeline):
    """Generate texts from source texts with an encoder-decoder model."""

    accepted: type[GenerationArguments] = GenerationArguments
    runs = "generate"
    result = "generated_text"
    """Key under which a result contains the generated text."""

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        super().__init__(model, given)
        if not model.reads:
            raise CheckpointError(
                f"{model.loaded.folder}: this pipeline requires an encoder-decoder model; use T5, "
                "BART, or Marian"
            )
        self._writer(self.check({}, given))

    @classmethod
    def check(cls, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        names = {field.name for field in fields(cls.accepted)}
        known: dict[str, Any] = {}
        generation: dict[str, Any] = {}
        for name, value in {**given, **arguments}.items():
            (known if name in names else generation)[name] = value
        return super().check({}, {**known, "generation": generation})

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Return the texts generated from a source text, or one list per source text for several.

        Args:
            inputs: A source text, or several source texts.
            arguments: Arguments of the class `accepted`, and generation settings.

        Raises:
            ConfigError: If an argument is unknown or not supported, or has an invalid value.
            DataError: If a source text is invalid or too long.
        """
        results = super().__call__(inputs, **arguments)
        if isinstance(inputs, str) or not all(len(texts) == 1 for texts in results):
            return results
        return [text for texts in results for text in texts]

    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        long = "truncate" if arguments.truncation else "error"
        cleans = arguments.clean_up_tokenization_spaces
        return [
            [{self.result: cleaned(text.text) if cleans else text.text} for text in best]
            for best in self._writer(arguments)(items, long=long)
        ]

    def _writer(self, arguments: Any) -> Any:
        """Return bertkit's pipeline `generate` with the settings of a call."""
        loaded = self.model.loaded
        of_task = _of_task(loaded.settings.get("task_specific_params"), arguments.task)
        settings: dict[str, Any] = {"num_beams": BEAMS, "max_new_tokens": NEW_TOKENS}
        if loaded.generation.settings.get("max_length") not in NO_MAX_LENGTH:
            settings["max_new_tokens"] = None
        settings |= of_task
        prompt = settings.pop("prefix", loaded.settings.get("prefix"))
        if arguments.max_length is not None:
            # `max_length` also counts the first token of the decoder, which is not generated.
            settings |= {"max_length": None, "max_new_tokens": arguments.max_length - 1}
        return self.model.with_settings(settings | arguments.generation, prompt)


class SummarizationPipeline(Text2TextGenerationPipeline):
    """Summarize texts with an encoder-decoder model."""

    accepted = SummarizationArguments
    result = "summary_text"


class TranslationPipeline(Text2TextGenerationPipeline):
    """Translate texts with an encoder-decoder model."""

    accepted = TranslationArguments
    result = "translation_text"


def _of_task(settings: Any, task: str) -> Mapping[str, Any]:
    """Return the settings of a task. For "translation", the first pair of languages is used."""
    if not isinstance(settings, Mapping):
        return {}
    if task == "translation":
        task = next((name for name in settings if name.startswith(task)), task)
    of_task = settings.get(task)
    return of_task if isinstance(of_task, Mapping) else {}
