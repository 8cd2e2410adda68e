"""ELMo directories in the published format: settings in a JSON file, weights in one HDF5 file.

A directory from `bertkit pretrain` also contains the softmax layer of the language model in
`softmax.safetensors`, and the words that it predicts in `words.txt`, one per line.
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
"""Patterns of the two file names. Published file names have a prefix with the size of the model."""

SOFTMAX, WORDS = "softmax.safetensors", "words.txt"
"""Files with the weights of the softmax layer, and with the words that it predicts. Published
directories contain neither."""

Take = Callable[..., Tensor]
"""Function that returns a weight, given its name in the file and its expected shape."""


def load_elmo(name: str | Path) -> Elmo:
    """Load an ELMo from a directory with the files `options.json` and `weights.hdf5`.

    The file names may have a prefix.

    Args:
        name: The directory, or a hub id.

    Raises:
        CheckpointError: If a file is missing or damaged, or the weights do not match the options.
        ConfigError: If h5py is not installed.
    """
    folder = resolve(name)
    config = _config(only_file(folder, OPTIONS))
    weights = _read(only_file(folder, WEIGHTS), config)
    with torch.device("meta"):
        model = Elmo(config, CHARACTERS)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def only_file(folder: Path, pattern: str) -> Path:
    """Return the only file in a directory whose name matches a pattern.

    Args:
        folder: The directory.
        pattern: Pattern of the file name.

    Raises:
        CheckpointError: If no file or several files match.
    """
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        number = "no file" if not files else f"{len(files)} files"
        raise CheckpointError(
            f"{folder}: contains {number} named {pattern}; an ELMo directory must contain exactly "
            "one options.json and one weights.hdf5"
        )
    return files[0]


def _config(path: Path) -> ElmoConfig:
    settings = read_json(path, CheckpointError, "download the file again")
    try:
        return msgspec.convert(settings, ElmoConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{path}: invalid settings of an ELMo ({error}); download the file again"
        ) from None


def hdf5(path: Path) -> Any:
    """Import h5py, and return the module.

    Args:
        path: The file that requires it, for the error message.

    Raises:
        ConfigError: If h5py is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise ConfigError(
            f"{path}: requires h5py, which is not installed; run pip install 'bertkit[classic]'"
        ) from None
    return h5py


def _read(path: Path, config: ElmoConfig) -> dict[str, Tensor]:
    h5py = hdf5(path)
    check_file(path, CheckpointError, most=memory.installed())
    used: set[str] = set()

    def take(name: str, *shape: int) -> Tensor:
        used.add(name)
        return _weight(file, name, shape)

    try:
        with h5py.File(path, "r") as file:
            weights = _weights(take, config)
            stored: list[str] = []
            file.visititems(
                lambda name, item: stored.append(name) if hasattr(item, "shape") else None
            )
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path}: not a valid HDF5 file ({error}); download the file again"
        ) from None
    except _ShapeError as error:
        raise CheckpointError(f"{path}: {error}; use the options.json of this model") from None
    if unused := sorted(set(stored) - used):
        raise CheckpointError(
            f"{path}: contains {unused[0]}, which is not in options.json; use the options.json of "
            "this model"
        )
    return weights


class _ShapeError(Exception):
    """Error for a weight that is missing or does not match the options."""


def _weight(file: h5py.File, name: str, shape: tuple[int, ...]) -> Tensor:
    """Read a weight.

    Raises:
        _ShapeError: If the weight is missing, has another shape, or is stored in another file.
    """
    stored: Any = file.get(name)
    if not hasattr(stored, "shape"):
        raise _ShapeError(f"{name} is missing")
    if stored.shape != shape:
        raise _ShapeError(f"{name} must have shape {shape} as in the options, got {stored.shape}")
    if stored.dtype.kind != "f" or stored.nbytes > memory.installed():
        raise _ShapeError(f"{name} does not contain the values of a weight")
    if stored.is_virtual or stored.external or stored.file.filename != file.filename:
        raise _ShapeError(f"{name} is stored in another file")
    return torch.from_numpy(np.asarray(stored[()], dtype=np.float32))


