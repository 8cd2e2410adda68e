"""Words of our own that gave way to the field's do not come back."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

RETIRED = {
    r"\bSight\b": "AttentionContext",
    r"\bTurn\b(?=[.(\]])": "Rotary",
    r"\blayout\.(owner|starts|runs)\b": "sequence_ids, cu_seqlens, buckets",
    r"\bbatch\.places\b": "token_indices",
    r"\bsample\.places\b": "masked_positions",
    r"\bmasters\.(pull|push)\(": "receive_gradients, update_model",
    r"\bkeep_few_shapes\b": "limit_onednn_cache",
    r"\b(un)?bent\b|\bbends\b": "activation, nonlinearity",
    r"\bFillers?\b|\.fillers\b": "Candidate, candidates",
    r"\b(Likeness|Chosen|Ranked|Answered|NextAnswer)\b": "an answer's name ends with Answer",
    r"\b(Verdict|badness)\b": "ErrorRecord, severity",
    r"\bdef (upon|untuned|tuned|verdict)\(self, [ape]": "with_pooling, calibrated, error_record",
    r"\bdef of\(cls, train": "from_examples",
    r"\bTAUGHT\b|\btaught=": "teacher_outputs",
    r"\b(House|Served|Gate|Visitor|Allowance|Asking)\b(?=[(:.])": "ModelRegistry, ServedModel, "
    "AdmissionMiddleware, ApiKeyState, RateLimiter, RequestContext",
    r"\.able\(": "supporting",
    r"\bexclusive[:=]": "single_label",
    r"(?<!\")\bbudget_tokens\b": "max_batch_tokens",
    r"\b(config|model)\.(length|types|pad|order)\b(?!\()": "max_positions, token_types, pad_id, "
    "layer_sharing",
    r"\b(train|settings)\.clip\b": "max_grad_norm",
    r"\bsampling\.(short|across)\b|\bmasking\.(rate|cycle)\b": "short_seq_probability, "
    "cross_documents, mlm_probability, dupe_factor",
    r"\bfound(: [\w\[\], .|]+)? [+|]?= |\bin found\b|return found\b": "what the variable holds",
}
"""What must not be found, and what is said in its place."""


def pages() -> list[Path]:
    return sorted(
        [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    )


def retired(text: str) -> list[str]:
    return [
        f"{found[0]!r}: say {word}"
        for old, word in RETIRED.items()
        if (found := re.search(old, text))
    ]


def test_retired_words_stay_retired() -> None:
    found = {str(page): retired(page.read_text(encoding="utf-8")) for page in pages()}
    assert len(found) > 100
    assert not {page: words for page, words in found.items() if words}


def test_a_retired_word_is_found() -> None:
    assert retired("what the bent states are") == ["'bent': say activation, nonlinearity"]
    assert retired("batch.layout.owner") == [
        "'layout.owner': say sequence_ids, cu_seqlens, buckets"
    ]
    assert retired("        found: list[Path] = []") == [
        "'found: list[Path] = ': say what the variable holds"
    ]
    assert not retired("sequence_ids of the layout, found by a search")
