"""Vectors by an exported graph, through ONNX Runtime or OpenVINO: nothing here imports torch."""

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
from bertkit.errors import CheckpointError, ConfigError, refuse_unknown
from bertkit.nn.precision import BF16_TILE_ROWS, has_amx
from bertkit.storage import check_file, read_json, sha256
from bertkit.synonyms import check_keywords
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, averaged, cut, encode
from bertkit.text.prompts import Prompter, Prompts
from bertkit.text.tokenizer import Tokenizer
from bertkit.threads import begun, bound, own_cores

if TYPE_CHECKING:
    pass

RECORD = "export.json"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATES, VECTORS, LOGITS = "last_hidden_state", "sentence_embedding", "logits"
"""The outputs of a graph: states, vectors (where none is called so, the first), what a head says.
"""

GRAPHS = {"onnx": ("model.onnx", "model.onnx.data"), "openvino": ("model.xml", "model.bin")}
"""The files of a graph: itself, and its weights, which are mapped into memory and not read; those
of a graph of ONNX may lie in itself."""

MAX_BATCH_TOKENS = 4096
"""Tokens of a batch, padding included."""

MAX_DIMENSION = 1 << 16
"""Numbers of a vector, at most."""

Numbers = Literal["auto", "fp32", "bf16"]
Runtime = Literal["onnxruntime", "openvino"]

TEXTS_AT_ONCE = 4096
"""Texts tokenized at a time."""


class ExportRecord(msgspec.Struct, frozen=True):
    """What a folder holds: which graph, the hashes of its files, and how texts are cut for it, and
    what stands before them.

    `fingerprint` is that by which a store knows the model and its pooling, `similarity` by what its
    vectors are compared; with `normalize` who reads vectors gives them length 1. `labels` and
    `settings` are those of the task whose head it has.
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


def hashes(folder: Path, kind: str) -> dict[str, str]:
    """Of each file of a graph that is there."""
    digests = {name: _hash(folder / name) for name in GRAPHS[kind]}
    return {name: digest for name, digest in digests.items() if digest is not None}


def _hash(path: Path) -> str | None:
    """None where there is no file."""
    try:
        check_file(path, CheckpointError, most=memory.installed())
    except FileNotFoundError:
        return None
    return sha256(path)


class Graph:
    """A graph: its vectors, or another of its outputs. A thread opens it, and whoever wants rows
    waits.

    A file of ONNX may be run by either runtime; by default each runs its own. `maker` is the
    command that makes it again where it is damaged.
    Raises: CheckpointError for a folder that is no export, or a changed one; what is wrong with the
    weights alone is raised by `ready`, or with the first rows.
    """

    def __init__(
        self,
        folder: Path,
        precision: Numbers = "fp32",
        output: str = VECTORS,
        runtime: Runtime | None = None,
        maker: Literal["export", "export tune"] = "export",
    ) -> None:
        refuse_unknown("precision", precision, get_args(Numbers))
        self._remedy = f"run `bertkit {maker}` again"
        try:
            record = read_json(folder / RECORD, CheckpointError, self._remedy)
            self.record = msgspec.convert(record, type=ExportRecord)
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder}: no exported graph; make one with `bertkit {maker}`"
            ) from None
        except msgspec.ValidationError as error:
            raise CheckpointError(f"{folder / RECORD}: cannot be read ({error})") from None
        by_onnx = (runtime or self.record.kind).startswith("onnx")
        if by_onnx and precision == "bf16":
            raise ConfigError(
                f"precision: ONNX Runtime computes this graph in fp32, not {precision}"
            )
        self.output = output
        self.tile = BF16_TILE_ROWS if not by_onnx and precision != "fp32" and has_amx() else 1
        self.width = len(self.record.labels) if output == LOGITS else self.record.dimension
        self._path, weights = (folder / name for name in GRAPHS[self.record.kind])
        self._check(self._path)  # before a runtime reads it; weights are numbers, whatever they are
        with suppress(FileNotFoundError):
            check_file(weights, CheckpointError, most=memory.installed())
        checked = begun(partial(self._check, weights))
        with _usable(self._path, self._remedy):
            # here, for threads wait while one imports
            importlib.import_module("onnxruntime" if by_onnx else "openvino")
        opened = begun(
            partial(onnx_graph, self._path)
            if by_onnx
            else partial(openvino_graph, self._path, precision)
        )

        def run() -> GraphOutput:
            checked()
            with _usable(self._path, self._remedy):
                return opened()

        self._run = run

    def _check(self, path: Path) -> None:
        """Raises: CheckpointError for a file that is not the one of the record."""
        if _hash(path) != self.record.sha256.get(path.name):
            raise CheckpointError(
                f"{path}: missing, or not what this folder was made with; {self._remedy}"
            )

    def ready(self) -> None:
        """Wait until it is open, and its weights are known to be those of the record."""
        self._run()

    def rows(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """A vector for each text, shortest first, so that little is padding. Shapes: (S, D)."""
        order = sorted(range(len(encodings)), key=lambda place: len(encodings[place]))
        vectors = np.empty((len(encodings), self.width), np.float32)
        for part in by_width([len(encodings[place]) for place in order], self.tile):
            places = order[part]
            read = [encodings[place] for place in places]
            vectors[places] = self.run(self.inputs([e.ids for e in read], [e.types for e in read]))
        return vectors

    def inputs(
        self, ids: Sequence[NDArray[np.int64]], types: Sequence[NDArray[np.int64]]
    ) -> dict[str, NDArray[np.int64]]:
        """Rows of equal length, in whole tiles where the runtime computes in them: it prepares
        itself anew for each length that differs from the last one's, which takes longer than the
        padding. Shapes: (B, T) each.
        """
        longest = max(map(len, ids))
        return padded(ids, types, min(longest + -longest % self.tile, self.record.length))

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """A row for each text. Shapes: (B, T) each -> (B, D). Raises: CheckpointError."""
        return self._checked(inputs, self.output, (len(inputs["input_ids"]), self.width))

    def states(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Of each token, padding too. Shapes: (B, T) each -> (B, T, D). Raises: CheckpointError."""
        return self._checked(inputs, STATES, inputs["input_ids"].shape)

    def _checked(
        self, inputs: dict[str, NDArray[np.int64]], output: str, shape: tuple[int, ...]
    ) -> NDArray[np.float32]:
        """An output whose first dimensions have this shape."""
        run = self._run()
        with _usable(self._path, self._remedy):
            values = run(inputs, output)
        if values.shape[: len(shape)] != shape:
            raise CheckpointError(
                f"{self._path}: makes numbers of shape {values.shape}, and {RECORD} says {shape}; "
                f"{self._remedy}"
            )
        return np.asarray(values, np.float32)


