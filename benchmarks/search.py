"""Search over SciFact's 5,183 abstracts: bertkit against sentence-transformers and faiss.

Both sides read documents from a .jsonl file, and find the ten best abstracts for each claim in
memory, with all-MiniLM-L6-v2, which truncates abstracts to 256 tokens. The baseline encodes
documents and claims with its default batch size of 32, and runs an exact faiss search for all
claims at once. Both sides use the precision of the row. Only bertkit writes its index to disk. The
time is measured on the first 1,500 abstracts (median of three alternating runs), the quality on all
abstracts.

An abstract is relevant for a claim that cites it. Fine-tuning uses 600 claims, and the other claims
are scored. Cranfield's 1,400 abstracts and the sentences of TrecQA are only used for quality.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np

from benchmarks import kept
from benchmarks.embed import minilm
from benchmarks.finetune import data_folder
from benchmarks.harness import Options, bf16_here, compare, milliseconds, run_in_process
from bertkit.console import quietly
from bertkit.extensions.search.evaluation import evaluate_retrieval, mine
from bertkit.extensions.search.index import index
from bertkit.extensions.search.judgments import read_judgments, read_queries, select_judged
from bertkit.extensions.search.retrieval_metrics import retrieval_scores
from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.stores import open_store
from bertkit.nn.precision import Precision
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks import find
from bertkit.tasks.task import Reading
from bertkit.text.tokenizer import Tokenizer

PEER, ZERO_SHOT = "sentence-transformers + faiss (exact)", "zero-shot"
TOP = 100
TIMED = 1_500
"""Number of abstracts for the time measurement."""
DOCUMENTS, QUALITY = f"documents to answers, {TIMED:,} abstracts", "nDCG@10, all claims"
QUERY = "one query, p50"
GAINS = ("words too", "fine-tuned on other claims")
TRAINING = 600
"""Number of claims for training."""


class World(NamedTuple):
    """Files of a run. `training` and `dev` contain queries; `judgments` contains both."""

    documents: Path
    queries: Path
    training: Path
    dev: Path
    judgments: Path


def main(options: Options) -> None:
    quick, book = options.quick, options.book("search")
    if not bf16_here():
        book.leave_out("no bf16 row: this processor has no bf16 instructions")
    with TemporaryDirectory() as folder, quietly():
        source, directory = data_folder() / "scifact", Path(folder)
        part = write(source, directory / "some", 100 if quick else TIMED)
        world = write(source, directory / "all", 200 if quick else None)
        precisions: tuple[Precision, ...] = ("fp32", "bf16") if bf16_here() else ("fp32",)
        for precision in precisions:
            peer = f"{PEER}, {precision}"
            if not options.late and book.needs(DOCUMENTS, peer):
                book.add(measure_time(part, directory, precision, peer, 1 if quick else 3))
        store = directory / "store"
        parts: list[tuple[list[tuple[str, str]], Callable[[], list[kept.Row]]]] = [
            ([(QUALITY, PEER)], lambda: [quality(world, store)]),
            ([(QUERY, kept.LIMIT), (QUERY, PEER)], lambda: latency(world, store)),
            ([(f"nDCG@10, {n}", PEER) for n in OTHERS], lambda: zero_shot(directory)),
            ([(f"nDCG@10, {title}", ZERO_SHOT) for title in GAINS], lambda: gains(world, store)),
        ]
        for rows, measure in parts:
            if not options.late and any(book.needs(*row) for row in rows):
                book.add(*measure())
    book.close()


# ---- Data


def write(source: Path, folder: Path, most: int | None) -> World:
    """Write SciFact to files for both sides, with up to `most` documents."""
    folder.mkdir()
    world = paths_in(folder)
    with gzip.open(source / "corpus.csv.gz", "rt", encoding="utf-8", newline="") as file:
        documents = list(csv.DictReader(file))[:most]
    rows = [
        {"id": d["doc_id"], "title": d["title"], "text": " ".join(sentences(d["abstract"]))}
        for d in documents
    ]
    world.documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    known = {row["id"] for row in rows}
    claims: dict[str, tuple[str, list[str]]] = {}
    with (source / "claims_train.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cited = [d for d in re.findall(r"\d+", row["cited_doc_ids"]) if d in known]
            if cited:
                claims[row["id"]] = row["claim"], cited
    lines = [f"{id}\t{claim}\n" for id, (claim, _) in claims.items()]
    cut = min(TRAINING, len(lines) * 3 // 4)
    for path, part in (
        (world.queries, lines),
        (world.training, lines[:cut]),
        (world.dev, lines[cut:]),
    ):
        path.write_text("".join(part), encoding="utf-8")
    world.judgments.write_text(
        "".join(f"{id}\t{d}\t1\n" for id, (_, cited) in claims.items() for d in cited),
        encoding="utf-8",
    )
    return world


def paths_in(folder: Path) -> World:
    """Return the paths of files that are not written yet."""
    return World(*(folder / name for name in ("d.jsonl", "q.tsv", "t.tsv", "v.tsv", "j.tsv")))


def cranfield(source: Path, folder: Path) -> World:
    """Write Cranfield. Its judgments refer to queries by their position in the file."""
    world, source = paths_in(folder), source / "cranfield"
    rows = [
        {"id": str(number), "title": d["T"], "text": d["W"]}
        for number, d in enumerate(smart(source / "cran.all.1400"), 1)
        if d["W"]
    ]
    world.documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    queries = (f"{number}\t{q['W']}\n" for number, q in enumerate(smart(source / "cran.qry"), 1))
    world.queries.write_text("".join(queries), encoding="utf-8")
    judgments = (source / "cranqrel").read_text(encoding="utf-8").splitlines()
    cells = (f"{q}\t{d}\t{int(int(grade) > 0)}\n" for q, d, grade in map(str.split, judgments))
    world.judgments.write_text("".join(cells), encoding="utf-8")
    return world


def smart(path: Path) -> Iterator[dict[str, str]]:
    """Yield the records of a file in SMART format, as fields by their letters."""
    for record in re.split(r"^\.I .*\n", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        parts = re.split(r"^\.([TABW])\s*\n", record, flags=re.M)[1:]
        cells = (" ".join(text.split()) for text in parts[1::2])
        yield dict(zip(parts[::2], cells, strict=True))


def trecqa(source: Path, folder: Path) -> World:
    """Write the unique sentences of TrecQA dev, and the questions that have an answer."""
    world = paths_in(folder)
    indices: dict[str, int] = {}
    queries: dict[str, list[str]] = {}
    with (source / "trecqa" / "dev.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            index = indices.setdefault(row["atext"], len(indices))
            if row["label"] == "1":
                queries.setdefault(row["qtext"], []).append(str(index))
    rows = [{"id": str(index), "title": "", "text": text} for text, index in indices.items()]
    world.documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    lines = [f"{number}\t{query}\n" for number, query in enumerate(queries)]
    world.queries.write_text("".join(lines), encoding="utf-8")
    text = "".join(
        f"{number}\t{answer}\t1\n"
        for number, answers in enumerate(queries.values())
        for answer in answers
    )
    world.judgments.write_text(text, encoding="utf-8")
    return world


def sentences(printed: str) -> list[str]:
    """Parse the sentences of an abstract, which the file contains in NumPy's print format."""
    return [str(s) for s in ast.literal_eval(re.sub(r"""(['"])\n (['"])""", r"\1,\n \2", printed))]


