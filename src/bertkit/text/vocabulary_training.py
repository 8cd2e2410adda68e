"""A vocabulary from raw text, in bounded memory and the same every time.

Method: `tokenizers`' trainers count words in a map that grows with the text and, for WordPiece
and Unigram, depend on that map's random order. So words are counted here:

1. White-space chunks are counted first (few are distinct), then each distinct chunk is
   normalized and split into words once. The words are those the trainer itself would see.
2. Word counts are pruned: whenever there are more than `MAX_WORDS` distinct ones, the more frequent
   half stays. A word's count falls short by at most the largest count dropped at each pruning,
   so URLs, hashes and typing errors go, and no word that matters for a vocabulary is lost. Text
   with fewer distinct words than that is counted exactly.
3. The trainer is fed each word as often as it was counted; beyond `MAX_TRAINED_WORDS` words in all,
   counts are divided by a common number. Memory thus depends on `MAX_WORDS`, not on the text.
4. The pieces of one character come first and in order, which fixes every tie in the trainer.
   (Unigram: scores are rounded, pieces with equal scores are sorted.)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertkit.errors import ConfigError, DataError, refuse_unknown
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import template
from bertkit.text.word_splitting import word_splitter

Kind = Literal["wordpiece", "bpe", "unigram", "words"]

Use = Literal["encode", "write", "translate", "spans"]

SPECIALS: dict[str, tuple[str, ...]] = {
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "unigram": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "words": ("<S>", "</S>", "<UNK>"),
}
"""Special tokens of each kind by id: BERT's, RoBERTa's, ALBERT's, and those of ELMo's softmax."""

END_OF_TEXT = "<|endoftext|>"
"""GPT-2's only special token, before and behind every text."""

SPANS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
"""T5's, beside a hundred that stand for spans; they have the last ids."""

SENTINELS = tuple(f"<extra_id_{number}>" for number in reversed(range(100)))

ROLES = {
    "wordpiece": ("pad", "unk", "cls", "sep", "mask"),
    "bpe": ("cls", "pad", "sep", "unk", "mask"),
    "unigram": ("pad", "unk", "cls", "sep", "mask"),
    "words": ("bos", "eos", "unk"),
}

MAX_WORDS = 500_000
"""Largest number of distinct words kept. It and `MAX_CHARACTERS` limit the memory."""

MAX_CHARACTERS = 8_000_000
"""All characters of the distinct words kept."""

MAX_CHUNKS = 400_000
"""Distinct white-space chunks counted before they are split into words."""

SLICE_CHARACTERS = 1_000_000
"""Characters of one text handled at a time."""

MAX_WORD_CHARACTERS = 256
"""Longer words (hashes, base64) are left out, as WordPiece gives up on those beyond 100."""

MAX_TRAINED_WORDS = 100_000_000
"""Words given to the trainer at most."""

CHUNK = re.compile(r"\s*\S+|\s+")
SPACE = re.compile(r"(?<!\s)\s")

