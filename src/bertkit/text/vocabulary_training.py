"""Training of vocabularies from raw text, in bounded memory and with reproducible results.

The trainers of `tokenizers` count words in a map that grows with the text. For WordPiece and
Unigram, the result depends on the random order of this map. Words are therefore counted here:

1. Chunks between white space are counted first, because only few of them are distinct. Each
   distinct chunk is then normalized and split into words once. The trainer would obtain the same
   words.
2. Word counts are pruned: whenever there are more than `MAX_WORDS` distinct words, only the more
   frequent half is kept. Each pruning can make the count of a word too low, by at most the largest
   count that it removed. Pruning thus removes URLs, hashes, and typing errors, but no word that
   matters for a vocabulary. The words of a text with fewer distinct words are counted exactly.
3. The trainer receives each word as often as it was counted. If there are more than
   `MAX_TRAINED_WORDS` words in total, all counts are divided by the same number. Memory use thus
   depends on `MAX_WORDS`, not on the length of the text.
4. Tokens of one character come first and in a fixed order, which breaks every tie in the trainer.
   For Unigram, scores are rounded, and tokens with equal scores are sorted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertkit.errors import ConfigError, DataError, check_choice
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import template
from bertkit.text.word_splitting import word_splitter

Kind = Literal["wordpiece", "bpe", "unigram", "words"]

Use = Literal["encode", "write", "translate", "spans"]

SPECIALS: dict[str, dict[str, str]] = {
    "wordpiece": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bpe": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "unigram": {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "words": {"bos": "<S>", "eos": "</S>", "unk": "<UNK>"},
}
"""Type of a vocabulary -> role and text of its special tokens, in the order of ids, as in BERT,
RoBERTa, ALBERT, and ELMo.
"""

END_OF_TEXT = "<|endoftext|>"
"""The only special token of GPT-2, which is put before and after every text."""

SPANS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
"""Special tokens of T5, in addition to 100 sentinel tokens, which have the last ids."""

SENTINELS = tuple(f"<extra_id_{number}>" for number in reversed(range(100)))

MAX_WORDS = 500_000
"""Maximum number of distinct words. This limit and `MAX_CHARACTERS` bound the memory use."""

MAX_CHARACTERS = 8_000_000
"""Maximum number of characters of all distinct words together."""

MAX_CHUNKS = 400_000
"""Maximum number of distinct chunks between white space that are counted before they are split into
words.
"""

SLICE_CHARACTERS = 1_000_000
"""Maximum number of characters of a text that are processed at a time."""

MAX_WORD_CHARACTERS = 256
"""Maximum number of characters of a word. Longer words (hashes, base64) are skipped. WordPiece maps
all words of more than 100 characters to the unknown token.
"""

LINE_WORDS = 4096
"""Maximum number of words in a line of the input of the trainer."""

MAX_TRAINED_WORDS = 100_000_000
"""Maximum number of words in the input of the trainer."""

CHUNK = re.compile(r"\s*\S+|\s+")
SPACE = re.compile(r"(?<!\s)\s")

SCRIPTS = pre_tokenizers.Split(
    tokenizers.Regex(r"▁?[\p{P}\p{S}&&[^▁]]+|▁?\p{N}+"), behavior="isolated"
)
"""Pre-tokenizer that separates letters, digits, and punctuation, so that no Unigram token mixes
them. SentencePiece also does this by default.
"""


def train(
    texts: Iterable[str],
    *,
    kind: Kind,
    size: int,
    use: Use = "encode",
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    chinese_chars: bool = True,
    min_frequency: int = 2,
    character_coverage: float = 0.9999,
    max_length: int | None = 512,
) -> Tokenizer:
    """Train a vocabulary in one pass over the texts.

    Args:
        texts: The texts.
        kind: Type of the vocabulary: `wordpiece` as in BERT, `bpe` as in RoBERTa (byte-level),
            `unigram` as in ALBERT, or `words` (the most frequent complete words) for ELMo.
        size: Number of tokens, including special tokens and the alphabet. The vocabulary is smaller
            if the text has fewer tokens that occur `min_frequency` times.
        use: "encode" for encoders; "write" for generative models such as GPT-2, without special
            tokens around texts (only `bpe`); or "spans" for T5, with 100 sentinel tokens (only
            `bpe`). For translation, use `train_vocabulary`.
        lowercase: Whether to lowercase texts. Default: true for `wordpiece` and `unigram`.
        strip_accents: Whether to remove accents. Default: the value of `lowercase`.
        chinese_chars: Whether each Chinese character is a separate word (only `wordpiece`).
        min_frequency: Minimum frequency of a token.
        character_coverage: Fraction of the characters in the texts that the alphabet covers. Words
            with other characters become the unknown token. Byte-level BPE covers all characters.
        max_length: Maximum number of tokens of a text, which is saved with the tokenizer.

    Raises:
        ConfigError: If `size` is smaller than the number of special tokens and characters, or
            settings cannot be combined.
        DataError: If there is no text, or if a text is not valid Unicode.
    """
    check_choice("kind", kind, SPECIALS)
    check_choice("use", use, get_args(Use))
    if use == "translate":
        raise ConfigError("use = 'translate' is not supported here; use `train_vocabulary`")
    if use in ("write", "spans") and kind != "bpe":
        raise ConfigError(f"use = {use!r} is not supported by kind = {kind!r}; use bpe")
    specials = SPECIALS[kind]
    if use == "write":
        specials = {"eos": END_OF_TEXT}
    elif use == "spans":
        specials, size = SPANS, size - len(SENTINELS)
    if not 0 < character_coverage <= 1:
        raise ConfigError(
            f"character_coverage must be above 0 and at most 1, got {character_coverage}"
        )
    low = kind not in ("bpe", "words") if lowercase is None else lowercase
    accents = low if strip_accents is None else strip_accents
    _check_size(size, len(specials) + (256 if kind == "bpe" else 2), "any text")
    core = _build_untrained(kind, low, accents, chinese_chars)
    splitter = core.pre_tokenizer
    if kind == "unigram":
        splitter = pre_tokenizers.Sequence([splitter, SCRIPTS])
    counts = count_words(texts, core.normalizer, splitter, whole=kind == "bpe")
    if kind == "wordpiece":
        _train_wordpiece(core, counts, size, min_frequency, character_coverage)
    elif kind == "bpe":
        _train_byte_level(core, counts, size, min_frequency, list(specials.values()))
    elif kind == "words":
        _select_words(core, counts, size, min_frequency)
    else:
        _train_unigram(core, counts, size, character_coverage)
    if use == "spans":
        core.add_special_tokens(list(SENTINELS))
        end = specials["eos"]
        core.post_processor = processors.TemplateProcessing(
            single=f"$A {end}",
            pair=f"$A {end} $B {end}",
            special_tokens=[(end, core.token_to_id(end))],
        )
    settings: dict[str, object] = {f"{role}_token": token for role, token in specials.items()}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if kind == "wordpiece":
        settings["tokenizer_class"] = "BertTokenizer"
    if max_length is not None:
        settings["model_max_length"] = max_length
    return Tokenizer(core, settings, "trained vocabulary")


def count_words(
    texts: Iterable[str],
    normalizer: normalizers.Normalizer | None,
    splitter: pre_tokenizers.PreTokenizer,
    *,
    whole: bool,
) -> Counter[str]:
    """Count the words of texts, after the texts are normalized and split into words.

    A text is processed in slices that end before white space, so that no word is split unless it is
    longer than a slice.

    Args:
        texts: The texts.
        normalizer: Normalizer of the vocabulary.
        splitter: Pre-tokenizer of the vocabulary.
        whole: Whether to keep the white space before a chunk, which is part of the word in
            byte-level BPE.

    Raises:
        DataError: If there is no word, or if a text is not valid Unicode.
    """
    split: Callable[[str], list[str]] = CHUNK.findall if whole else str.split
    chunks: Counter[str] = Counter()
    words: Counter[str] = Counter()
    unchecked = 0
    for part in _slices(texts):
        chunks.update(split(part))
        unchecked += len(part)
        full = len(chunks) > MAX_CHUNKS
        if not full and unchecked > MAX_CHARACTERS // 4:
            full = sum(map(len, chunks)) > MAX_CHARACTERS
            unchecked = 0
        if full:
            words = _add_words(words, chunks, normalizer, splitter)
            chunks.clear()
    words = _add_words(words, chunks, normalizer, splitter)
    if not words:
        raise DataError("the texts contain no words; add text")
    return words


def _slices(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        start = 0
        while len(text) - start > SLICE_CHARACTERS:
            space = SPACE.search(text, start + SLICE_CHARACTERS // 2, start + SLICE_CHARACTERS)
            end = space.start() if space else start + SLICE_CHARACTERS
            yield text[start:end]
            start = end
        yield text[start:]


def _add_words(
    words: Counter[str],
    chunks: Counter[str],
    normalizer: normalizers.Normalizer | None,
    splitter: pre_tokenizers.PreTokenizer,
) -> Counter[str]:
    """Add the words of chunks to the counts, and prune the counts if there are too many words."""
    normalize = str if normalizer is None else normalizer.normalize_str
    split = splitter.pre_tokenize_str
    try:
        for chunk, count in chunks.items():
            for word, _ in split(normalize(chunk)):
                if len(word) <= MAX_WORD_CHARACTERS:
                    words[word] += count
            if len(words) > MAX_WORDS:
                words = _prune(words)
    except (UnicodeEncodeError, TypeError):
        raise DataError(
            f"lone surrogate in {chunk[:40]!r}; clean the input with "
            'text.encode("utf-8", "replace").decode()'
        ) from None
    return _prune(words)


def _prune(words: Counter[str]) -> Counter[str]:
    """Return the counts, without the less frequent half of the words if there are too many words.

    If words have equal counts, the words that were counted first are kept.
    """
    if len(words) <= MAX_WORDS and sum(map(len, words)) <= MAX_CHARACTERS:
        return words
    keep: dict[str, int] = {}
    characters = 0
    for word, count in sorted(words.items(), key=lambda item: -item[1]):
        characters += len(word)
        if len(keep) == MAX_WORDS // 2 or characters > MAX_CHARACTERS // 2:
            break
        keep[word] = count
    return Counter(keep)


def _build_untrained(
    kind: Kind, lowercase: bool, strip_accents: bool, chinese_chars: bool
) -> tokenizers.Tokenizer:
    """Build a tokenizer with the normalizer, pre-tokenizer, and decoder of a vocabulary type.

    Its model is empty.
    """
    if kind == "wordpiece":
        core = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=chinese_chars,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece(prefix="##")
        return core
    steps: list[normalizers.Normalizer] = []
    if kind == "unigram":
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    core = tokenizers.Tokenizer(models.BPE())
    if steps:
        core.normalizer = normalizers.Sequence(steps)
    if kind == "words":
        core.pre_tokenizer = word_splitter()
    elif kind == "bpe":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    else:
        metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
        core.decoder = decoders.Metaspace(prepend_scheme="always")
    return core


def _train_wordpiece(
    core: tokenizers.Tokenizer, counts: Counter[str], size: int, min_frequency: int, coverage: float
) -> None:
    counts = _apply_coverage(counts, coverage)
    specials = list(SPECIALS["wordpiece"].values())
    begin = sorted({c for word in counts for c in word})
    inside = sorted({"##" + c for word in counts for c in word[1:]})
    _check_size(size, len(specials) + len(begin) + len(inside), "this text")
    # The characters are passed as special tokens, so that their ids are in this order instead of
    # the order of a hash map.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=specials + begin + inside,
        show_progress=False,
    )
    learned = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    vocab = _run(learned, counts, trainer).get_vocab()
    core.model = models.WordPiece(vocab, unk_token="[UNK]")
    core.add_special_tokens(specials)
    core.post_processor = template(core, "[CLS]", "[SEP]")


def _train_byte_level(
    core: tokenizers.Tokenizer,
    counts: Counter[str],
    size: int,
    min_frequency: int,
    specials: list[str],
) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.model = _run(tokenizers.Tokenizer(models.BPE()), counts, trainer).model
    core.add_special_tokens([_special_token(token) for token in specials])
    if "<s>" not in specials:
        return
    cls, sep = (("<s>", core.token_to_id("<s>")), ("</s>", core.token_to_id("</s>")))
    core.post_processor = processors.RobertaProcessing(
        sep,  # type: ignore[arg-type]
        cls,  # type: ignore[arg-type]
        trim_offsets=True,
        add_prefix_space=False,
    )


def _train_unigram(
    core: tokenizers.Tokenizer, counts: Counter[str], size: int, coverage: float
) -> None:
    counts = _apply_coverage(counts, coverage)
    specials = list(SPECIALS["unigram"].values())
    alphabet = sorted({c for word in counts for c in word})
    _check_size(size, len(specials) + len(alphabet), "this text")
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=alphabet,
        unk_token="<unk>",
        show_progress=False,
    )
    learned = _run(tokenizers.Tokenizer(models.Unigram()), counts, trainer)
    tokens = json.loads(learned.to_str())["model"]["vocab"][len(specials) :]
    scores = _stable_scores(dict(tokens))
    core.model = models.Unigram([*((token, 0.0) for token in specials), *scores], unk_id=1)
    core.add_special_tokens([_special_token(token) for token in specials])
    core.post_processor = template(core, "[CLS]", "[SEP]")


def _select_words(
    core: tokenizers.Tokenizer, counts: Counter[str], size: int, min_frequency: int
) -> None:
    """Build a vocabulary of the most frequent words, with equal counts in alphabetical order."""
    specials = list(SPECIALS["words"].values())
    frequent = [word for word, count in counts.items() if count >= min_frequency]
    words = sorted(set(frequent) - {*specials}, key=lambda word: (-counts[word], word))
    tokens = [*specials, *words[: size - len(specials)]]
    vocab = {word: index for index, word in enumerate(tokens)}
    core.model = models.WordLevel(vocab, unk_token=SPECIALS["words"]["unk"])
    core.add_special_tokens([_special_token(token) for token in specials])


def _stable_scores(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Make scores independent of the run of the trainer, and sort tokens from the highest score.

    The EM algorithm adds numbers in random order, so scores are rounded to six digits. The trainer
    then adds the characters that EM removed, in random order. The first one gets the lowest score,
    and each further one gets 0.0001 more. Here, all of these characters get the lowest score.
    """
    lowest = min(scores.values())
    characters = sorted((score, token) for token, score in scores.items() if len(token) == 1)
    for i, (score, token) in enumerate(characters):
        if abs(score - lowest - i * 1e-4) > 1e-6:
            break
        scores[token] = lowest
    return sorted(((p, round(s, 6)) for p, s in scores.items()), key=lambda p: (-p[1], p[0]))


