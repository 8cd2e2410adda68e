"""Safe reading of PyTorch files (`.bin`, `.pt`): they are pickles, but no code is run."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bertkit import memory
from bertkit.errors import CheckpointError
from bertkit.storage import check_file

MAX_PICKLE_BYTES = 64 << 20
"""Maximum size in bytes of the pickle in a zip archive. It contains tensor names and shapes, but
no values."""


def read_pytorch(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a PyTorch file, by name.

    With `weights_only=True`, `torch.load` creates only tensors, containers, and numbers. Zip
    archives, the format of torch 1.6 and later, are memory-mapped. Older files are read completely.

    Args:
        path: File with a state dict, written by `torch.save`.

    Raises:
        CheckpointError: If the file is missing, damaged, or not a state dict, or if its pickle
            contains objects of other types.
    """
    try:
        check_file(path, CheckpointError, most=memory.installed())
        is_archive = zipfile.is_zipfile(path)
        if is_archive:
            _check_archive(path)
        with warnings.catch_warnings():
            # torch warns about pickle protocols that torch.save does not use.
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
        return _check_tensors(content)
    except CheckpointError:
        raise
    except Exception as error:
        # The unpickler can raise any exception for a damaged file.
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise CheckpointError(
                f"{path}: its pickle refers to {found[1]}, which bertkit does not load, because it "
                "could run code; if you trust the file, convert it to safetensors"
            ) from None
        # The beginning of torch's message is removed, because it recommends unsafe loading.
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].split("\n")[0][:200]
        if not reason or reason.startswith("Weights only"):
            reason = type(error).__name__
        raise CheckpointError(
            f"{path}: not a readable state dict ({reason}); download it again, or convert a file "
            "that you trust to safetensors"
        ) from None


def _check_archive(path: Path) -> None:
    """Check that the content of a zip archive is not larger than the archive itself.

    Raises:
        ValueError: If an entry is compressed, entries overlap, or the pickle is too large.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{entry.filename} is compressed, which torch.save does not do")
        if entry.filename.endswith("data.pkl") and entry.file_size > MAX_PICKLE_BYTES:
            raise ValueError(f"{entry.filename} has more than {MAX_PICKLE_BYTES:,} bytes")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its entries overlap")


def _check_tensors(content: object) -> dict[str, Tensor]:
    """Check that the content of a file is a state dict, and return it.

    Raises:
        ValueError: If a value is not a dense tensor on the CPU, or the shape of a tensor is larger
            than its storage.
    """
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise ValueError("not a state dict")
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(f"{name}: not a dense tensor")
        if tensor.device.type != "cpu":
            raise ValueError(f"{name}: the tensor has no values")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{name}: the shape requires more values than the file contains")
    return {name: tensor.detach() for name, tensor in content.items()}
