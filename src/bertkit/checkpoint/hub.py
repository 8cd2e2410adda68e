"""Functions that download models from the Hugging Face Hub, and upload models to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bertkit.checkpoint.run_directory import EXPERIMENT, RUN, SCORES, TEST, TUNING_FILE
from bertkit.errors import CheckpointError

WEIGHT_FILES = ("*.safetensors", "*.hdf5", "vectors.txt.gz")
"""File name patterns of weights."""

OTHER_FILES = ("*model.pt", "*model.pth")
"""File name patterns of weights that are used only if a model has neither safetensors nor .bin
files."""

PYTORCH_FILES = ("pytorch_model*.bin", "adapter_model.bin", *OTHER_FILES)
"""File name patterns of weights that are used only if a model has no safetensors files."""

PICKLES = {".bin", ".pt", ".pth"}
"""Suffixes of PyTorch files."""

MODEL_FILES = ("*.json", "*.txt", "*.spm", "*.model", "[0-9]_*/pytorch_model*.bin", *WEIGHT_FILES)
"""File name patterns of a model: weights, settings, and vocabulary, but no code.

A dense layer of sentence-transformers is in a directory such as `2_Dense`.
"""

RECORDS = (RUN, SCORES, EXPERIMENT, TEST, TUNING_FILE)
"""Files that describe a training run or a machine, and are not part of the model."""

ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""Regular expression that matches a hub id."""


def resolve(name: str | Path, revision: str | None = None) -> Path:
    """Return the local path of a model, and download the model first if it is on the hub.

    Args:
        name: Local path, or hub id such as `google-bert/bert-base`.
        revision: Branch, tag, or commit of a model on the hub.

    Raises:
        CheckpointError: If the model does not exist, or cannot be downloaded.
    """
    value: object = name  # Untyped callers can pass any value.
    if not isinstance(value, str | Path) or not str(value):
        actual = "an empty name" if value == "" else type(value).__name__
        raise CheckpointError(f"model: expected a path or hub id, got {actual}")
    folder = Path(name).expanduser()
    if folder.is_dir() or folder.is_file():
        return folder
    if isinstance(name, Path) or not ID.fullmatch(name):
        raise CheckpointError(f"{name}: no such directory; check the path, or pass a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # This is the base class of errors in the HTTP client that huggingface_hub uses.
    transport: type[Exception] = HfHubHTTPError.__bases__[0]
    # Tuning results are valid only on the machine that computed them.
    options: dict[str, Any] = {"revision": revision, "ignore_patterns": [TUNING_FILE]}
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(MODEL_FILES), **options))
        if not has_weights(folder):
            snapshot_download(name, allow_patterns=list(PYTORCH_FILES), **options)
        return folder
    except GatedRepoError:
        reason = "the model is gated; accept its terms on the hub and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "neither a local directory nor a model on the hub; check the spelling"
    except RevisionNotFoundError:
        reason = f"revision {revision!r} not found on the hub; check the spelling"
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        reason = "no such directory, and the hub cannot be reached; check the path or connection"
    except (HfHubHTTPError, OSError, ValueError, transport) as error:
        reason = f"download from the hub failed ({_first_line(error)})"
    raise CheckpointError(f"{name}: {reason}")


def model_files(folder: Path) -> list[str]:
    """Return the relative paths of a model's files: weights, settings, and vocabulary.

    They include files in the subdirectories of sentence-transformers modules and frozen models.
    """
    modules = ("", "[0-9]_*/", "base/", "base/[0-9]_*/")
    kinds = (module + kind for module in modules for kind in (*MODEL_FILES, *PYTORCH_FILES))
    files = [path for kind in kinds for path in folder.glob(kind)]
    used = [f for f in files if f.suffix not in PICKLES or not has_weights(f.parent)]
    return sorted({path.relative_to(folder).as_posix() for path in used} - set(RECORDS))


def has_weights(folder: Path) -> bool:
    """Return whether a directory contains weight files that are not PyTorch pickles."""
    return any(next(folder.glob(kind), None) for kind in WEIGHT_FILES)


def published(folder: Path) -> list[str]:
    """Return the files of a model directory to publish: the model and its model card."""
    return sorted([*model_files(folder), *(path.name for path in folder.glob("README.md"))])


def push(folder: Path, name: str, files: list[str], *, private: bool, message: str) -> str:
    """Upload files to a model repository on the hub, and create the repository if necessary.

    Args:
        folder: Directory that contains the files.
        name: Hub id of the model.
        files: Paths of the files, relative to the directory.
        private: Whether a newly created repository is private.
        message: Commit message.

    Returns:
        URL of the model.

    Raises:
        CheckpointError: If the upload fails. The message contains the reason.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    # This is the base class of errors in the HTTP client that huggingface_hub uses.
    transport: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=files, commit_message=message
        )
        return f"{api.endpoint}/{name}"
    except LocalTokenNotFoundError:
        reason = "the hub requires a token; set HF_TOKEN"
    except HfHubHTTPError as error:
        code = error.response.status_code
        reason = {
            401: "invalid token; set HF_TOKEN to a token with write permission",
            403: "no write permission; use a token with permission, or your own namespace",
        }.get(code, f"the hub rejected the upload ({_first_line(error)})")
    except (OSError, RuntimeError, ValueError, transport) as error:
        reason = f"upload to the hub failed ({_first_line(error)})"
    raise CheckpointError(f"{name}: {reason}")


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's type if there is no message."""
    return (str(error) or type(error).__name__).splitlines()[0]
