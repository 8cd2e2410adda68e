"""Tokenizer, which is based on the `tokenizers` library and returns offsets into the raw text.

A `Tokenizer` is immutable. Limits and overlaps are arguments of each call, so that several threads
can share a tokenizer, and can use different limits.
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

from bertkit.errors import DataError, TokenizerError, check_choice
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
from bertkit.text.tokenizer_classes import SETTINGS, omits_types
from bertkit.text.tokenizer_files import (
    MAX_VOCAB,
    Language,
    Numbering,
    default_class,
    fingerprint,
    lowercase,
    normalizer_settings,
    open_tokenizer,
    usable,
    word_starts,
)

NO_LIMIT = 10**9
"""Maximum lengths of this value or more mean that there is no limit. `transformers` writes 1e30."""


class Tokenizer:
    """Tokenizer, which converts text to the ids of a vocabulary, and ids to text.

    The vocabulary may lack some special tokens. An error is raised when a missing token is used.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        settings: Mapping[str, Any],
        source: str = "tokenizer",
        numbering: Numbering | None = None,
    ) -> None:
        """Wrap a tokenizer of the `tokenizers` library, and disable its truncation and padding.

        Args:
            core: The tokenizer of the library.
            settings: Settings, with the keys of tokenizer_config.json.
            source: Name of the tokenizer in error messages.
            numbering: Ids of tokens, if they differ from the ids in `core`.

        Raises:
            TokenizerError: If the vocabulary lacks a special token that the settings specify.
        """
        core.no_truncation()
        core.no_padding()
        self.core = core
        """Tokenizer of the `tokenizers` library. It must not be changed after construction."""
        self.source = source
        self._settings = {key: settings[key] for key in SETTINGS if key in settings}
        self._numbering = numbering
        specials = find_specials(core, settings, source)
        if numbering is not None:
            specials = {role: token for role, token in specials.items() if token in numbering.ids}
        self._specials = specials
        core.add_special_tokens([t for t in self._specials.values() if not is_special(core, t)])
        special_ids = (*core.encode("").ids, *core.encode("", "").ids)
        if numbering is None and None in map(core.id_to_token, special_ids):
            raise TokenizerError(f"{source}: a special token has no text; download the file again")

    @staticmethod
    def load(path: str | Path, *, side: Language = "source") -> Tokenizer:
        """Load the tokenizer of a Hugging Face directory, a tokenizer.json, or a Google vocab.txt.

        A directory may contain several of these files. The first one in this list is loaded:
        tokenizer.json, vocab.txt, vocab.json with merges.txt, and the files of a format that an
        extension adds (such as Marian). As in `transformers`, the settings for lowercasing,
        accents, and Chinese characters in tokenizer_config.json replace the settings in
        tokenizer.json. For a vocab.txt without a setting for lowercasing, texts are lowercased
        unless a token contains a capital letter. Tokens in brackets, such as `[CLS]`, are not
        considered.

        Args:
            path: The directory or file.
            side: Whether to load the tokenizer for source or for target texts, if a translation
                model has two tokenizers.

        Returns:
            The tokenizer.

        Raises:
            TokenizerError: If a file is missing or damaged, or the vocabulary lacks a special
                token.
        """
        with usable(str(path)):
            core, settings, source, numbering = open_tokenizer(Path(path), side)
            return Tokenizer(core, settings, str(source), numbering)

    def remade(
        self, core: tokenizers.Tokenizer, changes: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """Return a tokenizer with another `core`, but with the same settings and special tokens.

        Args:
            core: Tokenizer of the `tokenizers` library, which must not be changed afterwards.
            changes: Settings that replace the previous settings.

        Raises:
            TokenizerError: If the ids of this tokenizer are in a separate file.
        """
        if self._numbering is not None:
            raise TokenizerError(
                f"{self.source}: cannot be changed, because its ids are in a separate file; train "
                "a new tokenizer"
            )
        roles = {f"{role}_token": token for role, token in self._specials.items()}
        return Tokenizer(core, {**self._settings, **roles, **(changes or {})}, self.source)

    def lowercased(self) -> Tokenizer:
        """Return a tokenizer that first lowercases texts, as in sentence-transformers."""
        core = tokenizers.Tokenizer.from_str(self.core.to_str())
        changes = lowercase(core)
        return self.remade(core, changes)

    def save(self, folder: str | Path, *, segments: bool = True) -> None:
        """Save the tokenizer in a directory. `transformers` can load it, and returns the same ids.

        The directory contains tokenizer.json or the original files, tokenizer_config.json, and
        vocab.txt for WordPiece. Each file is written atomically.

        Args:
            folder: The directory.
            segments: Whether `transformers` returns the segment of each token. Set this to false
                for models without segment embeddings.
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
            write_text(folder / "vocab.txt", "".join(token + "\n" for token in lines))
        config = {**self._settings, **normalizer_settings(self.core)}
        config.setdefault("tokenizer_class", default_class(self.core))
        config |= {f"{role}_token": token for role, token in self._specials.items()}
        # This key is always written, because the defaults of transformers classes differ.
        types = ["token_type_ids"] if segments and self._has_types else []
        config["model_input_names"] = ["input_ids", *types, "attention_mask"]
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2, sort_keys=True))

    @cached_property
    def vocab_size(self) -> int:
        """Number of rows that an embedding of all ids needs: the largest id, plus one.

        Raises:
            TokenizerError: If the number is too large.
        """
        vocab = self.core.get_vocab() if self._numbering is None else self._numbering.ids
        size = max(vocab.values(), default=-1) + 1
        if size > MAX_VOCAB:
            raise TokenizerError(f"{self.source}: {size:,} tokens, but the limit is {MAX_VOCAB:,}")
        return size

    @property
    def _has_types(self) -> bool:
        """Whether transformers passes the segments of this tokenizer to the model."""
        names = self._settings.get("model_input_names")
        if not isinstance(names, list | None):
            raise TokenizerError(
                f"{self.source}: model_input_names must be a list of names, got {names!r}"
            )
        return names is None or "token_type_ids" in names

    @property
    def omits_types(self) -> bool:
        """Whether transformers 5 returns no segments, unlike this tokenizer."""
        return omits_types(self._settings)

    @cached_property
    def segments(self) -> int:
        """Number of segments: 2 if the two texts of a pair have different segments, otherwise 1."""
        if not self._has_types:
            return 1
        processor = self.core.post_processor
        state = "" if processor is None else processor.__getstate__().decode()
        return 1 + max(map(int, re.findall(r'"type_id": ?(\d+)', state)), default=0)

    @property
    def pad(self) -> int:
        """Id of the padding token.

        This property and the properties below raise TokenizerError if the vocabulary does not have
        the token.
        """
        return self._id("pad")

    @property
    def unk(self) -> int:
        """Id of the token for unknown words."""
        return self._id("unk")

    @property
    def cls(self) -> int:
        """Id of the token before an input text, which is [CLS] in BERT."""
        return self._id("cls")

    @property
    def sep(self) -> int:
        """Id of the token after each text of an input, which is [SEP] in BERT."""
        return self._id("sep")

    @property
    def mask(self) -> int:
        """Id of the mask token."""
        return self._id("mask")

    @property
    def bos(self) -> int:
        """Id of the token before a generated text."""
        return self._id("bos")

    @property
    def eos(self) -> int:
        """Id of the token after an input or generated text."""
        return self._id("eos")

    @property
    def ends(self) -> tuple[int, ...]:
        """Tuple with the id of the EOS token. It is empty if there is no EOS token, as in GPT-1."""
        return (self.eos,) if self.knows("eos") else ()

    @property
    def chat_template(self) -> str | None:
        """Default chat template, or None. It is a Jinja program, which bertkit does not run.

        Raises:
            TokenizerError: If chat_template is neither a string nor a list with a default template.
        """
        template = self._settings.get("chat_template")
        if isinstance(template, list):
            named = [item for item in template if isinstance(item, dict)]
            template = next(
                (item.get("template") for item in named if item.get("name") == "default"), False
            )
        if template is None or isinstance(template, str):
            return template
        raise TokenizerError(
            f"{self.source}: chat_template has no default template; set it to a string"
        )

    def has(self, token: str) -> bool:
        """Return whether a token is a special token.

        Args:
            token: The token, such as "[MASK]".
        """
        return token in self._special_tokens

    def token(self, name: str) -> int:
        """Return the id of a special token.

        Args:
            name: The token, such as "[MASK]".
        """
        if self._numbering is not None:
            return self._numbering.ids[name]
        return int(self.core.token_to_id(name))  # type: ignore[arg-type]

    def knows(self, role: str) -> bool:
        """Return whether the vocabulary has a special token for a role.

        Args:
            role: Name of the role, such as "mask".
        """
        return role in self._specials

    def need(self, *roles: str) -> None:
        """Check that the vocabulary has special tokens for some roles.

        Args:
            *roles: Names of the roles, such as "mask".

        Raises:
            TokenizerError: If the vocabulary does not have a token for a role.
        """
        for role in roles:
            required(self._specials, role, self.source)

    def _id(self, role: str) -> int:
        return self.token(required(self._specials, role, self.source))

    def _token(self, id_: int) -> str | None:
        if self._numbering is not None:
            return self._numbering.tokens.get(id_)
        return self.core.id_to_token(id_) if id_ >= 0 else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens: tokens with a role, and other tokens marked as special."""
        return frozenset(map(self.token, self._special_tokens))

    @cached_property
    def _special_tokens(self) -> set[str]:
        marked = self.core.get_added_tokens_decoder().values()
        return {token.content for token in marked if token.special} | {*self._specials.values()}

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens, including special tokens, or None if it is not specified."""
        limit = self._settings.get("model_max_length")
        return int(limit) if limit is not None and limit < NO_LIMIT else None

    @cached_property
    def truncation_side(self) -> Side:
        """End of a long text at which tokens are removed. Default: "right"."""
        return self._settings.get("truncation_side") or "right"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that affects ids. Two copies of a tokenizer have equal hashes."""
        ids = None if self._numbering is None else self._numbering.ids
        return fingerprint(self.core, self._specials, ids)

    @cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary begins a word. It is true for special tokens.

        In WordPiece, tokens with a prefix (`##`) continue a word. In byte-level BPE, a token that
        begins a word starts with a space (`Ġ`) or with other white space. In Unigram, it starts
        with `▁`. In both, punctuation after a word continues the word.

        Raises:
            TokenizerError: If the tokens do not show where words begin.

        Shapes:
            (V,).
        """
        tokens = [self._token(i) or "" for i in range(self.vocab_size)]
        begins = np.array(word_starts(self.core, tokens, self.source), dtype=np.bool_)
        begins[list(self.special_ids)] = True
        return begins

    def pieces(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        """Return the tokens with these ids, as they are written in the vocabulary.

        Args:
            ids: The ids.

        Raises:
            DataError: If an id is not in the vocabulary.

        Shapes:
            ids: (T,).
        """
        tokens = []
        for i in map(int, ids):
            token = self._token(i)
            if token is None:
                raise DataError(f"id {i} is not in the vocabulary (0 to {self.vocab_size - 1})")
            tokens.append(token)
        return tokens

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Convert ids to text.

        Args:
            ids: The ids.

        Returns:
            The text, without special tokens.

        Shapes:
            ids: (T,).
        """
        numbers = [int(i) for i in ids]
        with usable(self.source):
            if self._numbering is None:
                return self.core.decode(numbers)
            assert self.core.decoder is not None
            tokens = self.pieces([number for number in numbers if number not in self.special_ids])
            text: str = self.core.decoder.decode(tokens)
            return text.strip()

    def encode(
        self,
        text: Text,
        pair: Text | None = None,
        *,
        max_length: int | None = None,
        truncate: Truncate = "error",
    ) -> Encoding:
        """Encode a text, or a pair of texts.

        If a text contains the string of a special token, such as "[MASK]", this string becomes the
        special token. If a text is a list of words, it is tokenized as if the words were joined
        with spaces, and `words` in the result contains indices into this list. An empty word has no
        tokens.

        Args:
            text: The text, as a string or as a list of words.
            pair: The second text.
            max_length: Maximum number of tokens. Default: `max_length` of the tokenizer.
            truncate: "error" raises an error if there are too many tokens. "longest" truncates the
                longer text until both texts are equally long. "first" and "second" truncate only
                that text. Tokens are removed at the end that `truncation_side` specifies.

        Returns:
            The tokens, including special tokens.

        Raises:
            DataError: If there are more than `max_length` tokens and `truncate` is "error", if the
                special tokens and the other text leave no space for the truncated text, or if a
                string contains a lone surrogate.
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
        """Encode many texts in parallel, in the same way as `encode`.

        Args:
            texts: The texts, as strings or as lists of words.
            pairs: The second texts.
            max_length: Maximum number of tokens. Default: `max_length` of the tokenizer.
            truncate: Text to truncate, or "error"; see `encode`.
            prompts: Prompt of each text, if there are no pairs. Like special tokens, the tokens of
                prompts do not belong to a text, and are never removed.

        Returns:
            The tokens of each text, including special tokens.

        Raises:
            DataError: As for `encode`, or if `truncate` is "second" and there are no pairs.
        """
        assert pairs is None or prompts is None
        check_choice("truncate", truncate, get_args(Truncate))
        limit = self.max_length if max_length is None else max_length
        if truncate == "second" and pairs is None:
            raise DataError('truncate="second" requires a pair; use "first" for a single text')
        before = prompts or [""] * len(texts)
        encodings = []
        for i, (raw, words) in enumerate(self._raw(texts, pairs, before)):
            prompt, kept = len(before[i]), None
            if limit is not None and len(raw) > limit:
                sequence = sequence_of(raw, prompt)
                lengths = sequence.count(0), sequence.count(1)
                capacity = limit - len(raw) + sum(lengths)
                location = f"text {i}: " if len(texts) > 1 else ""
                side = self.truncation_side
                if side == "left" and prompt and truncate != "error":
                    raise DataError(
                        f"{location}{len(raw)} tokens, but the limit is {limit}, and "
                        "truncation_side = 'left' would remove the prompt; use windows(), or omit "
                        "the prompt"
                    )
                spans = spans_to_keep(lengths, capacity, limit, truncate, side, location)
                kept = tokens_in(spans, sequence)
            encodings.append(self._encoding(raw, prompt, words, kept))
        return encodings

    def _raw(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None, prompts: Sequence[str]
    ) -> Iterator[tuple[tokenizers.Encoding, Sequence[Text] | None]]:
        """Yield the library's encoding of each text, and its words if spaces were added to them."""
        spaced = len(texts) > 0 and is_words(texts[0]) and self._words_lose_their_space
        columns = [texts] if pairs is None else [texts, pairs]
        encodings = encode_raw(self.core, with_prompts(prompts, texts), pairs, spaced=spaced)
        for raw, *row in zip(encodings, *columns, strict=True):
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
            ids = self._ids(raw)
            encoding = replace(encoding, ids=ids if kept is None else ids[kept])
        if not self._has_types:
            encoding = replace(encoding, types=np.zeros_like(encoding.types))
        return encoding

    def _encode_full(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None, prompts: Sequence[str]
    ) -> Iterator[Encoding]:
        encodings = zip(self._raw(texts, pairs, prompts), prompts, strict=True)
        return (self._encoding(raw, len(prompt), words) for (raw, words), prompt in encodings)

    def _ids(self, raw: tokenizers.Encoding) -> NDArray[np.int64]:
        if self._numbering is None:
            return np.array(raw.ids, dtype=np.int64)
        # A token that `core` maps to the unknown token may have an id in this numbering.
        ids, unknown = self._numbering.ids, self.unk
        return np.array([ids.get(token, unknown) for token in raw.tokens], dtype=np.int64)

    @cached_property
    def _words_lose_their_space(self) -> bool:
        return words_lose_their_space(self.core)

    def ids(self, texts: Sequence[str], *, special: bool = False) -> list[NDArray[np.int64]]:
        """Convert texts to ids only, which is faster than `encode_batch`.

        If a text contains the string of a special token, it is treated as ordinary text (as in
        Google's BERT). Thus, an article about "[MASK]" does not contain a masked token. There is no
        length limit.

        Args:
            texts: The texts.
            special: Whether to add the special tokens for a single text, such as the BOS token of
                Llama. Causal models require them.

        Returns:
            The ids of each text.

        Shapes:
            returns: one array (T,) per text.
        """
        named = self._numbering is not None
        encodings = encode_raw(self._literal, texts, None, plain=True, named=named)
        before, after = self.added if special else ((), ())
        return [
            np.array([*before, *ids, *after], dtype=np.int64) if before or after else ids
            for ids in map(self._ids, encodings)
        ]

    @cached_property
    def added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the special tokens that the tokenizer adds before and after a single text."""
        encoding = next(self._encode_full(["a"], None, [""]))
        span, ids = encoding.span(0), encoding.ids.tolist()
        if span.start == span.stop:
            # The vocabulary has no token for the text.
            return tuple(ids), ()
        return tuple(ids[: span.start]), tuple(ids[span.stop :])

    @property
    def begin(self) -> tuple[int, ...]:
        """Ids of the special tokens to put before a text that a causal model scores.

        If the tokenizer adds no token before a text, this is the EOS token, as in GPT-2. If there
        is no EOS token, the tuple is empty.
        """
        return self.added[0] or self.ends

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """Copy of `core` that treats the strings of special tokens in a text as ordinary text."""
        spec = json.loads(self.core.to_str())
        if spec["model"]["type"] == "Unigram":
            # Unigram would find special tokens in a text, because its vocabulary contains them with
            # the score 0.0. They are renamed to strings with a space, which is never in its input.
            vocab = spec["model"]["vocab"]
            for token in self._special_tokens:
                i = self.core.token_to_id(token)
                if i is None or i >= len(vocab):
                    continue
                vocab[i][0] = f" {i}"
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
        """Split a long text into overlapping windows, which together contain all of its tokens.

        Args:
            text: The text, as a string or as a list of words.
            pair: The second text.
            max_length: Maximum number of tokens in a window.
            overlap: Number of tokens that consecutive windows share.
            slide: Text that is split into windows. Each window also contains the special tokens,
                the prompt, and the complete other text.
            prompt: Prompt of the text.

        Returns:
            The windows. In all of them, `truncated` is false.

        Raises:
            DataError: If a window does not have space for more tokens than the overlap.
        """
        check_choice("slide", slide, ("first", "second"))
        if slide == "second" and pair is None:
            raise DataError('slide="second" requires a pair; use "first" for a single text')
        if overlap < 0:
            raise DataError(f"overlap must be at least 0 tokens, got {overlap}")
        encoding = next(self._encode_full([text], None if pair is None else [pair], [prompt]))
        part = 0 if slide == "first" else 1
        num_fixed = len(encoding) - encoding.sequence.count(part)
        capacity = max_length - num_fixed
        if capacity <= overlap:
            raise DataError(
                f"windows are too short: of {max_length} tokens, the special tokens, the prompt "
                f"and the other text need {num_fixed}, so {max(capacity, 0)} remain for an "
                f"overlap of {overlap}; increase max_length or reduce overlap"
            )
        return encoding.windows(part, max_length, overlap)