def _weights(take: Take, config: ElmoConfig) -> dict[str, Tensor]:
    """Convert published weights to weights of an `Elmo`.

    Matrices are transposed, because TensorFlow computes x W.
    """
    cnn, lstm = config.char_cnn, config.lstm
    width, total = cnn.embedding.dim, sum(count for _, count in cnn.filters)
    characters = take("char_embed", CHARACTERS - MASK, width)
    weights = {"words.embedding.weight": torch.cat([torch.zeros(MASK, width), characters])}
    for index, (size, count) in enumerate(cnn.filters):
        filters = take(f"CNN/W_cnn_{index}", 1, size, width, count)
        weights[f"words.convolutions.{index}.weight"] = filters[0].permute(2, 1, 0).contiguous()
        weights[f"words.convolutions.{index}.bias"] = take(f"CNN/b_cnn_{index}", count)
    for index in range(cnn.n_highway):
        for part, source in (("transform", "transform"), ("gate", "carry")):
            name, path = f"words.highways.{index}.{part}", f"CNN_high_{index}"
            weights[f"{name}.weight"] = take(f"{path}/W_{source}", total, total).T.contiguous()
            weights[f"{name}.bias"] = take(f"{path}/b_{source}", total)
    projected = take("CNN_proj/W_proj", total, lstm.projection_dim)
    weights["words.projection.weight"] = projected.T.contiguous()
    weights["words.projection.bias"] = take("CNN_proj/b_proj", lstm.projection_dim)
    for side in range(2):
        for layer in range(lstm.n_layers):
            path = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            cell = _cell(take, path, lstm.projection_dim, lstm.dim)
            weights |= {f"directions.{side}.{layer}.{name}": value for name, value in cell.items()}
    return weights


def _cell(take: Take, path: str, outputs: int, width: int) -> dict[str, Tensor]:
    """Convert the published weights of one LSTM.

    The order of the gates is i, j, f, o in TensorFlow, and i, f, j, o in torch. TensorFlow adds 1
    to the bias of the forget gate f when it computes, so 1 is added to the stored bias.
    """

    def reorder(gates: Tensor) -> Tensor:
        enter, new, forget, leave = gates.chunk(4, -1)
        return torch.cat([enter, forget, new, leave], -1)

    rows = reorder(take(f"{path}/W_0", 2 * outputs, 4 * width)).T
    bias = reorder(take(f"{path}/B", 4 * width))
    bias[width : 2 * width] += 1
    return {
        "input.weight": rows[:, :outputs].contiguous(),
        "input.bias": bias,
        "recurrent.weight": rows[:, outputs:].contiguous(),
        "projection.weight": take(f"{path}/W_P_0", width, outputs).T.contiguous(),
    }


# ---- Saving


def save_elmo(folder: Path, config: ElmoConfig, weights: Mapping[str, Tensor]) -> None:
    """Save an ELMo as options.json and weights.hdf5, which AllenNLP can load.

    The weights have their names in allenai/bilm-tf. The format requires that 1 is subtracted from
    the bias of a forget gate, so a value below 0.5 loses its last bits. Weights that were loaded
    from this format are saved without any change.

    Args:
        folder: The output directory.
        config: Settings of the model.
        weights: Weights of an `Elmo`, in fp32.
    """
    path = folder / WEIGHTS.removeprefix("*")
    h5py = hdf5(path)
    options = {**msgspec.to_builtins(config), "bidirectional": True}
    with writing(path) as partial, h5py.File(partial, "w") as file:
        for name, weight in _to_published(weights, config).items():
            file[name] = weight.detach().cpu().contiguous().numpy()
    write_json(folder / OPTIONS.removeprefix("*"), options)