# ---- Measurement of both sides


def measure_time(
    world: World, folder: Path, precision: Precision, peer: str, rounds: int
) -> kept.Row:
    """Compare the time of indexing and searching."""
    queries = read_queries(world.queries)
    numbers = count()

    def search_bertkit() -> None:
        store = str(folder / f"{precision}-{next(numbers)}")
        index([world.documents], model=minilm(), store=store, long="truncate", precision=precision)
        Searcher(store, precision=precision).many(list(queries.values()), top=TOP)

    return compare(
        DOCUMENTS,
        search_bertkit,
        lambda: search_peer(world, queries, precision),
        peer_name=peer,
        unit="s",
        work=None,
        target=2.0,
        repeats=rounds,
        setups=(
            kept.Setup(f"{precision}, into a store on disk, median of {rounds}", 1.0),
            kept.Setup(
                f"{precision}, 32 a batch, in memory, median of {rounds}", fill_of(world, queries)
            ),
        ),
    )


def fill_of(world: World, queries: Mapping[str, str]) -> float:
    """Return the baseline's fraction of tokens that are not padding (sorted batches of 32)."""
    tokenizer, real, total = Tokenizer.load(minilm()), 0, 0
    for texts in (documents_of(world), list(queries.values())):
        encodings = tokenizer.encode_batch(texts, max_length=256, truncate="longest")
        lengths = sorted((len(encoding.ids) for encoding in encodings), reverse=True)
        real += sum(lengths)
        batches = (lengths[start : start + 32] for start in range(0, len(lengths), 32))
        total += sum(batch[0] * len(batch) for batch in batches)
    return real / total


