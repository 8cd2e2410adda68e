"""Examples to click on: texts in which something is to be seen."""

from __future__ import annotations

from collections.abc import Sequence

from bertkit.view.figures import Example


def _look(shows: str, part: str, text: str, pair: str = "") -> Example:
    values = {"text": text, "pair": pair} if pair else {"text": text}
    return Example(values, f"{text} {pair}".strip(), shows, part)


LOOKS = (
    _look(
        "Attention: which words does “it” look at, and which head looks at the word before?",
        "attention",
        "The animal did not cross the street because it was too tired.",
    ),
    _look(
        "Layers: “bank” twice. Where do its two meanings part?",
        "layers",
        "We sat on the bank of the river.",
        "The bank lent us money for a boat.",
    ),
    _look(
        "Pieces: rare words are cut. Which heads look from piece to piece?",
        "embeddings",
        "She poured the unsweetened lemonade into her grandmother’s teacups.",
    ),
    _look(
        "Attention: “the” and “old” three times. Does each find its own noun?",
        "attention",
        "The old man said that the old dog knew the old road.",
    ),
)

MASKED = (
    _look(
        "Masked words: hide “are”. Does it agree with the keys, or with the cabinet?",
        "masked",
        "The keys to the old cabinet are on the table.",
    ),
    _look(
        "Masked words: hide Paris, then Paris and France together.",
        "masked",
        "Paris is the capital of France, and Rome is the capital of Italy.",
    ),
)
"""Those for models that fill masks."""


def looks(models: Sequence[str], fill: Sequence[str]) -> Sequence[Example]:
    """Examples for what these models do with a text, of which some fill masks."""
    able = [model for model in models if model in fill]
    if not able:
        return LOOKS
    if len(able) == len(models):  # whichever is chosen
        return (*LOOKS, *MASKED)
    masked = [one._replace(values={**one.values, "model": able[0]}) for one in MASKED]
    return (*LOOKS, *masked)


def _word(word: str, shows: str, *texts: str) -> Example:
    return Example({"word": word, "texts": "\n".join(texts)}, word, shows)


WORDS = (
    _word(
        "bank",
        "beside a river twice, and twice with money",
        "We sat on the bank of the river.",
        "The bank lent us money.",
        "They fished from the muddy bank.",
        "He paid the cheque in at the bank.",
    ),
    _word(
        "light",
        "a lamp, a color, and no weight",
        "She switched on the light.",
        "The light in the hall was on.",
        "The bag was light to carry.",
        "He wore a light blue shirt.",
    ),
    _word(
        "run",
        "on legs, and of a company",
        "They run along the beach.",
        "We run to the bus.",
        "They run a small company.",
        "Two sisters run the hotel.",
    ),
)
"""Those for one word in several texts."""
