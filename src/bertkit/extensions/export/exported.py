"""Exported embedding models, which ONNX Runtime or OpenVINO runs without torch."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, get_args

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit import memory
from bertkit.errors import CheckpointError, ConfigError, check_choice
from bertkit.extensions.export.background import start_in_background
from bertkit.nn.precision import BF16_TILE_ROWS, has_amx
from bertkit.storage import check_file, read_json, sha256
from bertkit.synonyms import check_keywords
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, average_windows, cut, encode
from bertkit.text.prompts import Prompter, Prompts
from bertkit.text.tokenizer import Tokenizer
from bertkit.threads import bound, own_cores

if TYPE_CHECKING:
    pass

RECORD = "export.json"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATES, VECTORS, LOGITS = "last_hidden_state", "sentence_embedding", "logits"
"""Names of a graph's outputs: hidden states, embeddings, and logits of a head. If a graph does not
have the requested output, its first output is used."""

GRAPHS = {"onnx": ("model.onnx", "model.onnx.data"), "openvino": ("model.xml", "model.bin")}
"""Files of a graph in each format: the graph itself, and its weights, which are memory-mapped. The
file of an ONNX graph can also contain the weights."""

MAX_BATCH_TOKENS = 4096
"""Maximum number of tokens in a batch, including padding."""

MAX_DIMENSION = 1 << 16
"""Maximum dimension of embeddings."""

GraphPrecision = Literal["auto", "fp32", "bf16"]
Runtime = Literal["onnxruntime", "openvino"]

PART_TEXTS = 4096
"""Number of texts that are tokenized at a time."""


class ExportRecord(msgspec.Struct, frozen=True):
    """The record that describes an exported directory.

    Attributes:
        kind: Format of the graph.
        sha256: SHA-256 hash of each file of the graph.
        dimension: Dimension of the embeddings.
        length: Maximum number of tokens in a text.
        prompts: Prompts of the model.
        fingerprint: Hash of the model and its pooling, by which a store recognizes its model.
        similarity: Similarity function of the embeddings.
        normalize: Whether the caller must normalize the embeddings to length 1.
        labels: Labels of the task whose head was exported.
        settings: Settings of the task whose head was exported.
    """

    kind: Literal["onnx", "openvino"]
    sha256: dict[str, str]
    dimension: Annotated[int, Meta(ge=1, le=MAX_DIMENSION)]
    length: Annotated[int, Meta(ge=3)]
    prompts: Prompts = msgspec.field(default_factory=Prompts)
    fingerprint: str = ""
    similarity: str = "cosine"
    normalize: bool = False
    labels: tuple[str, ...] = ()
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


def hash_files(folder: Path, kind: str) -> dict[str, str]:
    """Compute the SHA-256 hash of each existing file of a graph.

    Args:
        folder: Directory of the graph.
        kind: Format of the graph.
    """
    digests = {name: _hash(folder / name) for name in GRAPHS[kind]}
    return {name: digest for name, digest in digests.items() if digest is not None}


def _hash(path: Path) -> str | None:
    """Return the hash of a file, or None if it does not exist."""
    try:
        check_file(path, CheckpointError, most=memory.installed())
    except FileNotFoundError:
        return None
    return sha256(path)


class Graph:
    """An exported graph, which computes embeddings or another output.

    A thread loads the graph in the background, and the first computation waits until it is loaded.
    If the weights are damaged, `ready` or the first computation raises the error.

    Args:
        folder: Directory of the graph.
        precision: Precision of the computation.
        output: Name of the output to compute.
        runtime: Runtime to use. Both runtimes can run an ONNX file. Default: the runtime that the
            format is named after.
        maker: Command that creates such a directory, for messages.

    Raises:
        CheckpointError: If the directory does not contain an exported graph, or the graph was
            changed.
        ConfigError: If the runtime does not support the precision.
    """

    def __init__(
        self,
        folder: Path,
        precision: GraphPrecision = "fp32",
        output: str = VECTORS,
        runtime: Runtime | None = None,
        maker: Literal["export", "export tune"] = "export",
    ) -> None:
        check_choice("precision", precision, get_args(GraphPrecision))
        self._remedy = f"run `bertkit {maker}` again"
        try:
            record = read_json(folder / RECORD, CheckpointError, self._remedy)
            self.record = msgspec.convert(record, type=ExportRecord)
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder}: exported graph not found; create it with `bertkit {maker}`"
            ) from None
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"{folder / RECORD}: the record is invalid ({error}); run `bertkit {maker}` again"
            ) from None
        is_onnx = (runtime or self.record.kind).startswith("onnx")
        if is_onnx and precision == "bf16":
            raise ConfigError(f"precision: {precision} is not supported by ONNX Runtime; use fp32")
        self.output = output
        self.tile = BF16_TILE_ROWS if not is_onnx and precision != "fp32" and has_amx() else 1
        self.width = len(self.record.labels) if output == LOGITS else self.record.dimension
        self._path, weights = (folder / name for name in GRAPHS[self.record.kind])
        # Check the graph before a runtime reads it. The weights can be checked later, because wrong
        # weights can only give wrong results.
        self._check(self._path)
        with suppress(FileNotFoundError):
            check_file(weights, CheckpointError, most=memory.installed())
        wait_for_check = start_in_background(partial(self._check, weights))
        with _usable(self._path, self._remedy):
            # Import the runtime in this thread, because an import blocks other threads.
            importlib.import_module("onnxruntime" if is_onnx else "openvino")
        wait_for_graph = start_in_background(
            partial(load_onnx, self._path)
            if is_onnx
            else partial(load_openvino, self._path, precision)
        )

        def run() -> GraphOutput:
            wait_for_check()
            with _usable(self._path, self._remedy):
                return wait_for_graph()

        self._run = run

    def _check(self, path: Path) -> None:
        """Raise CheckpointError if the hash of a file differs from the record."""
        if _hash(path) != self.record.sha256.get(path.name):
            raise CheckpointError(f"{path}: the file is missing or was changed; {self._remedy}")

    def ready(self) -> None:
        """Wait until the graph is loaded and its weights have been checked."""
        self._run()

    def rows(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Compute the output row of each text, in batches of similar length to minimize padding.

        Args:
            encodings: Encodings of the texts.

        Shapes:
            Returns (S, D).
        """
        order = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
        vectors = np.empty((len(encodings), self.width), np.float32)
        for part in split_by_width([len(encodings[index]) for index in order], self.tile):
            indices = order[part]
            rows = [encodings[index] for index in indices]
            vectors[indices] = self.run(self.inputs([e.ids for e in rows], [e.types for e in rows]))
        return vectors

    def inputs(
        self, ids: Sequence[NDArray[np.int64]], types: Sequence[NDArray[np.int64]]
    ) -> dict[str, NDArray[np.int64]]:
        """Pad sequences to the same length, which is a multiple of the runtime's tile size.

        A runtime prepares itself for each new length, which takes longer than computing the
        padding.

        Args:
            ids: Token ids of each sequence.
            types: Token types of each sequence.

        Returns:
            The inputs of the graph, by name.

        Shapes:
            Returns (B, T) each.
        """
        longest = max(map(len, ids))
        return pad(ids, types, min(longest + -longest % self.tile, self.record.length))

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Compute the output row of each sequence.

        Args:
            inputs: Inputs of the graph, as returned by `Graph.inputs`.

        Raises:
            CheckpointError: If the graph fails, or its output has an unexpected shape.

        Shapes:
            inputs: (B, T) each; returns (B, D).
        """
        return self._checked(inputs, self.output, (len(inputs["input_ids"]), self.width))

    def states(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Compute the hidden states of all tokens, including padding.

        Args:
            inputs: Inputs of the graph, as returned by `Graph.inputs`.

        Raises:
            CheckpointError: If the graph fails, or its output has an unexpected shape.

        Shapes:
            inputs: (B, T) each; returns (B, T, D).
        """
        return self._checked(inputs, STATES, inputs["input_ids"].shape)

    def _checked(
        self, inputs: dict[str, NDArray[np.int64]], output: str, shape: tuple[int, ...]
    ) -> NDArray[np.float32]:
        """Compute an output, and check that its first dimensions have the given sizes."""
        run = self._run()
        with _usable(self._path, self._remedy):
            values = run(inputs, output)
        if values.shape[: len(shape)] != shape:
            raise CheckpointError(
                f"{self._path}: expected an output of shape {shape}, got {values.shape}; "
                f"{self._remedy}"
            )
        return np.asarray(values, np.float32)


