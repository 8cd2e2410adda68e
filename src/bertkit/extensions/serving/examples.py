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


def _ask(what: str, shows: str, text: str, other: str = "") -> Example:
    return Example({"what": what, "text": text, "other": other}, text, shows)


_CITIES = "Paris is the capital of France. It has two million inhabitants."

ASKS = {
    "predict": _ask("predict", "a clear opinion", "A wonderful film, and too short."),
    "ner": _ask("ner", "a person, an organization and a place", "Marie Curie worked in Paris."),
    "answer": _ask("answer", "the answer is a span", "How many people live in Paris?", _CITIES),
    "choose": _ask(
        "choose", "one is likely", "She opened the umbrella, because", "it rained.\nit was dinner."
    ),
    "fill-mask": _ask("fill-mask", "a name is missing", "[MASK] is the capital of France."),
    "next-sentence": _ask(
        "next-sentence", "the second follows", "He opened the door.", "The room was empty."
    ),
    "embed": _ask(
        "embed",
        "one of two means the same",
        "How do I reset my password?",
        "I forgot my password.\nThe weather is nice.",
    ),
    "translate": _ask("translate", "a short sentence", "A man reads a book."),
    "write": _ask("write", "the beginning of a story", "Once upon a time"),
    "chat": _ask("chat", "a question", "What is the capital of France?"),
    "rerank": _ask(
        "rerank",
        "one of two answers the query",
        "capital of France",
        "Paris is the capital of France.\nBread is made of flour.",
    ),
    "search": _ask("search", "a query in a few words", "how does it work?"),
}
"""An example of each question that a page puts to models."""

SENTENCES = (
    Example(
        {
            "text": "We sat on the bank of the river and watched the boats.",
            "others": "They fished from the muddy shore.\nThe bank lent us money.",
        },
        "We sat on the bank of the river and watched the boats.",
        "which of two sentences is nearer, word by word",
    ),
)
"""Those for one vector of a sentence."""