SCRIPTS = pre_tokenizers.Split(
    tokenizers.Regex(r"▁?[\p{P}\p{S}&&[^▁]]+|▁?\p{N}+"), behavior="isolated"
)
"""No Unigram piece mixes letters, digits and punctuation: SentencePiece learns so by default."""


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
    """Learn a vocabulary of `size` pieces, specials and alphabet included, in one pass.

    `wordpiece` follows BERT, `bpe` RoBERTa (byte-level), `unigram` ALBERT; `words` are whole words,
    the most frequent first, for an ELMo. `lowercase` None is the paper's choice: yes, no, yes, no;
    `strip_accents` None follows it. `chinese_chars` makes each
    a word of its own (WordPiece). Words with characters beyond `character_coverage` of the text
    are left to the unknown token (byte-level BPE has none). A vocabulary comes out smaller if
    the text has fewer pieces that occur `min_frequency` times. `use` write is for models that
    write, whose texts have no frame: GPT-2's, of `bpe` alone; spans for those that learn from
    damaged text: T5's, with a hundred tokens that stand for spans, `bpe` too. (`train_vocabulary`
    trains one to translate with.)
    Raises: ConfigError if `size` is below specials plus alphabet, naming the minimum; DataError
    if there is no text or it is not Unicode.
    """
    refuse_unknown("kind", kind, SPECIALS)
    refuse_unknown("use", use, get_args(Use))
    if use == "translate":
        raise ConfigError("use: a vocabulary to translate with is learned by `train_vocabulary`")
    if use in ("write", "spans") and kind != "bpe":
        raise ConfigError(f"use: a {kind} vocabulary is for reading; one to write with is bpe")
    specials = dict(zip(ROLES[kind], SPECIALS[kind], strict=True))
    if use == "write":
        specials = {"eos": END_OF_TEXT}
    elif use == "spans":
        specials, size = SPANS, size - len(SENTINELS)
    if not 0 < character_coverage <= 1:
        raise ConfigError(
            f"character_coverage is {character_coverage}; it must be above 0, at most 1"
        )
    low = kind not in ("bpe", "words") if lowercase is None else lowercase
    accents = low if strip_accents is None else strip_accents
    _require(size, len(specials) + (256 if kind == "bpe" else 2), "any text")
    core = _blank(kind, low, accents, chinese_chars)
    splitter = core.pre_tokenizer
    if kind == "unigram":
        splitter = pre_tokenizers.Sequence([splitter, SCRIPTS])
    counts = count_words(texts, core.normalizer, splitter, whole=kind == "bpe")
    if kind == "wordpiece":
        _word_piece(core, counts, size, min_frequency, character_coverage)
    elif kind == "bpe":
        _byte_level(core, counts, size, min_frequency, list(specials.values()))
    elif kind == "words":
        _whole_words(core, counts, size, min_frequency)
    else:
        _unigram(core, counts, size, character_coverage)
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
    """How often each word of the texts occurs, after normalizing and splitting.

    `whole` keeps the white space before a chunk, which byte-level BPE counts as part of a word.
    Text is taken in slices that end before white space, so no word is cut unless it is longer
    than a slice.
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
            words = _absorb(words, chunks, normalizer, splitter)
            chunks.clear()
    words = _absorb(words, chunks, normalizer, splitter)
    if not words:
        raise DataError("no words to learn from: the texts are empty or hold white space only")
    return words


def _slices(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        start = 0
        while len(text) - start > SLICE_CHARACTERS:
            near = SPACE.search(text, start + SLICE_CHARACTERS // 2, start + SLICE_CHARACTERS)
            end = near.start() if near else start + SLICE_CHARACTERS
            yield text[start:end]
            start = end
        yield text[start:]


def _absorb(
    words: Counter[str],
    chunks: Counter[str],
    normalizer: normalizers.Normalizer | None,
    splitter: pre_tokenizers.PreTokenizer,
) -> Counter[str]:
    """Add the words of the chunks, pruning where needed."""
    normalize = str if normalizer is None else normalizer.normalize_str
    split = splitter.pre_tokenize_str
    try:
        for chunk, count in chunks.items():
            for word, _ in split(normalize(chunk)):
                if len(word) <= MAX_WORD_CHARACTERS:
                    words[word] += count
            if len(words) > MAX_WORDS:
                words = _pruned(words)
    except (UnicodeEncodeError, TypeError):
        raise DataError(
            f"half of a surrogate pair in {chunk[:40]!r} is not text; clean the input with "
            'text.encode("utf-8", "replace").decode()'
        ) from None
    return _pruned(words)


def _pruned(words: Counter[str]) -> Counter[str]:
    """The same counts, or the more frequent half (of equals, those seen first)."""
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


def _blank(
    kind: Kind, lowercase: bool, strip_accents: bool, chinese_chars: bool
) -> tokenizers.Tokenizer:
    """Normalization, splitting and decoding of a kind, around an empty model."""
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


def _word_piece(
    core: tokenizers.Tokenizer,
    counts: Counter[str],
    size: int,
    min_frequency: int,
    coverage: float,
) -> None:
    counts = _covered(counts, coverage)
    specials = list(SPECIALS["wordpiece"])
    begin = sorted({c for word in counts for c in word})
    inside = sorted({"##" + c for word in counts for c in word[1:]})
    _require(size, len(specials) + len(begin) + len(inside), "this text")
    # Given as specials, the alphabet gets its ids in this order and not in that of a hash map.
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


def _byte_level(
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
    core.add_special_tokens([_spaced(token) for token in specials])
    if "<s>" not in specials:
        return
    cls, sep = (("<s>", core.token_to_id("<s>")), ("</s>", core.token_to_id("</s>")))
    core.post_processor = processors.RobertaProcessing(
        sep,  # type: ignore[arg-type]
        cls,  # type: ignore[arg-type]
        trim_offsets=True,
        add_prefix_space=False,
    )


def _unigram(core: tokenizers.Tokenizer, counts: Counter[str], size: int, coverage: float) -> None:
    counts = _covered(counts, coverage)
    specials = list(SPECIALS["unigram"])
    alphabet = sorted({c for word in counts for c in word})
    _require(size, len(specials) + len(alphabet), "this text")
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=alphabet,
        unk_token="<unk>",
        show_progress=False,
    )
    learned = _run(tokenizers.Tokenizer(models.Unigram()), counts, trainer)
    pieces = json.loads(learned.to_str())["model"]["vocab"][len(specials) :]
    scores = _settled(dict(pieces))
    core.model = models.Unigram([*((token, 0.0) for token in specials), *scores], unk_id=1)
    core.add_special_tokens([_spaced(token) for token in specials])
    core.post_processor = template(core, "[CLS]", "[SEP]")


def _whole_words(
    core: tokenizers.Tokenizer, counts: Counter[str], size: int, min_frequency: int
) -> None:
    """The most frequent words, those first; of equally frequent ones the first in the alphabet."""
    specials = SPECIALS["words"]
    often = [word for word, count in counts.items() if count >= min_frequency]
    words = sorted(set(often) - {*specials}, key=lambda word: (-counts[word], word))
    known = [*specials, *words[: size - len(specials)]]
    vocab = {word: place for place, word in enumerate(known)}
    core.model = models.WordLevel(vocab, unk_token=specials[2])
    core.add_special_tokens([_spaced(token) for token in specials])


def _settled(scores: dict[str, float]) -> list[tuple[str, float]]:
    """The pieces, best first, without what differs from one run of the trainer to the next.

    EM adds up in any order, so scores keep six digits. Characters that EM had dropped come back
    at the lowest score, plus 0.0001 for each one before, in any order; here at the lowest.
    """
    lowest = min(scores.values())
    returned = sorted((score, piece) for piece, score in scores.items() if len(piece) == 1)
    for i, (score, piece) in enumerate(returned):
        if abs(score - lowest - i * 1e-4) > 1e-6:
            break
        scores[piece] = lowest
    return sorted(((p, round(s, 6)) for p, s in scores.items()), key=lambda p: (-p[1], p[0]))


def _spaced(token: str) -> tokenizers.AddedToken:
    """A mask takes the space before it along, so that its prediction may bring one."""
    mask = token in ("<mask>", "[MASK]")
    return tokenizers.AddedToken(token, lstrip=mask, special=True, normalized=False)


def _covered(counts: Counter[str], coverage: float) -> Counter[str]:
    """The words whose characters are among the most frequent that make up so much of the text."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for c in word:
            characters[c] += count
    wanted = coverage * characters.total()
    alphabet, covered = set(), 0
    for c, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        alphabet.add(c)
        covered += count
    return Counter({word: n for word, n in counts.items() if alphabet.issuperset(word)})


def _require(size: int, minimum: int, what: str) -> None:
    if size < minimum:
        raise ConfigError(
            f"size {size} is too small: the special tokens and the alphabet of {what} need "
            f"{minimum}; raise size to well above that"
        )


def _run(
    learned: tokenizers.Tokenizer, counts: Counter[str], trainer: trainers.Trainer
) -> tokenizers.Tokenizer:
    learned.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    learned.train_from_iterator(_repeated(counts), trainer)
    return learned


def _repeated(counts: Counter[str], at_once: int = 4096) -> Iterator[str]:
    """Each word as often as it was counted, in lines of a few thousand."""
    divisor = -(-counts.total() // MAX_TRAINED_WORDS)
    line: list[str] = []
    pending = 0
    for word, count in counts.items():
        left = round(count / divisor)
        while left:
            n = min(left, at_once - pending)
            line.append((word + " ") * n)
            left, pending = left - n, pending + n
            if pending == at_once:
                yield "".join(line)
                line, pending = [], 0
    yield "".join(line)
