"""Table of the models defined by the run files."""

from __future__ import annotations

from bertkit.recipes.model_sizes import variants
from bertkit.recipes.run_file import CONFIGS


def test_variants_lists_all_run_files_by_family() -> None:
    found = variants()
    assert {v.name for v in found} == {path.stem for path in CONFIGS.glob("*.toml")}
    families = [v.family for v in found]
    assert families == sorted(families, key=families.index)
    sizes = [v.parameters for v in found if v.family == "bert"]
    assert sizes == sorted(sizes)


def test_variants_describe_method_size_and_data() -> None:
    by_name = {v.name: v for v in variants()}
    bert, roberta, albert = (by_name[f"{name}-base"] for name in ("bert", "roberta", "albert"))
    assert bert.method == "masked tokens + next sentence; 15% of tokens, new every epoch"
    assert roberta.method == "masked tokens; 15% of tokens, new every epoch; across documents"
    assert albert.method.startswith("masked tokens + sentence order; 15% of n-grams")
    assert (albert.embedding, albert.weights) == (128, 1)
    assert (bert.embedding, bert.weights) == (768, 12)
    assert bert.data == "1,000,000 × 256 samples of 512 tokens"
    assert by_name["electra-small"].method.startswith("replaced tokens; 15% of tokens")
    distilled = "masked tokens + teacher outputs + teacher hidden states; 15% of tokens"
    assert by_name["distilbert-base"].method.startswith(distilled)
    assert by_name["minilm-6"].method.startswith("teacher relations; 15%")


def test_generative_variants_describe_objective_and_decoder() -> None:
    by_name = {v.name: v for v in variants()}
    methods = {
        "gpt-mini": "next tokens",
        "lstm-lm": "next tokens",
        "transformer-small": "translations",
        "lstm-small": "translations",
        "t5-mini": "span corruption; 15% of tokens",
        "bart-mini": "text infilling; 30% of tokens",
    }
    assert {name: by_name[name].method for name in methods} == methods
    layers = {name: (by_name[name].layers, by_name[name].decoder) for name in methods}
    assert layers["transformer-small"] == (3, 3)
    assert layers["gpt-mini"] == (4, 0)
    # 4 + 4 layers of size 256 and one embedding; decoder layers have two attention blocks.
    assert by_name["bart-mini"].parameters > by_name["gpt-mini"].parameters + 4 * 16 * 256**2
