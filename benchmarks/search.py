"""Search over SciFact's 5,183 abstracts: bertkit against sentence-transformers and faiss.

Both sides go from a .jsonl file of documents on disk and from claims in memory to the ten best
abstracts of each claim, with all-MiniLM-L6-v2, which reads the first 256 tokens of an abstract. The
peer encodes documents and claims at its default of 32 a batch and asks faiss, exactly, for all
claims at once. bertkit computes in the precision of its default, and writes a store to disk, which
the peer does not.

An abstract answers a claim that cites it. What a model learns from 600 claims is scored on the
other ones. Cranfield's 1,400 abstracts and the sentences of TrecQA are searched too, for quality
alone.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np

from benchmarks import harness
from benchmarks.embed import minilm
from benchmarks.finetune import data_folder
from bertkit import metrics
from bertkit.console import quietly
from bertkit.data.judgments import judged, read_judgments, read_queries
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.index import index
from bertkit.recipes.judge import evaluate_retrieval, mine
from bertkit.retrieval.opening import open_store
from bertkit.retrieval.search import Searcher
from bertkit.tasks import find
from bertkit.tasks.task import Reading

PEER = "sentence-transformers + faiss (exact)"
TOP = 100
TRAINING = 600
"""Claims that are learned from."""


class World(NamedTuple):
    """The files of one run. `training` and `dev` are queries; the judgments are of both."""

    documents: Path
    queries: Path
    training: Path
    dev: Path
    judgments: Path


def main(*, quick: bool = False) -> None:
    with TemporaryDirectory() as folder, quietly():
        world = write(data_folder() / "scifact", Path(folder), 200 if quick else None)
        rows = compared(world, Path(folder))
        for name, make in (("Cranfield", cranfield), ("TrecQA", trecqa)):
            place = Path(folder) / name
            place.mkdir()
            rows.append(zero_shot(name, make(data_folder(), place), place))
        if not quick:
            harness.write("search", rows)
        rows += learned(world, Path(folder))
    if quick:
        harness.show("search, quick", rows)
    else:
        harness.write("search", rows)


# ---- the data


def write(source: Path, folder: Path, count: int | None) -> World:
    """SciFact as files that bertkit and the peer read; `count` documents, or all."""
    world = named(folder)
    with gzip.open(source / "corpus.csv.gz", "rt", encoding="utf-8", newline="") as file:
        documents = list(csv.DictReader(file))[:count]
    rows = [
        {"id": d["doc_id"], "title": d["title"], "text": " ".join(sentences(d["abstract"]))}
        for d in documents
    ]
    world.documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    there = {row["id"] for row in rows}
    claims: dict[str, tuple[str, list[str]]] = {}
    with (source / "claims_train.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cited = [d for d in re.findall(r"\d+", row["cited_doc_ids"]) if d in there]
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


def named(folder: Path) -> World:
    """A world whose files are not written yet."""
    return World(*(folder / name for name in ("d.jsonl", "q.tsv", "t.tsv", "v.tsv", "j.tsv")))


def cranfield(source: Path, folder: Path) -> World:
    """Its abstracts, and its queries by their place, which is what its judgments mean."""
    world, source = named(folder), source / "cranfield"
    rows = [
        {"id": str(place), "title": d["T"], "text": d["W"]}
        for place, d in enumerate(smart(source / "cran.all.1400"), 1)
        if d["W"]
    ]
    world.documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    queries = (f"{place}\t{q['W']}\n" for place, q in enumerate(smart(source / "cran.qry"), 1))
    world.queries.write_text("".join(queries), encoding="utf-8")
    judgments = (source / "cranqrel").read_text(encoding="utf-8").splitlines()
    cells = (f"{q}\t{d}\t{int(int(grade) > 0)}\n" for q, d, grade in map(str.split, judgments))
    world.judgments.write_text("".join(cells), encoding="utf-8")
    return world


def smart(path: Path) -> Iterator[dict[str, str]]:
    """Records of SMART's format, by the letters of their fields."""
    for record in re.split(r"^\.I .*\n", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        parts = re.split(r"^\.([TABW])\s*\n", record, flags=re.M)[1:]
        cells = (" ".join(text.split()) for text in parts[1::2])
        yield dict(zip(parts[::2], cells, strict=True))


def trecqa(source: Path, folder: Path) -> World:
    """Every sentence of dev once, and its questions that one of them answers."""
    world = named(folder)
    places: dict[str, int] = {}
    queries: dict[str, list[str]] = {}
    with (source / "trecqa" / "dev.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            place = places.setdefault(row["atext"], len(places))
            if row["label"] == "1":
                queries.setdefault(row["qtext"], []).append(str(place))
    rows = [{"id": str(place), "title": "", "text": text} for text, place in places.items()]
    world.documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    lines = [f"{place}\t{query}\n" for place, query in enumerate(queries)]
    world.queries.write_text("".join(lines), encoding="utf-8")
    text = "".join(
        f"{place}\t{answer}\t1\n"
        for place, answers in enumerate(queries.values())
        for answer in answers
    )
    world.judgments.write_text(text, encoding="utf-8")
    return world


def sentences(printed: str) -> list[str]:
    """The sentences of an abstract, which the file holds as numpy prints a list of them."""
    return [str(s) for s in ast.literal_eval(re.sub(r"""(['"])\n (['"])""", r"\1,\n \2", printed))]


# ---- the two sides


def compared(world: World, folder: Path) -> list[harness.Row]:
    """The same search by both, its quality, and how long one query takes."""
    queries = read_queries(world.queries)
    found: dict[str, dict[str, list[str]]] = {}
    places = iter(range(100))

    def ours() -> None:
        place = str(folder / f"store-{next(places)}")
        index([world.documents], model=minilm(), store=place, long="truncate")
        searcher = Searcher(place, precision="auto")
        hits = searcher.many(list(queries.values()), top=TOP)
        found["ours"] = {q: [h.id for h in some] for q, some in zip(queries, hits, strict=True)}

    def peer() -> None:
        found["peer"] = theirs(world, queries)

    row = harness.compare(
        "documents to answers, 5,183 abstracts and all claims",
        ours,
        peer,
        peer_name=PEER,
        unit="s",
        work=None,
        target=3.0,
        repeats=1,  # minutes each, after one that is not measured
    )
    ndcg = {side: scored(world, ids) for side, ids in found.items()}
    quality = harness.row(
        "nDCG@10, all claims",
        ndcg["ours"],
        ndcg["peer"],
        peer_name=PEER,
        unit="",
        target=0.995,
        better="higher",
    )
    place = folder / "store-0"
    return [row, quality, *alone(place, list(queries.values()))]


def zero_shot(name: str, world: World, folder: Path) -> harness.Row:
    """nDCG@10 of a search without any learning, beside the peer's."""
    place = str(folder / "store")
    index([world.documents], model=minilm(), store=place, long="truncate")
    ours = evaluate_retrieval(Searcher(place, precision="auto"), world.queries, world.judgments)
    peer = scored(world, theirs(world, read_queries(world.queries)))
    return harness.row(
        f"nDCG@10, {name} (MAP {ours['map']:.3f}, MRR {ours['mrr']:.3f})",
        ours["ndcg@10"],
        peer,
        peer_name=PEER,
        unit="",
        target=0.995,
        better="higher",
    )


def scored(world: World, found: Mapping[str, list[str]]) -> float:
    """nDCG@10 of the ids found for each query."""
    queries = read_queries(world.queries)
    graded = judged(queries, read_judgments(world.judgments), world.judgments)
    scores = metrics.retrieval([found[query] for query in graded], list(graded.values()))
    return scores["ndcg@10"]


def theirs(world: World, queries: Mapping[str, str]) -> dict[str, list[str]]:
    """The peer's ids of the best documents."""
    import faiss
    from sentence_transformers import SentenceTransformer

    rows = [json.loads(line) for line in world.documents.open(encoding="utf-8")]
    model = SentenceTransformer(str(minilm()), device="cpu")

    def encode(texts: list[str]) -> np.ndarray:
        found = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    vectors = encode([f"{row['title']}\n{row['text']}".strip() for row in rows])
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    _, best = flat.search(encode(list(queries.values())), TOP)
    return {
        q: [rows[i]["id"] for i in some if i >= 0] for q, some in zip(queries, best, strict=True)
    }


def alone(place: Path, queries: list[str]) -> list[harness.Row]:
    """One query at a time, tokenizing and embedding included; each side in fp32 and a process of
    its own."""
    mine, theirs = (
        median(harness.apart(times, side, str(place), queries[:200])) for side in ("ours", "peer")
    )
    return [
        harness.row(
            "one query, p50",
            mine,
            other,
            peer_name=name,
            unit="ms",
            target=1.0,
            better="lower",
        )
        for name, other in (("limit", 20.0), (PEER, theirs))
    ]


def times(side: Literal["ours", "peer"], place: str, queries: list[str]) -> list[float]:
    """Milliseconds of each query, after some that do not count."""
    if side == "ours":
        ask: Callable[[str], object] = Searcher(place)
    else:
        import faiss
        from sentence_transformers import SentenceTransformer

        store = open_store(place)
        model = SentenceTransformer(str(minilm()), device="cpu")
        shape = len(store), store.spec.dimension
        flat = faiss.IndexFlatIP(shape[1])
        flat.add(np.random.default_rng(0).standard_normal(shape, np.float32))  # as fast as real

        def ask(query: str) -> object:
            return flat.search(np.asarray(model.encode([query], show_progress_bar=False)), 10)

    return harness.milliseconds(ask, queries, warm=20)


# ---- what learning gives


def learned(world: World, folder: Path) -> list[harness.Row]:
    """nDCG@10 on claims apart: words too, a model that learned from the others, a re-ranker."""
    start = Searcher(str(folder / "store-0"))

    def score(searcher: Searcher, *, hybrid: bool = False) -> float:
        return evaluate_retrieval(searcher, world.dev, world.judgments, hybrid=hybrid)["ndcg@10"]

    before = score(start)
    rows = {"words too": score(start, hybrid=True)}
    bi = tuned("similarity", start, world, folder / "bi")
    place = str(folder / "store-bi")
    index([world.documents], model=bi, store=place, long="truncate")
    rows["fine-tuned on other claims"] = score(Searcher(place))
    cross = tuned("respond", start, world, folder / "cross")
    rows["re-ranked by a cross-encoder of other claims"] = score(
        Searcher(place, rerank=cross, precision="auto")
    )
    return [
        harness.row(
            f"nDCG@10, {what}",
            value,
            before,
            peer_name="zero-shot",
            unit="",
            target=1.0,
            better="higher",
        )
        for what, value in rows.items()
    ]


LEARNERS: Mapping[str, tuple[dict[str, int], Finetune]] = {
    "similarity": (
        {"negatives": 2, "skip": 2},
        Finetune(epochs=1, batch_size=64, learning_rate=3e-5, length=256),
    ),
    "respond": (
        {"negatives": 4},
        Finetune(epochs=2, batch_size=16, learning_rate=1e-4, length=256),
    ),
}
"""How each task mines its rows and learns from them."""


def tuned(task: Literal["similarity", "respond"], start: Searcher, world: World, out: Path) -> Path:
    """MiniLM fine-tuned on rows mined from the training claims, a tenth of them kept as dev."""
    learner, (mining, settings) = find(task), LEARNERS[task]
    mined = out.with_suffix(".jsonl")
    mine(start, world.training, world.judgments, mined, learner=task, **mining)  # type: ignore[arg-type]
    examples, _ = learner.read(mined, Reading(), labelled=True)
    cut = len(examples) // 10
    finetune(
        learner, minilm(), train=examples[cut:], dev=examples[:cut], out=out, settings=settings
    )
    return out
