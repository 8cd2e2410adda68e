"""Folders of an ELMo as it is published: options in JSON, weights in one HDF5 file.

One that was pretrained here also has the softmax by which it learned: `softmax.safetensors`, and
the words of its rows, a line each, in `words.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from bertkit import memory
from bertkit.checkpoint.hub import resolve
from bertkit.checkpoint.weights import read_file, write_tensors
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.classic.character_ids import CHARACTERS, MASK
from bertkit.extensions.classic.elmo import Elmo, ElmoConfig
from bertkit.storage import (
    VOCABULARY,
    check_file,
    read_bytes,
    read_json,
    write_json,
    write_text,
    writing,
)

if TYPE_CHECKING:
    import h5py

OPTIONS, WEIGHTS = "*options.json", "*weights.hdf5"
"""Names of the two files; the published ones have the model's shape before these."""

SOFTMAX, WORDS = "softmax.safetensors", "words.txt"
"""What tells the next word, and which words it tells; published folders lack both."""

Take = Callable[..., Tensor]
"""A weight by its name in the file and the shape that it must have."""


def load_elmo(name: str | Path) -> Elmo:
    """Open a folder with `options.json` and `weights.hdf5`, or names that end so.

    Raises: CheckpointError for a file that is missing, damaged, no ELMo's or of another shape than
    the options say; ConfigError where h5py is missing.
    """
    folder = resolve(name)
    config = _config(only_file(folder, OPTIONS))
    weights = _read(only_file(folder, WEIGHTS), config)
    with torch.device("meta"):
        model = Elmo(config, CHARACTERS)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def only_file(folder: Path, pattern: str) -> Path:
    """The file of a folder whose name is so. Raises: CheckpointError for none or several."""
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        number = "no file" if not files else f"{len(files)} files"
        raise CheckpointError(
            f"{folder}: {number} named {pattern}; the folder of an ELMo holds one options.json and "
            "one weights.hdf5"
        )
    return files[0]


def _config(path: Path) -> ElmoConfig:
    settings = read_json(path, CheckpointError, "fetch it again")
    try:
        return msgspec.convert(settings, ElmoConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}; these are no options of an ELMo") from None


def hdf5(path: Path) -> Any:
    """The library that reads and writes these files. Raises: ConfigError where it is missing."""
    try:
        import h5py
    except ImportError:
        raise ConfigError(
            f"{path}: h5py, which reads and writes these files, is not installed; "
            "pip install 'bertkit[classic]'"
        ) from None
    return h5py


def _read(path: Path, config: ElmoConfig) -> dict[str, Tensor]:
    h5py = hdf5(path)
    check_file(path, CheckpointError, most=memory.installed())
    taken: set[str] = set()

    def take(name: str, *shape: int) -> Tensor:
        taken.add(name)
        return _weight(file, name, shape)

    try:
        with h5py.File(path, "r") as file:
            weights = _weights(take, config)
            stored: list[str] = []
            file.visititems(
                lambda name, one: stored.append(name) if hasattr(one, "shape") else None
            )
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path}: no HDF5 file, or damaged ({error}); fetch it again"
        ) from None
    except _Unfit as error:
        raise CheckpointError(f"{path}: {error}; it is no ELMo of this options.json") from None
    if more := sorted(set(stored) - taken):
        raise CheckpointError(
            f"{path}: holds {more[0]}, for which options.json has no place; they do not belong "
            "together"
        )
    return weights


class _Unfit(Exception):
    """A weight that is not there, or not as the options say."""


def _weight(file: h5py.File, name: str, shape: tuple[int, ...]) -> Tensor:
    """Raises: _Unfit, also where the numbers lie in another file."""
    stored: Any = file.get(name)
    if not hasattr(stored, "shape"):
        raise _Unfit(f"has no {name}")
    if stored.shape != shape:
        raise _Unfit(f"{name} has the shape {stored.shape}, and the options say {shape}")
    if stored.dtype.kind != "f" or stored.nbytes > memory.installed():
        raise _Unfit(f"{name} holds no numbers of a weight")
    if stored.is_virtual or stored.external or stored.file.filename != file.filename:
        raise _Unfit(f"{name} lies in another file")
    return torch.from_numpy(np.asarray(stored[()], dtype=np.float32))


def _weights(take: Take, config: ElmoConfig) -> dict[str, Tensor]:
    """Our weights from theirs: TensorFlow multiplies from the right, so that all are transposed."""
    cnn, lstm = config.char_cnn, config.lstm
    width, total = cnn.embedding.dim, sum(count for _, count in cnn.filters)
    characters = take("char_embed", CHARACTERS - MASK, width)
    weights = {"words.embedding.weight": torch.cat([torch.zeros(MASK, width), characters])}
    for place, (size, count) in enumerate(cnn.filters):
        filters = take(f"CNN/W_cnn_{place}", 1, size, width, count)
        weights[f"words.convolutions.{place}.weight"] = filters[0].permute(2, 1, 0).contiguous()
        weights[f"words.convolutions.{place}.bias"] = take(f"CNN/b_cnn_{place}", count)
    for place in range(cnn.n_highway):
        for ours, theirs in (("transform", "transform"), ("gate", "carry")):
            name, where = f"words.highways.{place}.{ours}", f"CNN_high_{place}"
            weights[f"{name}.weight"] = take(f"{where}/W_{theirs}", total, total).T.contiguous()
            weights[f"{name}.bias"] = take(f"{where}/b_{theirs}", total)
    projected = take("CNN_proj/W_proj", total, lstm.projection_dim)
    weights["words.projection.weight"] = projected.T.contiguous()
    weights["words.projection.bias"] = take("CNN_proj/b_proj", lstm.projection_dim)
    for side in range(2):
        for layer in range(lstm.n_layers):
            where = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            cell = _cell(take, where, lstm.projection_dim, lstm.dim)
            weights |= {f"directions.{side}.{layer}.{name}": one for name, one in cell.items()}
    return weights