def _special_token(token: str) -> tokenizers.AddedToken:
    """Create a special token.

    A mask token includes the space before it, because the token that it stands for may start with a
    space.
    """
    mask = token in ("<mask>", "[MASK]")
    return tokenizers.AddedToken(token, lstrip=mask, special=True, normalized=False)


def _apply_coverage(counts: Counter[str], coverage: float) -> Counter[str]:
    """Return the counts of the words that contain no rare characters.

    The most frequent characters that together make up the fraction `coverage` of the text are not
    rare.
    """
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for c in word:
            characters[c] += count
    target = coverage * characters.total()
    alphabet, covered = set(), 0
    for c, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= target:
            break
        alphabet.add(c)
        covered += count
    return Counter({word: n for word, n in counts.items() if alphabet.issuperset(word)})


def _check_size(size: int, minimum: int, source: str) -> None:
    if size < minimum:
        raise ConfigError(
            f"size must be at least {minimum} (special tokens and alphabet of {source}), got "
            f"{size}; use a much larger size"
        )


def _run(
    learned: tokenizers.Tokenizer, counts: Counter[str], trainer: trainers.Trainer
) -> tokenizers.Tokenizer:
    learned.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    learned.train_from_iterator(_repeat(counts), trainer)
    return learned


def _repeat(counts: Counter[str]) -> Iterator[str]:
    """Yield each word as often as it was counted, in lines of up to `LINE_WORDS` words."""
    divisor = -(-counts.total() // MAX_TRAINED_WORDS)
    line: list[str] = []
    pending = 0
    for word, count in counts.items():
        left = round(count / divisor)
        while left:
            n = min(left, LINE_WORDS - pending)
            line.append((word + " ") * n)
            left, pending = left - n, pending + n
            if pending == LINE_WORDS:
                yield "".join(line)
                line, pending = [], 0
    yield "".join(line)