@contextmanager
def _usable(path: Path, remedy: str) -> Iterator[None]:
    """Whatever the runtimes raise, each its own, as a CheckpointError."""
    try:
        yield
    except ImportError as error:
        raise CheckpointError(
            f"{path}: needs a package that is not there ({error}); pip install 'bertkit[export]'"
        ) from None
    except Exception as error:
        raise CheckpointError(f"{path}: a graph that cannot be used ({error}); {remedy}") from None


class Exported:
    """Texts -> float32 vectors (S, D), by an exported folder."""

    windows = False
    """Whether it reads texts in windows: a graph may normalize its vectors, and a mean of these is
    not that of the model's."""

    def __init__(
        self, folder: str | Path, precision: Numbers = "fp32", graph: Graph | None = None
    ) -> None:
        self.graph = graph or Graph(Path(folder), precision)
        self.tokenizer = Tokenizer.load(Path(folder))
        self.graph.ready()
        self.dimension, self.length = self.graph.record.dimension, self.graph.record.length
        self.prompt = Prompter(self.graph.record.prompts)
        self.normalize = self.graph.record.normalize

    def fingerprint(self) -> str:
        """Return the fingerprint of the model that was exported."""
        return self.graph.record.fingerprint

    @check_keywords
    def __call__(
        self, texts: str | Sequence[str], *, long: Long = "error", prompt: str | None = None
    ) -> NDArray[np.float32]:
        """A vector for each text, behind a prompt of the model that was exported, or one's own; one
        text gives one row.

        Raises: DataError as `long` says, ConfigError for a prompt that the model had not.
        """
        texts = [texts] if isinstance(texts, str) else texts
        none = np.empty((0, self.dimension), np.float32)
        parts = self.stream(texts, long=long, prompt=prompt)
        return np.concatenate([none, *(part for part, _ in parts)])

    def stream(
        self, texts: Iterable[str], *, long: Long = "error", prompt: str | None = None
    ) -> Iterator[tuple[NDArray[np.float32], list[bool]]]:
        """The same for any number of texts, some thousands at a time, with which were cut."""
        if long == "window" and not self.windows:
            raise ConfigError(
                "long: an exported graph reads no windows; cut texts (truncate), or take the model "
                "that it was made of"
            )
        rest = iter(texts)
        while part := list(itertools.islice(rest, TEXTS_AT_ONCE)):
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
        """A vector for each text as the model reads it; `owner` says of which text each encoding
        is, where some are windows. Shapes: (S, D).
        """
        rows = self.graph.rows(encodings)
        if owner is not None:
            rows = averaged(rows, encodings, owner)
        if self.normalize:
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows


