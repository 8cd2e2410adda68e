"""Model card of a pretrained model: its data, held-out scores, usage and settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertkit.config import plain
from bertkit.recipes.metadata import hub_id, model_name
from bertkit.recipes.model_card import FILE, score_table, settings_lines
from bertkit.recipes.pretrain_config import PretrainConfig
from bertkit.storage import write_text

CODE = {
    "translation": ('bertkit.pipeline("generate", "{}")', '"A text."'),
    "text-generation": ('bertkit.pipeline("generate", "{}")', '"A text"'),
    "fill-mask": ('bertkit.pipeline("fill-mask", "{}")', '"A {} text."'),
    "feature-extraction": ('bertkit.pipeline("token-embeddings", "{}")', '"A text."'),
}
"""Code that loads a model, and its example input, by the name of the model's task on the hub."""


def write_pretraining_card(
    folder: Path,
    config: PretrainConfig,
    *,
    base: str | None,
    corpus: str,
    tokens: int,
    mask: str,
    scores: Mapping[str, float],
) -> None:
    """Write the model card of a pretrained model.

    Args:
        folder: Model directory.
        config: Settings of the run.
        base: Model that the run started from, or None if the weights were newly initialized.
        corpus: Path or URL of the corpus. The card contains only its name.
        tokens: Number of tokens of the corpus.
        mask: Mask token, or an empty string if the model has no MLM head.
        scores: Scores on held-out text at the end of the run.
    """
    from huggingface_hub import ModelCardData

    load, example = CODE[config.hub_task]
    data = ModelCardData(
        model_name=folder.name,
        library_name="transformers",
        pipeline_tag=config.hub_task,
        base_model=hub_id(base) if base else None,
        tags=["bertkit"],
    )
    start = f"starting from `{model_name(base)}`" if base else "from new weights"
    train, sampling = config.train, config.sampling
    settings = plain(config)
    if config.teacher is not None:
        settings["teacher"]["model"] = model_name(config.teacher.model)
    lines = [
        *("---", *data.to_yaml().strip().splitlines(), "---", "", f"# {folder.name}", ""),
        f"A model of the family `{config.family}`, pretrained with bertkit {start}.",
        *("", "## Data", ""),
        f"- corpus: {model_name(corpus)}, {tokens:,} tokens",
        f"- {train.steps:,} steps of {train.batch_size} samples of up to {sampling.length} tokens",
        *(
            "",
            "## Held-out scores",
            "",
            *(score_table(scores) if scores else ["No text was held out."]),
            "",
            "## Use",
            "",
        ),
        *("```python", "import bertkit", "", f"model = {load.format(folder.name)}"),
        *(f"print(model([{example.format(mask)}]))", "```"),
        *("", "## Settings", "", *settings_lines(settings)),
    ]
    write_text(folder / FILE, "\n".join(lines) + "\n")
