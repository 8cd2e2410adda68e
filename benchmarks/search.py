"""Search over SciFact's 5,183 abstracts: bertkit against sentence-transformers and faiss.

Both sides go from a .jsonl file of documents on disk and from claims in memory to the ten best
abstracts of each claim, with all-MiniLM-L6-v2, which reads the first 256 tokens of an abstract. The
peer encodes documents and claims at its default of 32 a batch and asks faiss, exactly, for all
claims at once; both compute in the precision of the row. bertkit writes a store to disk, which the
peer does not. Time is that of the first 1,500 abstracts, the median of three in turn; quality is of
all of them.

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
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np

from benchmarks import kept
from benchmarks.embed import minilm
from benchmarks.finetune import data_folder
from benchmarks.harness import Options, apart, bf16_here, compare, milliseconds
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
"""Abstracts that are indexed and searched for time."""
DOCUMENTS, QUALITY = f"documents to answers, {TIMED:,} abstracts", "nDCG@10, all claims"
QUERY = "one query, p50"
GAINS = ("words too", "fine-tuned on other claims")
TRAINING = 600
"""Claims that are learned from."""


class World(NamedTuple):
    """The files of one run. `training` and `dev` are queries; the judgments are of both."""

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
        source, place = data_folder() / "scifact", Path(folder)
        some = write(source, place / "some", 100 if quick else TIMED)
        world = write(source, place / "all", 200 if quick else None)
        numbers: tuple[Precision, ...] = ("fp32", "bf16") if bf16_here() else ("fp32",)
        for precision in numbers:
            peer = f"{PEER}, {precision}"
            if not options.late and book.wanted(DOCUMENTS, peer):
                book.add(timed(some, place, precision, peer, 1 if quick else 3))
        store = place / "store"
        parts: list[tuple[list[tuple[str, str]], Callable[[], list[kept.Row]]]] = [
            ([(QUALITY, PEER)], lambda: [quality(world, store)]),
            ([(QUERY, kept.LIMIT), (QUERY, PEER)], lambda: alone(world, store)),
            ([(f"nDCG@10, {n}", PEER) for n in OTHERS], lambda: zero_shot(place)),
            ([(f"nDCG@10, {what}", ZERO_SHOT) for what in GAINS], lambda: learned(world, store)),
        ]
        for rows, measure in parts:
            if not options.late and any(book.wanted(*each) for each in rows):
                book.add(*measure())
    book.close()


# ---- the data


def write(source: Path, folder: Path, most: int | None) -> World:
    """SciFact as files that bertkit and the peer read; `most` documents, or all."""
    folder.mkdir()
    world = named(folder)
    with gzip.open(source / "corpus.csv.gz", "rt", encoding="utf-8", newline="") as file:
        documents = list(csv.DictReader(file))[:most]
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


def timed(world: World, folder: Path, precision: Precision, peer: str, rounds: int) -> kept.Row:
    """The same search by both."""
    queries = read_queries(world.queries)
    places = count()

    def ours() -> None:
        place = str(folder / f"{precision}-{next(places)}")
        index([world.documents], model=minilm(), store=place, long="truncate", precision=precision)
        Searcher(place, precision=precision).many(list(queries.values()), top=TOP)

    return compare(
        DOCUMENTS,
        ours,
        lambda: theirs(world, queries, precision),
        peer_name=peer,
        unit="s",
        work=None,
        target=2.0,
        repeats=rounds,
        how=(
            kept.How(f"{precision}, into a store on disk, median of {rounds}", 1.0),
            kept.How(
                f"{precision}, 32 a batch, in memory, median of {rounds}", fill_of(world, queries)
            ),
        ),
    )


def fill_of(world: World, queries: Mapping[str, str]) -> float:
    """Real tokens of those the peer computes, where it sorts texts by length, 32 a batch."""
    tokenizer, real, whole = Tokenizer.load(minilm()), 0, 0
    for texts in (documents_of(world), list(queries.values())):
        read = tokenizer.encode_batch(texts, max_length=256, truncate="longest")
        lengths = sorted((len(each.ids) for each in read), reverse=True)
        real += sum(lengths)
        batches = (lengths[start : start + 32] for start in range(0, len(lengths), 32))
        whole += sum(each[0] * len(each) for each in batches)
    return real / whole


def documents_of(world: World) -> list[str]:
    rows = [json.loads(line) for line in world.documents.open(encoding="utf-8")]
    return [f"{row['title']}\n{row['text']}".strip() for row in rows]


def quality(world: World, store: Path) -> kept.Row:
    """nDCG@10 of all claims beside the peer's."""
    queries = read_queries(world.queries)
    hits = searched(world, store).many(list(queries.values()), top=TOP)
    found = {q: [h.id for h in some] for q, some in zip(queries, hits, strict=True)}
    return kept.row(
        QUALITY,
        scored(world, found),
        scored(world, theirs(world, queries)),
        peer_name=PEER,
        unit="",
        target=0.995,
        better="higher",
        how=(kept.How("precision auto"), kept.How("fp32")),
    )


