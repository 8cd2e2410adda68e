"""Heads that were made for it are named by what they look at."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bertkit.view.head_patterns import BROAD_ENTROPY, MIN_PATTERN_WEIGHT, begin, patterns
from bertkit.view.page_data import Selection, Token, Word

TEXT = ["[CLS]", "the", "dog", "saw", "the", "cat", ".", "[SEP]"]


def read(pieces: list[str]) -> tuple[list[Token], list[Word]]:
    tokens: list[Token] = []
    words: list[Word] = []
    for place, piece in enumerate(pieces):
        special = piece.startswith("[")
        tokens.append(Token(piece, place, 0, 0, 0, None if special else len(words)))
        if not special:
            words.append(Word(piece, 0, place, place + 1))
    return tokens, words


def looking(where: dict[int, int], *, share: float = 1.0) -> Tensor:
    """A head whose tokens look `where`, with this share of their weight; the rest is equal."""
    count = len(TEXT)
    weights = torch.full((count, count), (1 - share) / (count - 1))
    for query in range(count):
        weights[query, where.get(query, 0)] = share
    return weights


def kinds(*heads: Tensor, causal: bool = False) -> list[str]:
    (found,) = patterns(torch.stack(heads)[None], *read(TEXT), causal=causal)
    return [one.kind for one in found]


PREVIOUS = {place: place - 1 for place in range(1, 8)}
NEXT = {place: place + 1 for place in range(7)}
SAME = {place: place for place in range(8)} | {1: 4, 4: 1}


def test_heads_are_named_by_what_takes_more_than_half_of_their_weight() -> None:
    rests = {0: 7, 1: 7, 2: 7, 3: 6, 4: 0, 5: 0, 6: 0, 7: 0}
    named = {"previous": PREVIOUS, "next": NEXT, "same": SAME, "delimiter": rests}
    for kind, where in named.items():
        whole = looking(where)
        assert kinds(whole) == [kind]
        assert kinds(looking(where, share=0.9)) == [kind]
    even = torch.full((8, 8), 1 / 8)
    assert kinds(even) == ["broad"]
    narrow = torch.zeros(8, 8)
    narrow[:, 3], narrow[:, 2], narrow[:, 7] = 0.34, 0.33, 0.33
    assert kinds(narrow) == ["mixed"]
    some = torch.zeros(8, 8)
    for query, key in PREVIOUS.items():  # the control: not quite half on the token before
        some[query, key], some[query, (key + 3) % 8], some[query, (key + 4) % 8] = 0.49, 0.26, 0.25
    assert kinds(some) == ["mixed"]


def test_shares_are_means_over_the_words() -> None:
    head = looking(PREVIOUS)
    head[3] = 0
    head[3, 3] = 1.0  # one of the words looks at itself
    ((found,),) = patterns(head[None, None], *read(TEXT))
    # "the" stands behind [CLS], which is no word's token: of four words three are left
    assert found.shares["previous"] == pytest.approx(3 / 4)
    assert found.shares["same"] == pytest.approx(1 / 5)
    assert found.shares["delimiter"] == pytest.approx(1 / 5)
    assert found.shares["broad"] == 0.0


def test_breadth_counts_what_a_token_can_see() -> None:
    causal = torch.tril(torch.ones(8, 8))
    causal /= causal.sum(-1, keepdim=True)
    ((found,),) = patterns(causal[None, None], *read(TEXT), causal=True)
    assert found.shares["broad"] == pytest.approx(1.0)
    ((blind,),) = patterns(causal[None, None], *read(TEXT))
    assert blind.shares["broad"] < BROAD_ENTROPY  # the control: as if it saw all
    near = torch.ones(8, 8).triu(-1).tril(1)
    near /= near.sum(-1, keepdim=True)
    ((found,),) = patterns(near[None, None], *read(TEXT), windows=[1])
    assert found.shares["broad"] == pytest.approx(1.0)


def test_in_a_causal_model_the_first_token_is_a_place_to_rest() -> None:
    rests = looking({}, share=0.8)
    pieces = ["So", "the", "dog", "saw", "the", "cat", ".", "!"]
    (((first,),), ((other,),)) = (
        patterns(rests[None, None], *read(pieces), causal=causal) for causal in (True, False)
    )
    assert first.kind == "delimiter"
    assert other.shares["delimiter"] < MIN_PATTERN_WEIGHT


def test_a_text_without_words_has_patterns_too() -> None:
    tokens, words = read(["[CLS]", "?", "!", "[SEP]"])
    even = torch.full((1, 1, 4, 4), 1 / 4)
    ((found,),) = patterns(even, tokens, words)
    assert found.kind == "delimiter"
    assert begin(even, tokens, words) == Selection(0, 0, 0)


def test_one_begins_where_a_word_looks_far() -> None:
    far = looking({}, share=0.2)
    far[5] = 0
    far[5, 2] = 0.7
    near, same = looking(PREVIOUS), looking(SAME)
    attention = torch.stack([torch.stack([near, same]), torch.stack([looking(NEXT), far])])
    assert begin(attention, *read(TEXT)) == Selection(1, 1, 5)


def test_one_begins_somewhere_in_a_text_of_one_word() -> None:
    tokens, words = read(["[CLS]", "dog", "[SEP]"])
    attention = torch.eye(3)[None, None].clone()
    attention[0, 0, 1] = torch.tensor([0.2, 0.5, 0.3])
    assert begin(attention, tokens, words) == Selection(0, 0, 1)