def _to_published(weights: Mapping[str, Tensor], config: ElmoConfig) -> dict[str, Tensor]:
    """Convert the weights of an `Elmo` to the published format. It is the inverse of `_weights`."""
    cnn, lstm = config.char_cnn, config.lstm
    published = {"char_embed": weights["words.embedding.weight"][MASK:]}
    for index in range(len(cnn.filters)):
        name = f"words.convolutions.{index}"
        published[f"CNN/W_cnn_{index}"] = weights[f"{name}.weight"].permute(2, 1, 0)[None]
        published[f"CNN/b_cnn_{index}"] = weights[f"{name}.bias"]
    for index in range(cnn.n_highway):
        for part, name in (("transform", "transform"), ("gate", "carry")):
            highway = f"words.highways.{index}.{part}"
            published[f"CNN_high_{index}/W_{name}"] = weights[f"{highway}.weight"].T
            published[f"CNN_high_{index}/b_{name}"] = weights[f"{highway}.bias"]
    published["CNN_proj/W_proj"] = weights["words.projection.weight"].T
    published["CNN_proj/b_proj"] = weights["words.projection.bias"]
    for side in range(2):
        for layer in range(lstm.n_layers):
            path = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            cell = f"directions.{side}.{layer}"
            rows = [weights[f"{cell}.{part}.weight"].T for part in ("input", "recurrent")]
            bias = weights[f"{cell}.input.bias"].clone()
            bias[lstm.dim : 2 * lstm.dim] -= 1
            published[f"{path}/W_0"] = _reorder_gates(torch.cat(rows))
            published[f"{path}/B"] = _reorder_gates(bias)
            published[f"{path}/W_P_0"] = weights[f"{cell}.projection.weight"].T
    return published


def _reorder_gates(gates: Tensor) -> Tensor:
    """Reorder gates from i, f, j, o (torch) to i, j, f, o (TensorFlow)."""
    enter, forget, new, leave = gates.chunk(4, -1)
    return torch.cat([enter, new, forget, leave], -1)


@dataclass(frozen=True, eq=False)
class Softmax:
    """Softmax layer that predicts a word from the last-layer state of the forward or backward LSTM.

    Shapes:
        weight: (V, P).
        bias: (V,).
    """

    words: Sequence[str]
    weight: Tensor
    bias: Tensor

    def save(self, folder: Path) -> None:
        """Save the weights and the words to two files in a directory."""
        with writing(folder / SOFTMAX) as partial:
            write_tensors(partial, {"weight": self.weight, "bias": self.bias})
        write_text(folder / WORDS, "".join(f"{word}\n" for word in self.words))


def load_softmax(folder: Path, config: ElmoConfig) -> Softmax:
    """Load the softmax layer of an ELMo.

    Args:
        folder: Directory of the ELMo.
        config: Settings of the ELMo.

    Raises:
        CheckpointError: If the softmax layer is missing, as in published directories, or does not
            match the settings.
    """
    if not (folder / SOFTMAX).exists():
        raise CheckpointError(
            f"{folder}: {SOFTMAX} not found, so the model cannot predict words; pretrain an ELMo "
            "with `bertkit pretrain elmo-tiny`"
        )
    remedy = "copy the output directory of the run again"
    tensors, _ = read_file(folder / SOFTMAX, remedy)
    try:
        text = read_bytes(folder / WORDS, CheckpointError, most=VOCABULARY).decode()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / WORDS}: missing or damaged ({error}); {remedy}") from None
    words = text.removesuffix("\n").split("\n")
    shapes = {"weight": (len(words), config.lstm.projection_dim), "bias": (len(words),)}
    for name, shape in shapes.items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            raise CheckpointError(
                f"{folder / SOFTMAX}: {name} is missing, or does not have the shape {shape} that "
                f"{WORDS} and the options require; {remedy}"
            )
    return Softmax(words, tensors["weight"].float(), tensors["bias"].float())