def by_width(lengths: Sequence[int], tile: int = 1) -> Iterator[slice]:
    """Neighbors of texts, shortest first, that have at most `MAX_BATCH_TOKENS` tokens with their
    padding to whole tiles; a longer text stands alone.
    """
    widths = [length + -length % tile for length in lengths]
    start = 0
    while start < len(widths):
        end = start + 1
        while end < len(widths) and (end + 1 - start) * widths[end] <= MAX_BATCH_TOKENS:
            end += 1
        yield slice(start, end)
        start = end


def padded(
    ids: Sequence[NDArray[np.int64]], types: Sequence[NDArray[np.int64]], length: int = 0
) -> dict[str, NDArray[np.int64]]:
    """Rows as long as the longest, or of a `length` beyond it, as graphs want them. Shapes: (B, T)
    each.
    """
    shape = len(ids), max(length, *map(len, ids))
    inputs = {name: np.zeros(shape, np.int64) for name in INPUTS}
    for row, (row_ids, segments) in enumerate(zip(ids, types, strict=True)):
        inputs["input_ids"][row, : len(row_ids)] = row_ids
        inputs["attention_mask"][row, : len(row_ids)] = 1
        inputs["token_type_ids"][row, : len(row_ids)] = segments
    return inputs


class GraphOutput(Protocol):
    """An output of a graph, of its first where none is called so; inputs that it lacks are left
    out.
    """

    @check_keywords
    def __call__(
        self, inputs: dict[str, NDArray[np.int64]], output: str = VECTORS, /
    ) -> NDArray[np.float32]: ...


def onnx_graph(path: Path) -> GraphOutput:
    """A graph by ONNX Runtime, with as many threads as this process may have."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_cores()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {put.name for put in session.get_inputs()}
    outputs = [put.name for put in session.get_outputs()]

    def run(inputs: dict[str, NDArray[np.int64]], output: str = VECTORS, /) -> NDArray[np.float32]:
        given = {name: value for name, value in inputs.items() if name in wanted}
        (values,) = session.run([output if output in outputs else outputs[0]], given)
        return np.asarray(values)

    return run


def openvino_graph(path: Path, precision: Numbers) -> GraphOutput:
    """The same by OpenVINO, one batch at a time."""
    import openvino

    hints: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": own_cores(),
        "NUM_STREAMS": 1,
        # threads that are bound take the first cores, in every worker the same
        "ENABLE_CPU_PINNING": own_cores() == bound(),
    }
    if precision != "auto":  # by itself it takes bf16 where the processor has it
        hints["INFERENCE_PRECISION_HINT"] = {"fp32": "f32", "bf16": "bf16"}[precision]
    model = openvino.Core().compile_model(path, "CPU", hints)
    wanted = {name for put in model.inputs for name in put.names}
    outputs = {name for put in model.outputs for name in put.names}
    request, alone = model.create_infer_request(), Lock()

    def run(inputs: dict[str, NDArray[np.int64]], output: str = VECTORS, /) -> NDArray[np.float32]:
        given = {name: value for name, value in inputs.items() if name in wanted}
        with alone:  # a request answers one thread at a time
            values = request.infer(given)[output if output in outputs else 0]
            return np.array(values, dtype=np.float32)

    return run
