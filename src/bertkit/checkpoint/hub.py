"""From a name to a folder: local paths first, then the hub."""

from __future__ import annotations

import re
from pathlib import Path

from bertkit.checkpoint import g2p, gguf
from bertkit.errors import CheckpointError

WANTED = ("*.json", "*.txt", "*.safetensors", "*/config.json")
"""What is fetched: weights and plain data. No pickle, no code."""


FILES = (gguf.SUFFIX, g2p.SUFFIX)
"""How a model's name ends that is a file, and no folder."""


def resolve(name: str | Path, revision: str | None = None) -> Path:
    """The folder, GGUF or .npz file of a model named by a local path, or by a hub id such as
    `google-bert/bert-base`.

    `revision` is a branch, tag or commit of the hub; a full commit is exact.
    Raises: CheckpointError when it is neither, or cannot be fetched.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_file() and folder.suffix in FILES:
        return folder
    if folder.is_file():
        raise CheckpointError(f"{folder}: a file, not the folder of a model; name its folder")
    if isinstance(name, Path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
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
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
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
