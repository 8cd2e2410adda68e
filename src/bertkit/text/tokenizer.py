"""Text to token ids, over the `tokenizers` library, with offsets into the raw text.

A `Tokenizer` never changes once built: limits, overlaps and pairs are arguments of each call,
so threads and calls with different limits do not disturb each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from bertkit.errors import DataError, TokenizerError, refuse_unknown
from bertkit.storage import write_bytes, write_text
from bertkit.text.encoding import (
    Encoding,
    Side,
    Text,
    Truncate,
    encode_raw,
    from_raw,
    is_words,
    sequence_of,
    spans_to_keep,
    tokens_in,
    with_prompts,
    words_lose_their_space,
)
from bertkit.text.special_tokens import find_specials, is_special, required
from bertkit.text.tokenizer_classes import SETTINGS
from bertkit.text.tokenizer_files import (
    MOST_PIECES,
    Language,
    Numbering,
    fingerprint,
    lowercase,
    normalizer_settings,
    open_tokenizer,
    usable,
    usual_class,
    word_starts,
)

NO_LIMIT = 10**9
"""`transformers` writes 1e30 for a tokenizer without a limit."""


class Tokenizer:
    """A vocabulary with its normalization: text to ids, and ids to text.

    It need not have all special tokens; one that it lacks is missed when it is used.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        settings: Mapping[str, Any],
        source: str = "tokenizer",
        numbering: Numbering | None = None,
    ) -> None:
        """Takes over `core` (limits and padding baked into it are removed).

        `settings` are keys of tokenizer_config.json; `source` is named in error messages;
        `numbering` gives the ids where they are not those of `core`.
        """
        core.no_truncation()
        core.no_padding()
        self.core = core
        """The `tokenizers` object; nothing here changes it after construction."""
        self.source = source
        self._settings = {key: settings[key] for key in SETTINGS if key in settings}
        self._numbering = numbering
        specials = find_specials(core, settings, source)
        if numbering is not None:
            specials = {role: one for role, one in specials.items() if one in numbering.ids}
        self._specials = specials
        core.add_special_tokens([t for t in self._specials.values() if not is_special(core, t)])
        framed = (*core.encode("").ids, *core.encode("", "").ids)
        if numbering is None and None in map(core.id_to_token, framed):
            raise TokenizerError(f"{source}: texts are framed by an id of no piece; fetch it again")

    @staticmethod
    def load(path: str | Path, *, side: Language = "source") -> Tokenizer:
        """Read a Hugging Face folder, its tokenizer.json, or a Google vocab.txt.

        A folder gives tokenizer.json if it has one, else vocab.txt, else vocab.json with
        merges.txt, else the files of an extension, as Marian's; `side` is which texts it is for,
        where a translator has a model for each of its languages. Where tokenizer_config.json names
        lower-casing, accents or Chinese characters, it wins over tokenizer.json, as in
        `transformers`. Where nothing names lower-casing, a vocab.txt is taken as cased if any piece
        but the `[...]` ones has a capital: an uncased vocabulary cannot hold one.
        Raises: TokenizerError naming the file, if it is missing or damaged, or lacks a token that
        it names, or that frames a text.
        """
        with usable(str(path)):
            core, settings, source, numbering = open_tokenizer(Path(path), side)
            return Tokenizer(core, settings, str(source), numbering)

    def remade(
        self, core: tokenizers.Tokenizer, changes: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """The same settings, with `changes`, and special tokens over another `core`, which is taken
        over.

        Raises: TokenizerError where ids are not those of a core.
        """
        if self._numbering is not None:
            raise TokenizerError(
                f"{self.source}: cannot be changed, because its ids are in a separate file; train "
                "a new tokenizer"
            )
        roles = {f"{role}_token": token for role, token in self._specials.items()}
        return Tokenizer(core, {**self._settings, **roles, **(changes or {})}, self.source)

    def lowercased(self) -> Tokenizer:
        """Return a tokenizer that lowercases texts first, as sentence-transformers does."""
        core = tokenizers.Tokenizer.from_str(self.core.to_str())
        changes = lowercase(core)
        return self.remade(core, changes)

    def save(self, folder: str | Path, *, segments: bool = True) -> None:
        """Write tokenizer.json, or the files that it was read from, tokenizer_config.json, and, for
        WordPiece, vocab.txt.

        `transformers` opens the folder and gives the same ids; without `segments` it gives no
        segment of each token, for a model that knows none. Each file is replaced whole.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self._numbering is None:
            write_text(folder / "tokenizer.json", self.core.to_str())
        else:
            for name, content in self._numbering.files.items():
                write_bytes(folder / name, content)
        if isinstance(self.core.model, models.WordPiece):
            lines = (self.core.id_to_token(i) or f"[hole{i}]" for i in range(self.vocab_size))
            write_text(folder / "vocab.txt", "".join(piece + "\n" for piece in lines))
        config = {**self._settings, **normalizer_settings(self.core)}
        config.setdefault("tokenizer_class", usual_class(self.core))
        config |= {f"{role}_token": token for role, token in self._specials.items()}
        # Always written: the default of a class of transformers may differ.
        types = ["token_type_ids"] if segments and self._has_types else []
        config["model_input_names"] = ["input_ids", *types, "attention_mask"]
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2, sort_keys=True))

    @cached_property
    def vocab_size(self) -> int:
        """Rows an embedding needs: the largest id, plus one. Raises: TokenizerError if too many."""
        pieces = self.core.get_vocab() if self._numbering is None else self._numbering.ids
        size = max(pieces.values(), default=-1) + 1
        if size > MOST_PIECES:
            raise TokenizerError(f"{self.source}: ids up to {size - 1:,}; fetch it again")
        return size

    @property
    def _has_types(self) -> bool:
        """Whether transformers passes the segments of this tokenizer to the model."""
        names = self._settings.get("model_input_names")
        if not isinstance(names, list | None):
            raise TokenizerError(
                f"{self.source}: model_input_names is {names!r}; write a list of names"
            )
        return names is None or "token_type_ids" in names

    @cached_property
    def segments(self) -> int:
        """Number of segments: 2 if the tokens of a pair's texts have different segments."""
        if not self._has_types:
            return 1
        frame = self.core.post_processor
        said = "" if frame is None else frame.__getstate__().decode()  # as JSON
        return 1 + max(map(int, re.findall(r'"type_id": ?(\d+)', said)), default=0)

    @property
    def pad(self) -> int:
        """Raises: TokenizerError if the vocabulary has no such token, as do all that follow."""
        return self._id("pad")

    @property
    def unk(self) -> int:
        return self._id("unk")

    @property
    def cls(self) -> int:
        return self._id("cls")

    @property
    def sep(self) -> int:
        return self._id("sep")

    @property
    def mask(self) -> int:
        return self._id("mask")

    @property
    def bos(self) -> int:
        """What a text begins with, where a model writes it."""
        return self._id("bos")

    @property
    def eos(self) -> int:
        """What ends a text that a model reads or writes."""
        return self._id("eos")

    @property
    def ends(self) -> tuple[int, ...]:
        """The token that ends a text, or none: GPT's first vocabulary has no such token."""
        return (self.eos,) if self.knows("eos") else ()

    @property
    def chat_template(self) -> str | None:
        """The (default) chat template, a Jinja program that bertkit does not run.

        Raises: TokenizerError if chat_template is neither a text nor a list with a default text.
        """
        template = self._settings.get("chat_template")
        if isinstance(template, list):
            named = [one for one in template if isinstance(one, dict)]
            template = next(
                (one.get("template") for one in named if one.get("name") == "default"), False
            )
        if template is None or isinstance(template, str):
            return template
        raise TokenizerError(
            f"{self.source}: chat_template has no default template; set it to one text"
        )

    def has(self, token: str) -> bool:
        """Whether it is a special token."""
        return token in self._special_tokens

    def token(self, name: str) -> int:
        """The id of a special token."""
        return self._number(name)

    def knows(self, role: str) -> bool:
        """Whether the vocabulary has a token for a role."""
        return role in self._specials

    def need(self, *roles: str) -> None:
        """Raises: TokenizerError for the first role that the vocabulary has no token for."""
        for role in roles:
            required(self._specials, role, self.source)

    def _id(self, role: str) -> int:
        token = required(self._specials, role, self.source)
        return self._number(token)

    def _number(self, token: str) -> int:
        if self._numbering is not None:
            return self._numbering.ids[token]
        return int(self.core.token_to_id(token))  # type: ignore[arg-type]

    def _piece(self, number: int) -> str | None:
        if self._numbering is not None:
            return self._numbering.pieces.get(number)
        return self.core.id_to_token(number) if number >= 0 else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text: those of roles, and whatever else is marked special."""
        return frozenset(map(self._number, self._special_tokens))

    @cached_property
    def _special_tokens(self) -> set[str]:
        marked = self.core.get_added_tokens_decoder().values()
        return {token.content for token in marked if token.special} | {*self._specials.values()}

    @property
    def max_length(self) -> int | None:
        """The most tokens a sequence may have, specials included, if the folder says so."""
        limit = self._settings.get("model_max_length")
        return int(limit) if limit is not None and limit < NO_LIMIT else None

    @property
    def truncation_side(self) -> Side:
        """End of a long text from which tokens are removed, by default "right"."""
        return self._settings.get("truncation_side") or "right"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides ids: equal for two copies of one vocabulary."""
        ids = None if self._numbering is None else self._numbering.ids
        return fingerprint(self.core, self._specials, ids)

    @cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """For each id, whether it begins a word; special tokens do, so they continue nothing.

        WordPiece continues with its prefix (`##`); byte-level BPE begins with a space (`Ġ`) or
        another white space, Unigram with `▁`. In the latter two, punctuation after a word
        continues it.
        Shapes: (V,). Raises: TokenizerError if the pieces do not show where words begin.
        """
        pieces = [self._piece(i) or "" for i in range(self.vocab_size)]
        begins = np.array(word_starts(self.core, pieces, self.source), dtype=np.bool_)
        begins[list(self.special_ids)] = True
        return begins

    def pieces(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        """The vocabulary's spelling of each id."""
        pieces = []
        for i in map(int, ids):
            piece = self._piece(i)
            if piece is None:
                raise DataError(f"id {i} is not in the vocabulary (0 to {self.vocab_size - 1})")
            pieces.append(piece)
        return pieces

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Readable text of these ids, without special tokens."""
        numbers = [int(i) for i in ids]
        with usable(self.source):
            if self._numbering is None:
                return self.core.decode(numbers)
            assert self.core.decoder is not None
            kept = self.pieces([number for number in numbers if number not in self.special_ids])
            text: str = self.core.decoder.decode(kept)
            return text.strip()

    def encode(
        self,
        text: Text,
        pair: Text | None = None,
        *,
        max_length: int | None = None,
        truncate: Truncate = "error",
    ) -> Encoding:
        """One text or pair as tokens.

        Special tokens spelled out in the text ("[MASK]") are read as such. A sequence of words
        is taken as already split: `words` then numbers those. It has the pieces of the text in
        which a space stands between any two of them; an empty word has none.
        `max_length` None means the tokenizer's own. `truncate` "longest" takes from the longer
        text until both are equally long, "first" and "second" from that text alone; tokens are
        removed at the end of `truncation_side`.
        Raises: DataError if the text is longer than `max_length` and `truncate` is "error", or
        the specials and the other text alone fill it; or if a string holds a lone surrogate.
        """
        pairs = None if pair is None else [pair]
        return self.encode_batch([text], pairs, max_length=max_length, truncate=truncate)[0]

    __call__ = encode

    def encode_batch(
        self,
        texts: Sequence[Text],
        pairs: Sequence[Text] | None = None,
        *,
        max_length: int | None = None,
        truncate: Truncate = "error",
        prompts: Sequence[str] | None = None,
    ) -> list[Encoding]:
        """`encode` for many texts, in parallel.

        `prompts` are put before texts that have no pair, one to each. Their tokens are as special
        ones: of no text, and never cut.
        """
        assert pairs is None or prompts is None
        refuse_unknown("truncate", truncate, get_args(Truncate))
        limit = self.max_length if max_length is None else max_length
        if truncate == "second" and pairs is None:
            raise DataError('truncate="second" needs a pair; use "first" for a single text')
        before = prompts or [""] * len(texts)
        encodings = []
        for i, (raw, words) in enumerate(self._raw(texts, pairs, before)):
            prompt, kept = len(before[i]), None
            if limit is not None and len(raw) > limit:
                sequence = sequence_of(raw, prompt)
                lengths = sequence.count(0), sequence.count(1)
                room = limit - len(raw) + sum(lengths)
                where = f"text {i}: " if len(texts) > 1 else ""
                side = self.truncation_side
                if side == "left" and prompt and truncate != "error":
                    raise DataError(
                        f"{where}{len(raw)} tokens, but the limit is {limit}; truncation_side = "
                        "'left' would remove the prompt; use windows(), or omit the prompt"
                    )
                spans = spans_to_keep(lengths, room, limit, truncate, side, where)
                kept = tokens_in(spans, sequence)
            encodings.append(self._encoding(raw, prompt, words, kept))
        return encodings

    def _raw(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None, prompts: Sequence[str]
    ) -> Iterator[tuple[tokenizers.Encoding, Sequence[Text] | None]]:
        """Yield tokens as the library gives them, and the words that were given a space."""
        spaced = len(texts) > 0 and is_words(texts[0]) and self._words_lose_their_space
        columns = [texts] if pairs is None else [texts, pairs]
        each = encode_raw(self.core, with_prompts(prompts, texts), pairs, spaced=spaced)
        for raw, *row in zip(each, *columns, strict=True):
            yield raw, row if spaced else None

    def _encoding(
        self,
        raw: tokenizers.Encoding,
        prompt: int,
        words: Sequence[Text] | None,
        kept: NDArray[np.intp] | None = None,
    ) -> Encoding:
        encoding = from_raw(raw, prompt, words, kept)
        if self._numbering is not None:
            ids = self._numbered(raw)
            encoding = replace(encoding, ids=ids if kept is None else ids[kept])
        if not self._has_types:
            encoding = replace(encoding, types=np.zeros_like(encoding.types))
        return encoding

    def _whole(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None, prompts: Sequence[str]
    ) -> Iterator[Encoding]:
        each = zip(self._raw(texts, pairs, prompts), prompts, strict=True)
        return (self._encoding(raw, len(prompt), words) for (raw, words), prompt in each)

    def _numbered(self, raw: tokenizers.Encoding) -> NDArray[np.int64]:
        if self._numbering is None:
            return np.array(raw.ids, dtype=np.int64)
        # by its text a piece that the core does not know may yet have a number
        ids, unknown = self._numbering.ids, self.unk
        return np.array([ids.get(piece, unknown) for piece in raw.tokens], dtype=np.int64)

    @cached_property
    def _words_lose_their_space(self) -> bool:
        return words_lose_their_space(self.core)

    def ids(self, texts: Sequence[str], *, special: bool = False) -> list[NDArray[np.int64]]:
        """Return the ids of texts, without offsets, which is fast.

        Special tokens in a text are ordinary text here (as in Google's BERT), so that an article
        about "[MASK]" does not contain a masked token. No limit applies. `special` adds the special
        tokens of a single text, such as the BOS token of Llama; texts that a causal model reads
        need them.
        """
        named = self._numbering is not None
        encodings = encode_raw(self._literal, texts, None, plain=True, named=named)
        before, after = self.added if special else ((), ())
        return [
            np.array([*before, *ids, *after], dtype=np.int64) if before or after else ids
            for ids in map(self._numbered, encodings)
        ]

    @cached_property
    def added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the tokenizer adds before and after a single text."""
        encoding = next(self._whole(["a"], None, [""]))
        span, ids = encoding.span(0), encoding.ids.tolist()
        if span.start == span.stop:  # the vocabulary has no token for the text
            return tuple(ids), ()
        return tuple(ids[: span.start]), tuple(ids[span.stop :])

    @property
    def begin(self) -> tuple[int, ...]:
        """The special tokens before a text that a causal model scores.

        If the tokenizer adds none, these are the token that separates texts, as in GPT-2, or none.
        """
        return self.added[0] or self.ends

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same, but finding no special token in a text."""
        spec = json.loads(self.core.to_str())
        if spec["model"]["type"] == "Unigram":  # a lattice finds any piece, at the special's 0.0
            vocab = spec["model"]["vocab"]
            for token in self._special_tokens:
                i = self.core.token_to_id(token)
                if i is None or i >= len(vocab):
                    continue  # added behind the vocabulary: no piece of the lattice
                vocab[i][0] = f" {i}"  # white space is gone before the lattice
            spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["special"]]
        core = tokenizers.Tokenizer.from_str(json.dumps(spec))
        core.encode_special_tokens = True
        return core

    def windows(
        self,
        text: Text,
        pair: Text | None = None,
        *,
        max_length: int,
        overlap: int,
        slide: Literal["first", "second"] = "first",
        prompt: str = "",
    ) -> list[Encoding]:
        """Overlapping windows over a long text, which together hold every token of it.

        `slide` says which of the two is cut into windows; each window has the specials, the prompt
        and the whole of the other text. None is `truncated`.
        Units: max_length and overlap in tokens.
        Raises: DataError if a window has no room for more than the overlap.
        """
        refuse_unknown("slide", slide, ("first", "second"))
        if slide == "second" and pair is None:
            raise DataError('slide="second" needs a pair; use "first" for a single text')
        if overlap < 0:
            raise DataError(f"overlap is {overlap}; it is a number of tokens, 0 or more")
        whole = next(self._whole([text], None if pair is None else [pair], [prompt]))
        which = 0 if slide == "first" else 1
        others = len(whole) - whole.sequence.count(which)
        room = max_length - others
        if room <= overlap:
            raise DataError(
                f"no room for windows: of {max_length} tokens, {others} go to the "
                f"specials, the prompt and the other text, which leaves {max(room, 0)} for an "
                f"overlap of {overlap}; raise max_length, lower the overlap or shorten the others"
            )
        return whole.windows(which, max_length, overlap)
