"""g2p-en's model, a GRU that reads letters and writes phonemes: an .npz file of arrays.

Source: github.com/Kyubyong/g2p, whose `G2p.predict` it is. Without attention, as in Cho et al.
2014, but the decoder sees the encoder's last state at its start alone.
"""

from __future__ import annotations

import string
import zipfile
from pathlib import Path

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from bertkit.config import decode
from bertkit.errors import CheckpointError
from bertkit.models.config import TransformerConfig
from bertkit.models.model import Model, empty
from bertkit.storage import check_file
from bertkit.text.tokenizer import Tokenizer

SUFFIX = ".npz"

MOST = 64 << 20
"""Bytes of the file, and of what is packed in it."""

LONGEST = 64
"""Letters of a word that are read at most; the model learned words of a dictionary."""

LETTERS = ["<pad>", "<unk>", "</s>", *string.ascii_lowercase]
VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = ("B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S",
              "SH", "T", "TH", "V", "W", "Y", "Z", "ZH")  # fmt: skip
PHONEMES = [
    *("<pad>", "<unk>", "<s>", "</s>"),
    *sorted([*(f"{vowel}{stress}" for vowel in VOWELS for stress in "012"), *CONSONANTS, "UW"]),
]
"""ARPAbet as the CMU dictionary has it, in the order of the file's rows."""

CELL = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0"}
NAMES = {
    "enc_emb": "encoder.embedding.tokens.weight",
    **{f"enc_{theirs}": f"encoder.lstm.{ours}" for theirs, ours in CELL.items()},
    "dec_emb": "decoder.embedding.tokens.weight",
    **{f"dec_{theirs}": f"decoder.lstm.{ours}" for theirs, ours in CELL.items()},
    "fc_w": "heads.lm.output",
    "fc_b": "heads.lm.bias",
}
"""Its arrays by our names."""


def read_g2p(path: Path) -> tuple[Model, Tokenizer, Tokenizer]:
    """The model, the letters that it reads, and the phonemes that it writes.

    Raises: CheckpointError for a file that is damaged, pickled, or another model's.
    """
    arrays = _arrays(path)
    width = max(1, arrays["enc_emb"].size // len(LETTERS))
    shape = {"hidden": width, "layers": 1, "heads": 1, "intermediate": 1, "token_types": 0,
             "max_positions": LONGEST, "dropout": 0.0, "attention_dropout": 0.0, "pad_id": 0,
             "positions": {"kind": "none"}, "norm": {"embedding": False},
             "recurrent": {"cell": "gru", "direction": "forward"}}  # fmt: skip
    encoder = decode(TransformerConfig, {**shape, "vocab": len(LETTERS)})
    decoder = decode(
        TransformerConfig,
        {
            **shape,
            "vocab": len(PHONEMES),
            "attention": {"causal": True, "cross": True},
            "head": {"lm_tied": False, "lm_bias": True},
        },
    )
    model = empty(encoder, ("lm",), labels=(), decoder=decoder)
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    given = {ours: arrays[theirs] for theirs, ours in NAMES.items()}
    for theirs, ours in NAMES.items():
        if arrays[theirs].shape != wanted[ours] or arrays[theirs].dtype.kind != "f":
            raise CheckpointError(
                f"{path}: {theirs} is {arrays[theirs].dtype} {arrays[theirs].shape}, where floats "
                f"{wanted[ours]} belong; take checkpoint20.npz of g2p-en"
            )
    weights: dict[str, Tensor] = {
        name: torch.from_numpy(array.astype(np.float32)) for name, array in given.items()
    }
    model.load_state_dict(weights, assign=True)
    return model.eval(), _letters(path), _phonemes(path)


def _arrays(path: Path) -> dict[str, NDArray[np.floating]]:
    """Raises: CheckpointError."""
    check_file(path, CheckpointError, most=MOST)
    remedy = "take checkpoint20.npz of g2p-en"
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(one.file_size for one in packed.infolist()) > MOST:
                raise CheckpointError(
                    f"{path}: more than {MOST:,} bytes are packed in it; {remedy}"
                )
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in NAMES if name not in file]
            if missing:
                raise CheckpointError(f"{path}: has no array {missing[0]!r}; {remedy}")
            return {name: file[name] for name in NAMES}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: cannot be read ({reason}); {remedy}") from None


def _letters(path: Path) -> Tokenizer:
    """Each letter is a piece, whatever its case, and what is none is unknown."""
    core = _words(LETTERS)
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair=None, special_tokens=[("</s>", LETTERS.index("</s>"))]
    )
    core.decoder = decoders.Fuse()
    return Tokenizer(
        core, {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}, str(path)
    )


def _phonemes(path: Path) -> Tokenizer:
    core = _words(PHONEMES)
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(core, roles, str(path))


def _words(pieces: list[str]) -> tokenizers.Tokenizer:
    numbered = {piece: number for number, piece in enumerate(pieces)}
    return tokenizers.Tokenizer(models.WordLevel(numbered, unk_token="<unk>"))