def _cell(take: Take, where: str, outputs: int, width: int) -> dict[str, Tensor]:
    """The weights of one LSTM: TensorFlow's gates are i, j, f, o, those of torch i, f, j, o, and
    TensorFlow adds 1 to what the forget gate f is given.
    """

    def ordered(gates: Tensor) -> Tensor:
        enter, new, forget, leave = gates.chunk(4, -1)
        return torch.cat([enter, forget, new, leave], -1)

    rows = ordered(take(f"{where}/W_0", 2 * outputs, 4 * width)).T
    bias = ordered(take(f"{where}/B", 4 * width))
    bias[width : 2 * width] += 1
    return {
        "input.weight": rows[:, :outputs].contiguous(),
        "input.bias": bias,
        "recurrent.weight": rows[:, outputs:].contiguous(),
        "projection.weight": take(f"{where}/W_P_0", width, outputs).T.contiguous(),
    }


# ---- what is written


def save_elmo(folder: Path, config: ElmoConfig, weights: Mapping[str, Tensor]) -> None:
    """Write the two files, with the names that allenai/bilm-tf gives and AllenNLP reads.

    `weights` are those of an `Elmo`, in fp32. The bias of a forget gate is stored less 1, so that
    one below 0.5 loses its last bits; what was once read is written again to the bit.
    """
    path = folder / WEIGHTS.removeprefix("*")
    h5py = hdf5(path)
    options = {**msgspec.to_builtins(config), "bidirectional": True}
    with writing(path) as partial, h5py.File(partial, "w") as file:
        for name, weight in _published(weights, config).items():
            file[name] = weight.detach().cpu().contiguous().numpy()
    write_json(folder / OPTIONS.removeprefix("*"), options)


def _published(weights: Mapping[str, Tensor], config: ElmoConfig) -> dict[str, Tensor]:
    """Their weights from ours: the reverse of `_weights`."""
    cnn, lstm = config.char_cnn, config.lstm
    theirs = {"char_embed": weights["words.embedding.weight"][MASK:]}
    for place in range(len(cnn.filters)):
        name = f"words.convolutions.{place}"
        theirs[f"CNN/W_cnn_{place}"] = weights[f"{name}.weight"].permute(2, 1, 0)[None]
        theirs[f"CNN/b_cnn_{place}"] = weights[f"{name}.bias"]
    for place in range(cnn.n_highway):
        for ours, name in (("transform", "transform"), ("gate", "carry")):
            highway = f"words.highways.{place}.{ours}"
            theirs[f"CNN_high_{place}/W_{name}"] = weights[f"{highway}.weight"].T
            theirs[f"CNN_high_{place}/b_{name}"] = weights[f"{highway}.bias"]
    theirs["CNN_proj/W_proj"] = weights["words.projection.weight"].T
    theirs["CNN_proj/b_proj"] = weights["words.projection.bias"]
    for side in range(2):
        for layer in range(lstm.n_layers):
            where = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            cell = f"directions.{side}.{layer}"
            rows = [weights[f"{cell}.{part}.weight"].T for part in ("input", "recurrent")]
            bias = weights[f"{cell}.input.bias"].clone()
            bias[lstm.dim : 2 * lstm.dim] -= 1
            theirs[f"{where}/W_0"] = _in_their_order(torch.cat(rows))
            theirs[f"{where}/B"] = _in_their_order(bias)
            theirs[f"{where}/W_P_0"] = weights[f"{cell}.projection.weight"].T
    return theirs


def _in_their_order(gates: Tensor) -> Tensor:
    """i, f, j, o -> i, j, f, o: what `_cell` exchanges, exchanged again."""
    enter, forget, new, leave = gates.chunk(4, -1)
    return torch.cat([enter, new, forget, leave], -1)


@dataclass(frozen=True, eq=False)
class Softmax:
    """What tells the next word from a direction's last state. Shapes: weight (V, P), bias (V,)."""

    words: Sequence[str]
    weight: Tensor
    bias: Tensor

    def save(self, folder: Path) -> None:
        """Write both files."""
        with writing(folder / SOFTMAX) as partial:
            write_tensors(partial, {"weight": self.weight, "bias": self.bias})
        write_text(folder / WORDS, "".join(f"{word}\n" for word in self.words))


def load_softmax(folder: Path, config: ElmoConfig) -> Softmax:
    """Raises: CheckpointError where there is none, as in published folders, or it does not fit."""
    if not (folder / SOFTMAX).exists():
        raise CheckpointError(
            f"{folder}: has no softmax ({SOFTMAX}), as published folders have none, and so tells "
            "no next word; pretrain one with `bertkit pretrain elmo-tiny`"
        )
    remedy = "take the folder again from its run"
    tensors, _ = read_file(folder / SOFTMAX, remedy)
    try:
        text = read_bytes(folder / WORDS, CheckpointError, most=VOCABULARY).decode()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / WORDS}: missing or damaged ({error}); {remedy}") from None
    words = text.removesuffix("\n").split("\n")
    wanted = {"weight": (len(words), config.lstm.projection_dim), "bias": (len(words),)}
    for name, shape in wanted.items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            raise CheckpointError(
                f"{folder / SOFTMAX}: {name} is missing, or is not {shape} as {WORDS} and the "
                f"options say; {remedy}"
            )
    return Softmax(words, tensors["weight"].float(), tensors["bias"].float())