def searched(world: World, store: Path) -> Searcher:
    """All documents in a store, made once."""
    if not store.exists():
        index([world.documents], model=minilm(), store=str(store), long="truncate")
    return Searcher(str(store), precision="auto")


OTHERS: Mapping[str, Callable[[Path, Path], World]] = {"Cranfield": cranfield, "TrecQA": trecqa}


def zero_shot(folder: Path) -> list[kept.Row]:
    """nDCG@10 of searches without any learning, beside the peer's."""
    rows = []
    for name, make in OTHERS.items():
        place = folder / name
        place.mkdir()
        world = make(data_folder(), place)
        found = searched(world, place / "store")
        ours = evaluate_retrieval(found, queries=world.queries, judgments=world.judgments)
        peer = scored(world, theirs(world, read_queries(world.queries)))
        rows.append(
            kept.row(
                f"nDCG@10, {name}",
                ours["ndcg@10"],
                peer,
                peer_name=PEER,
                unit="",
                target=0.995,
                better="higher",
                how=(
                    kept.How(f"precision auto; MRR {ours['mrr']:.3f}"),
                    kept.How("fp32"),
                ),
            )
        )
    return rows


def scored(world: World, found: Mapping[str, list[str]]) -> float:
    """nDCG@10 of the ids found for each query."""
    queries = read_queries(world.queries)
    graded = select_judged(queries, read_judgments(world.judgments), world.judgments)
    scores = retrieval_scores([found[query] for query in graded], list(graded.values()))
    return scores["ndcg@10"]


def theirs(
    world: World, queries: Mapping[str, str], precision: Precision = "fp32"
) -> dict[str, list[str]]:
    """The peer's ids of the best documents."""
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
    return {q: [ids[i] for i in some if i >= 0] for q, some in zip(queries, best, strict=True)}


def alone(world: World, store: Path) -> list[kept.Row]:
    """One query at a time, tokenizing and embedding included; each side in fp32 and a process of
    its own.
    """
    searched(world, store)
    queries = list(read_queries(world.queries).values())[:200]
    mine, theirs = (median(apart(times, side, str(store), queries)) for side in SIDES)
    how = kept.How("fp32, one text at a time", 1.0)
    return [
        kept.row(
            QUERY,
            mine,
            other,
            peer_name=name,
            unit="ms",
            target=1.0,
            better="lower",
            how=(how, kept.How() if name == kept.LIMIT else how),
        )
        for name, other in ((kept.LIMIT, 20.0), (PEER, theirs))
    ]


Side = Literal["ours", "peer"]
SIDES: tuple[Side, Side] = ("ours", "peer")


def times(side: Side, place: str, queries: list[str]) -> list[float]:
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

    return milliseconds(ask, queries, warm=20)


# ---- what learning gives


def learned(world: World, store: Path) -> list[kept.Row]:
    """nDCG@10 on claims apart: words too, and a model that learned from the others."""
    start = searched(world, store)

    def score(searcher: Searcher, *, hybrid: bool = False) -> float:
        return evaluate_retrieval(
            searcher, queries=world.dev, judgments=world.judgments, hybrid=hybrid
        )["ndcg@10"]

    before, words = score(start), score(start, hybrid=True)
    place = str(store.with_name("store-tuned"))
    tuned_model = tuned(start, world, store.with_name("tuned"))
    index([world.documents], model=tuned_model, store=place, long="truncate")
    found = dict(zip(GAINS, (words, score(Searcher(place, precision="auto"))), strict=True))
    return [
        kept.row(
            f"nDCG@10, {what}",
            value,
            before,
            peer_name=ZERO_SHOT,
            unit="",
            target=1.0,
            better="higher",
            how=(kept.How("precision auto"), kept.How("precision auto")),
        )
        for what, value in found.items()
    ]


def tuned(start: Searcher, world: World, out: Path) -> Path:
    """MiniLM fine-tuned on rows mined from the training claims, a tenth of them kept as dev."""
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
    examples, _ = learner.reader.read(mined, Reading(), labelled=True)
    cut = len(examples) // 10
    settings = Finetune(epochs=1, batch_size=64, learning_rate=3e-5, length=256)
    finetune(
        learner, minilm(), train=examples[cut:], dev=examples[:cut], out=out, settings=settings
    )
    return out
