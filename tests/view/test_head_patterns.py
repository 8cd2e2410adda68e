"""Attention patterns of heads that are constructed for each pattern."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bertkit.view.head_patterns import BROAD_ENTROPY, MIN_PATTERN_WEIGHT, begin, patterns
from bertkit.view.page_data import Selection, Token, Word

TEXT = ["[CLS]", "the", "dog", "saw", "the", "cat", ".", "[SEP]"]


def parse(tokens_of_text: list[str]) -> tuple[list[Token], list[Word]]:
    tokens: list[Token] = []
    words: list[Word] = []
    for index, token_text in enumerate(tokens_of_text):
        special = token_text.startswith("[")
        tokens.append(Token(token_text, index, 0, 0, 0, None if special else len(words)))
        if not special:
            words.append(Word(token_text, 0, index, index + 1))
    return tokens, words


def head_attending(where: dict[int, int], *, share: float = 1.0) -> Tensor:
    """Return a head whose tokens attend to `where` with this weight, and equally to the rest."""
    count = len(TEXT)
    weights = torch.full((count, count), (1 - share) / (count - 1))
    for query in range(count):
        weights[query, where.get(query, 0)] = share
    return weights


def kinds(*heads: Tensor, causal: bool = False) -> list[str]:
    (found,) = patterns(torch.stack(heads)[None], *parse(TEXT), causal=causal)
    return [pattern.kind for pattern in found]


PREVIOUS = {index: index - 1 for index in range(1, 8)}
NEXT = {index: index + 1 for index in range(7)}
SAME = {index: index for index in range(8)} | {1: 4, 4: 1}


def test_pattern_needs_more_than_half_of_weight() -> None:
    rests = {0: 7, 1: 7, 2: 7, 3: 6, 4: 0, 5: 0, 6: 0, 7: 0}
    named = {"previous": PREVIOUS, "next": NEXT, "same": SAME, "delimiter": rests}
    for kind, where in named.items():
        whole = head_attending(where)
        assert kinds(whole) == [kind]
        assert kinds(head_attending(where, share=0.9)) == [kind]
    even = torch.full((8, 8), 1 / 8)
    assert kinds(even) == ["broad"]
    narrow = torch.zeros(8, 8)
    narrow[:, 3], narrow[:, 2], narrow[:, 7] = 0.34, 0.33, 0.33
    assert kinds(narrow) == ["mixed"]
    some = torch.zeros(8, 8)
    # The control: the previous token has slightly less than half of the weight.
    for query, key in PREVIOUS.items():
        some[query, key], some[query, (key + 3) % 8], some[query, (key + 4) % 8] = 0.49, 0.26, 0.25
    assert kinds(some) == ["mixed"]


def test_shares_are_means_over_words() -> None:
    head = head_attending(PREVIOUS)
    head[3] = 0
    # One word attends to itself.
    head[3, 3] = 1.0
    ((found,),) = patterns(head[None, None], *parse(TEXT))
    # The first "the" follows [CLS], which is not part of a word, so three of four words remain.
    assert found.shares["previous"] == pytest.approx(3 / 4)
    assert found.shares["same"] == pytest.approx(1 / 5)
    assert found.shares["delimiter"] == pytest.approx(1 / 5)
    assert found.shares["broad"] == 0.0


def test_breadth_counts_only_visible_tokens() -> None:
    causal = torch.tril(torch.ones(8, 8))
    causal /= causal.sum(-1, keepdim=True)
    ((found,),) = patterns(causal[None, None], *parse(TEXT), causal=True)
    assert found.shares["broad"] == pytest.approx(1.0)
    ((blind,),) = patterns(causal[None, None], *parse(TEXT))
    # The control: without the causal mask, the entropy is too low.
    assert blind.shares["broad"] < BROAD_ENTROPY
    near = torch.ones(8, 8).triu(-1).tril(1)
    near /= near.sum(-1, keepdim=True)
    ((found,),) = patterns(near[None, None], *parse(TEXT), windows=[1])
    assert found.shares["broad"] == pytest.approx(1.0)


def test_first_token_of_causal_model_is_a_delimiter() -> None:
    rests = head_attending({}, share=0.8)
    tokens_of_text = ["So", "the", "dog", "saw", "the", "cat", ".", "!"]
    (((first,),), ((other,),)) = (
        patterns(rests[None, None], *parse(tokens_of_text), causal=causal)
        for causal in (True, False)
    )
    assert first.kind == "delimiter"
    assert other.shares["delimiter"] < MIN_PATTERN_WEIGHT


def test_text_without_words_has_patterns() -> None:
    tokens, words = parse(["[CLS]", "?", "!", "[SEP]"])
    even = torch.full((1, 1, 4, 4), 1 / 4)
    ((found,),) = patterns(even, tokens, words)
    assert found.kind == "delimiter"
    assert begin(even, tokens, words) == Selection(0, 0, 0)


def test_begin_selects_a_distant_word_pair() -> None:
    far = head_attending({}, share=0.2)
    far[5] = 0
    far[5, 2] = 0.7
    near, same = head_attending(PREVIOUS), head_attending(SAME)
    attention = torch.stack([torch.stack([near, same]), torch.stack([head_attending(NEXT), far])])
    assert begin(attention, *parse(TEXT)) == Selection(1, 1, 5)


def test_begin_accepts_text_of_one_word() -> None:
    tokens, words = parse(["[CLS]", "dog", "[SEP]"])
    attention = torch.eye(3)[None, None].clone()
    attention[0, 0, 1] = torch.tensor([0.2, 0.5, 0.3])
    assert begin(attention, tokens, words) == Selection(0, 0, 1)
