"""From a name to a folder: local paths first, then the hub."""

from __future__ import annotations

import re
from pathlib import Path

from bertkit.checkpoint.run_directory import EXPERIMENT, RUN, SCORES, TEST, TUNING_FILE
from bertkit.errors import CheckpointError

MODEL_FILES = ("*.json", "*.txt", "*.safetensors", "*.spm", "*.hdf5", "vectors.txt.gz")
"""Patterns of the files of a model: weights, settings, and vocabulary. No pickle, no code."""

RECORDS = (RUN, SCORES, EXPERIMENT, TEST, TUNING_FILE)
"""Of a run or a machine, and not of the model."""

ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""A model's name on the hub."""


def resolve(name: str | Path, revision: str | None = None) -> Path:
    """Return the directory or file of a model, which is downloaded if it is a hub id.

    Args:
        name: Local path, or hub id such as `google-bert/bert-base`.
        revision: Branch, tag, or commit of the hub.

    Raises:
        CheckpointError: If the model does not exist, or cannot be downloaded.
    """
    what: object = name  # callers are programs, which may give anything
    if not isinstance(what, str | Path) or not str(what):
        given = "an empty name" if what == "" else f"a {type(what).__name__}"
        raise CheckpointError(f"model: {given} names none; give its folder or hub id")
    folder = Path(name).expanduser()
    if folder.is_dir() or folder.is_file():
        return folder
    if isinstance(name, Path) or not ID.fullmatch(name):
        raise CheckpointError(f"{name}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(MODEL_FILES),
                ignore_patterns=[TUNING_FILE],  # what was fastest on a stranger's machine
            )
        )
    except GatedRepoError:
        reason = "the hub asks for permission; accept its terms and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "neither a folder here nor a model on the hub"
    except RevisionNotFoundError:
        reason = f"the hub has no revision {revision!r} of it"
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        reason = "no such folder here, and the hub cannot be reached"
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = f"cannot be fetched from the hub ({str(error).splitlines()[0]})"
    raise CheckpointError(f"{name}: {reason}")


def model_files(folder: Path) -> list[str]:
    """Return the files of a model directory: weights, settings, and vocabulary.

    They include modules of sentence-transformers and a frozen model, which have subdirectories.
    """
    modules = ("", "[0-9]_*/", "base/", "base/[0-9]_*/")
    patterns = (module + kind for module in modules for kind in MODEL_FILES)
    files = {path.relative_to(folder).as_posix() for p in patterns for path in folder.glob(p)}
    return sorted(files - set(RECORDS))


def published(folder: Path) -> list[str]:
    """Return the files of a model directory that other users need: the model and its card."""
    return sorted([*model_files(folder), *(path.name for path in folder.glob("README.md"))])


def push(folder: Path, name: str, files: list[str], *, private: bool, message: str) -> str:
    """Publish these files of a folder as a model, which is made if it is not there; its address.

    Raises: CheckpointError with the hub's reason.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    transport: type[Exception] = HfHubHTTPError.__bases__[0]  # what the hub's client sends by
    try:
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=files, commit_message=message
        )
    except LocalTokenNotFoundError:
        reason = "the hub wants to know who you are; set HF_TOKEN"
    except HfHubHTTPError as error:
        code = error.response.status_code
        reason = {
            401: "the hub does not know you; set HF_TOKEN to a token of yours that may write",
            403: "the hub does not let you write there; take a token that may, or your own name",
        }.get(code, f"the hub refuses it ({str(error).splitlines()[0]})")
    except (OSError, RuntimeError, ValueError, transport) as error:
        said = str(error) or type(error).__name__
        reason = f"cannot be sent to the hub ({said.splitlines()[0]})"
    else:
        return f"{api.endpoint}/{name}"
    raise CheckpointError(f"{name}: {reason}")