@contextmanager
def _usable(path: Path, remedy: str) -> Iterator[None]:
    """Convert all errors that a runtime raises to CheckpointError."""
    try:
        yield
    except ImportError as error:
        raise CheckpointError(
            f"{path}: a package is not installed ({error}); run pip install 'bertkit[export]'"
        ) from None
    except Exception as error:
        raise CheckpointError(f"{path}: the runtime failed ({error}); {remedy}") from None


class Exported:
    """An exported embedding model.

    Args:
        folder: Directory that `bertkit export` wrote.
        precision: Precision of the computation.
        graph: The graph in the directory, if it is already loaded.
    """

    windows = False
    """Whether long texts can be split into overlapping windows. If the graph itself normalizes
    embeddings, their mean over windows would differ from what the model computes."""

    def __init__(
        self, folder: str | Path, precision: GraphPrecision = "fp32", graph: Graph | None = None
    ) -> None:
        self.graph = graph or Graph(Path(folder), precision)
        self.tokenizer = Tokenizer.load(Path(folder))
        self.graph.ready()
        self.dimension, self.length = self.graph.record.dimension, self.graph.record.length
        self.prompt = Prompter(self.graph.record.prompts)
        self.normalize = self.graph.record.normalize

    def fingerprint(self) -> str:
        """Return the fingerprint of the model from which the graph was exported."""
        return self.graph.record.fingerprint

    @check_keywords
    def __call__(
        self, texts: str | Sequence[str], *, long: Long = "error", prompt: str | None = None
    ) -> NDArray[np.float32]:
        """Compute an embedding for each text. For a single text, the result has one row.

        Args:
            texts: A text or a list of texts.
            long: What to do with texts that exceed the maximum length.
            prompt: Name of one of the model's prompts, or a literal prompt.

        Returns:
            The embeddings in fp32.

        Raises:
            ConfigError: If the prompt or the value of `long` is not supported.
            DataError: If a text is too long and `long` is error.

        Shapes:
            Returns (S, D).
        """
        texts = [texts] if isinstance(texts, str) else texts
        empty = np.empty((0, self.dimension), np.float32)
        parts = self.stream(texts, long=long, prompt=prompt)
        return np.concatenate([empty, *(part for part, _ in parts)])

    def stream(
        self, texts: Iterable[str], *, long: Long = "error", prompt: str | None = None
    ) -> Iterator[tuple[NDArray[np.float32], list[bool]]]:
        """Yield the embeddings of texts part by part, and whether each text was truncated.

        Args:
            texts: Any number of texts.
            long: What to do with texts that exceed the maximum length.
            prompt: Name of one of the model's prompts, or a literal prompt.

        Raises:
            ConfigError: If the prompt or the value of `long` is not supported.
            DataError: If a text is too long and `long` is error.
        """
        if long == "window" and not self.windows:
            raise ConfigError(
                "exported graphs do not support long = window; use truncate, or use the original "
                "model"
            )
        rest = iter(texts)
        while part := list(itertools.islice(rest, PART_TEXTS)):
            prompts = [self.prompt(prompt)] * len(part)
            encodings, owner = encode(
                self.tokenizer,
                part,
                length=self.length,
                long=long,
                prompts=prompts,
                windowed=self.windows,
            )
            yield self.vectors(encodings, owner), cut(encodings, owner)

    def vectors(
        self, encodings: Sequence[Encoding], owner: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Compute an embedding for each text.

        Args:
            encodings: Encodings of texts, or of windows of texts.
            owner: Index of the text to which each window belongs. Default: each encoding is a whole
                text.

        Shapes:
            Returns (S, D).
        """
        rows = self.graph.rows(encodings)
        if owner is not None:
            rows = average_windows(rows, encodings, owner)
        if self.normalize:
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows


def split_by_width(lengths: Sequence[int], tile: int = 1) -> Iterator[slice]:
    """Split texts into batches of at most `MAX_BATCH_TOKENS` tokens, including padding.

    A text that is longer than this is a separate batch.

    Args:
        lengths: Number of tokens of each text, in ascending order.
        tile: Lengths are padded to a multiple of this number.
    """
    widths = [length + -length % tile for length in lengths]
    start = 0
    while start < len(widths):
        end = start + 1
        while end < len(widths) and (end + 1 - start) * widths[end] <= MAX_BATCH_TOKENS:
            end += 1
        yield slice(start, end)
        start = end


def pad(
    ids: Sequence[NDArray[np.int64]], types: Sequence[NDArray[np.int64]], length: int = 0
) -> dict[str, NDArray[np.int64]]:
    """Pad sequences to the length of the longest sequence, or to `length` if that is larger.

    Args:
        ids: Token ids of each sequence.
        types: Token types of each sequence.
        length: Minimum length to pad to.

    Returns:
        The inputs of a graph, by name.

    Shapes:
        Returns (B, T) each.
    """
    shape = len(ids), max(length, *map(len, ids))
    inputs = {name: np.zeros(shape, np.int64) for name in INPUTS}
    for row, (row_ids, segments) in enumerate(zip(ids, types, strict=True)):
        inputs["input_ids"][row, : len(row_ids)] = row_ids
        inputs["attention_mask"][row, : len(row_ids)] = 1
        inputs["token_type_ids"][row, : len(row_ids)] = segments
    return inputs


class GraphOutput(Protocol):
    """A function that computes one output of a graph, by default or for an unknown name the first.

    Inputs that the graph does not have are ignored.
    """

    @check_keywords
    def __call__(
        self, inputs: dict[str, NDArray[np.int64]], output: str = VECTORS, /
    ) -> NDArray[np.float32]: ...


def load_onnx(path: Path) -> GraphOutput:
    """Load a graph in ONNX Runtime, with as many threads as this process may use.

    Args:
        path: File of the graph.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_cores()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {put.name for put in session.get_inputs()}
    outputs = [put.name for put in session.get_outputs()]

    def run(inputs: dict[str, NDArray[np.int64]], output: str = VECTORS, /) -> NDArray[np.float32]:
        used = {name: value for name, value in inputs.items() if name in names}
        (values,) = session.run([output if output in outputs else outputs[0]], used)
        return np.asarray(values)

    return run


def load_openvino(path: Path, precision: GraphPrecision) -> GraphOutput:
    """Load a graph in OpenVINO. It computes only one batch at a time.

    Args:
        path: File of the graph.
        precision: Precision of the computation.
    """
    import openvino

    hints: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": own_cores(),
        "NUM_STREAMS": 1,
        # Pinned threads always use the first cores, which would be the same ones in every worker.
        "ENABLE_CPU_PINNING": own_cores() == bound(),
    }
    # By default, OpenVINO uses bf16 if the processor supports it.
    if precision != "auto":
        hints["INFERENCE_PRECISION_HINT"] = {"fp32": "f32", "bf16": "bf16"}[precision]
    model = openvino.Core().compile_model(path, "CPU", hints)
    names = {name for put in model.inputs for name in put.names}
    outputs = {name for put in model.outputs for name in put.names}
    request, lock = model.create_infer_request(), Lock()

    def run(inputs: dict[str, NDArray[np.int64]], output: str = VECTORS, /) -> NDArray[np.float32]:
        used = {name: value for name, value in inputs.items() if name in names}
        # Only one thread at a time can use the inference request.
        with lock:
            values = request.infer(used)[output if output in outputs else 0]
            return np.array(values, dtype=np.float32)

    return run