def documents_of(world: World) -> list[str]:
    rows = [json.loads(line) for line in world.documents.open(encoding="utf-8")]
    return [f"{row['title']}\n{row['text']}".strip() for row in rows]


def quality(world: World, store: Path) -> kept.Row:
    """Compare nDCG@10 of all claims."""
    queries = read_queries(world.queries)
    hits = load_searcher(world, store).many(list(queries.values()), top=TOP)
    found = {q: [h.id for h in result] for q, result in zip(queries, hits, strict=True)}
    return kept.row(
        QUALITY,
        ndcg(world, found),
        ndcg(world, search_peer(world, queries)),
        peer_name=PEER,
        unit="",
        target=0.995,
        better="higher",
        setups=(kept.Setup("precision auto"), kept.Setup("fp32")),
    )


def load_searcher(world: World, store: Path) -> Searcher:
    """Load the index of all documents, which is built once."""
    if not store.exists():
        index([world.documents], model=minilm(), store=str(store), long="truncate")
    return Searcher(str(store), precision="auto")


OTHERS: Mapping[str, Callable[[Path, Path], World]] = {"Cranfield": cranfield, "TrecQA": trecqa}


def zero_shot(folder: Path) -> list[kept.Row]:
    """Compare nDCG@10 without fine-tuning."""
    rows = []
    for name, write_world in OTHERS.items():
        directory = folder / name
        directory.mkdir()
        world = write_world(data_folder(), directory)
        searcher = load_searcher(world, directory / "store")
        scores = evaluate_retrieval(searcher, queries=world.queries, judgments=world.judgments)
        peer = ndcg(world, search_peer(world, read_queries(world.queries)))
        rows.append(
            kept.row(
                f"nDCG@10, {name}",
                scores["ndcg@10"],
                peer,
                peer_name=PEER,
                unit="",
                target=0.995,
                better="higher",
                setups=(kept.Setup(f"precision auto; MRR {scores['mrr']:.3f}"), kept.Setup("fp32")),
            )
        )
    return rows


def ndcg(world: World, found: Mapping[str, list[str]]) -> float:
    """Compute nDCG@10 of the document ids that were found for each query."""
    queries = read_queries(world.queries)
    graded = select_judged(queries, read_judgments(world.judgments), world.judgments)
    scores = retrieval_scores([found[query] for query in graded], list(graded.values()))
    return scores["ndcg@10"]


def search_peer(
    world: World, queries: Mapping[str, str], precision: Precision = "fp32"
) -> dict[str, list[str]]:
    """Search with the baseline; return the ids of the best documents of each query."""
    import faiss
    import torch
    from sentence_transformers import SentenceTransformer

    ids = [json.loads(line)["id"] for line in world.documents.open(encoding="utf-8")]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = SentenceTransformer(str(minilm()), device="cpu", model_kwargs={"dtype": dtype})

    def encode(texts: list[str]) -> np.ndarray:
        found = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    vectors = encode(documents_of(world))
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    _, best = flat.search(encode(list(queries.values())), TOP)
    return {q: [ids[i] for i in row if i >= 0] for q, row in zip(queries, best, strict=True)}


def latency(world: World, store: Path) -> list[kept.Row]:
    """Measure single queries, including tokenization and embedding.

    Each side runs in fp32 in a separate process.
    """
    load_searcher(world, store)
    queries = list(read_queries(world.queries).values())[:200]
    bertkit_ms, peer_ms = (
        median(run_in_process(times, side, str(store), queries)) for side in SIDES
    )
    setup = kept.Setup("fp32, one text at a time", 1.0)
    return [
        kept.row(
            QUERY,
            bertkit_ms,
            value,
            peer_name=name,
            unit="ms",
            target=1.0,
            better="lower",
            setups=(setup, kept.Setup() if name == kept.LIMIT else setup),
        )
        for name, value in ((kept.LIMIT, 20.0), (PEER, peer_ms))
    ]


Side = Literal["ours", "peer"]
SIDES: tuple[Side, Side] = ("ours", "peer")


def times(side: Side, path: str, queries: list[str]) -> list[float]:
    """Return the milliseconds of each query, after a warmup."""
    if side == "ours":
        search: Callable[[str], object] = Searcher(path)
    else:
        import faiss
        from sentence_transformers import SentenceTransformer

        store = open_store(path)
        model = SentenceTransformer(str(minilm()), device="cpu")
        shape = len(store), store.spec.dimension
        flat = faiss.IndexFlatIP(shape[1])
        # Random vectors take the same time as real ones.
        flat.add(np.random.default_rng(0).standard_normal(shape, np.float32))

        def search(query: str) -> object:
            return flat.search(np.asarray(model.encode([query], show_progress_bar=False)), 10)

    return milliseconds(search, queries, warm=20)


# ---- Gains from word search and fine-tuning


def gains(world: World, store: Path) -> list[kept.Row]:
    """Compare nDCG@10 on dev claims: hybrid search, and a model that was fine-tuned on others."""
    start = load_searcher(world, store)

    def score(searcher: Searcher, *, hybrid: bool = False) -> float:
        return evaluate_retrieval(
            searcher, queries=world.dev, judgments=world.judgments, hybrid=hybrid
        )["ndcg@10"]

    before, words = score(start), score(start, hybrid=True)
    path = str(store.with_name("store-tuned"))
    model = finetune_model(start, world, store.with_name("tuned"))
    index([world.documents], model=model, store=path, long="truncate")
    found = dict(zip(GAINS, (words, score(Searcher(path, precision="auto"))), strict=True))
    return [
        kept.row(
            f"nDCG@10, {title}",
            value,
            before,
            peer_name=ZERO_SHOT,
            unit="",
            target=1.0,
            better="higher",
            setups=(kept.Setup("precision auto"), kept.Setup("precision auto")),
        )
        for title, value in found.items()
    ]


def finetune_model(start: Searcher, world: World, out: Path) -> Path:
    """Fine-tune MiniLM on negatives mined for the training claims, with 10% of them as dev."""
    learner, mined = find("similarity"), out.with_suffix(".jsonl")
    mine(
        start,
        queries=world.training,
        judgments=world.judgments,
        out=mined,
        learner="similarity",
        negatives=2,
        skip=2,
    )
    examples, _ = learner.reader.read(mined, Reading(), labeled=True)
    cut = len(examples) // 10
    settings = Finetune(epochs=1, batch_size=64, learning_rate=3e-5, max_length=256)
    finetune(
        learner, minilm(), train=examples[cut:], dev=examples[:cut], out=out, settings=settings
    )
    return out
