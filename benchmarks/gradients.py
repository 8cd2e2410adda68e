"""How far bf16 gradients are from fp32 ones: of a step in ever more batches, and part by part.

A small BERT, which has learned for a while in fp32, without dropout; 1,024 samples of the Python
reference and of docstrings, with a vocabulary of their own. Errors are relative: the norm of the
difference over that of the fp32 gradient of the same samples. It is accuracy, not speed: any
machine will do, though bf16 is slow on processors that emulate it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks import kept, text
from benchmarks.harness import Options
from bertkit.batch import Batch
from bertkit.checkpoint.folder import save
from bertkit.data.collate import collate
from bertkit.data.masking import Masking
from bertkit.data.segments import Sample, Samples, Sampling
from bertkit.families import BERT
from bertkit.models.config import TransformerConfig
from bertkit.models.model import Model, build
from bertkit.objectives.loss import totals
from bertkit.objectives.pretrain import pretrain
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.train import train as train_vocabulary
from bertkit.training.loop import steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw

PIECES, MEGABYTES, SAMPLES = 4_000, 1.0, 1_024
STEPS, BATCH = 200, 64
"""Learned before gradients are looked at."""

BUDGETS = (25_000, 5_500, 1_280, 320, 75)
"""Tokens of a batch: a step of all samples in 4 to about a thousand batches."""

SIZES = (13_600, 54_600)
"""Tokens of the one batch whose parts are looked at; the peer, which pads, has the first alone."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "pieces": ("encoder.embedding.tokens.weight",),
    "positions": ("encoder.embedding.positions.weight",),
    "segments": ("encoder.embedding.types.weight",),
    "norm of the embedding, weight": ("encoder.embedding.norm.weight",),
    "norm of the embedding, bias": ("encoder.embedding.norm.bias",),
    "norms of the layers, weights": ("attention_norm.weight", "feedforward_norm.weight"),
    "norms of the layers, biases": ("attention_norm.bias", "feedforward_norm.bias"),
    "biases of the layers": ("qkv.bias", "attention.out.bias", "up.bias", "down.bias"),
    "matrices of the layers": ("qkv.weight", "attention.out.weight", "up.weight", "down.weight"),
    "bias of the masked words": ("heads.mlm.bias",),
    "everything": ("",),
}
"""Parts of the model -> what names of their weights contain."""

AUTOCAST = "transformers, bf16 autocast"
PEERS = {"transformers, bf16 weights": 1.0, AUTOCAST: 0.2}
"""Peers -> targets; autocast keeps weights, norms and the states between layers in fp32."""

LIMIT = 0.05
"""Of the error of any part, where there is no peer."""

OURS = kept.How("bf16 weights, gradients added up in fp32, packed", 1.0)

Gradient = dict[str, Tensor]


def main(options: Options) -> None:
    """All rows at once: they are of one model, which takes longest."""
    book = options.book("gradients")
    if options.quick or not book.rows:
        with TemporaryDirectory() as place:
            for row in measured(Path(place), quick=options.quick):
                book.add(row)
    book.close()


def measured(place: Path, *, quick: bool) -> Iterator[kept.Row]:
    tokenizer, drawn = samples(place, 64 if quick else SAMPLES)
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab=tokenizer.vocab_size,
        hidden=64,
        layers=2,
        heads=2,
        intermediate=256,
        max_positions=128,
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = build(config, ("mlm", "nsp"))
    learn(model, drawn, STEPS // 20 if quick else STEPS)
    save(place / "model", model, tokenizer, BERT)
    weights = model.state_dict()

    def fresh() -> Model:
        same = build(config, ("mlm", "nsp"))
        same.load_state_dict(weights)
        return same

    for budget in BUDGETS[:2] if quick else BUDGETS:
        batches = collate(drawn, head="nsp", max_batch_tokens=budget)
        exact = learned(fresh(), batches, torch.float32)
        yield kept.row(
            f"a step of {tokens(batches):,} tokens in {len(batches)} batches, relative error",
            error(learned(fresh(), batches, torch.bfloat16), exact),
            error(added_in_bf16(fresh(), batches), exact),
            peer_name="batches added up in bf16",
            unit="",
            target=1.0,
            better="lower",
            how=(OURS, kept.How("bf16 weights and gradients, packed", 1.0)),
        )
    for size in SIZES[:1] if quick else SIZES:
        batches = collate(up_to(drawn, size), head="nsp", max_batch_tokens=10**6)
        exact = learned(fresh(), batches, torch.float32)
        found = learned(fresh(), batches, torch.bfloat16)
        peers = PEERS if size == SIZES[0] else ()
        beside = {peer: theirs(place / "model", fresh(), *batches, peer=peer) for peer in peers}
        for part, names in PARTS.items():
            for peer, target in PEERS.items() if beside else [(kept.LIMIT, 1.0)]:
                yield kept.row(
                    f"one batch of {tokens(batches):,} tokens, {part}, relative error",
                    error(found, exact, names),
                    error(beside[peer], exact, names) if beside else LIMIT,
                    peer_name=peer,
                    unit="",
                    target=target,
                    better="lower",
                    how=(OURS, kept.How(peer)) if beside else None,
                )


def samples(place: Path, count: int) -> tuple[Tokenizer, list[Sample]]:
    """The first samples of 128 tokens of a corpus of documents, with what is masked."""
    documents = text.documents(MEGABYTES)
    tokenizer = train_vocabulary(documents, kind="wordpiece", size=PIECES)
    source = place / "text.jsonl"
    source.write_text(
        "\n".join(json.dumps({"text": document}) for document in documents), encoding="utf-8"
    )
    corpus = prepare([source], tokenizer=tokenizer, out=place / "corpus")
    return tokenizer, Samples(corpus, tokenizer, Sampling(), Masking(), seed=0).batch(0, count)


def learn(model: Model, drawn: Sequence[Sample], count: int) -> None:
    """Steps of AdamW over the samples, in fp32."""
    masters = Masters(model, torch.float32)
    optimizer = adamw(masters.weights, learning_rate=1e-3, weight_decay=0.01)
    groups = (
        collate(
            [drawn[i % len(drawn)] for i in range(step * BATCH, (step + 1) * BATCH)],
            head="nsp",
            max_batch_tokens=10**6,
        )
        for step in range(count)
    )
    for _ in steps(masters, pretrain, groups, optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0):
        pass


def up_to(drawn: Sequence[Sample], size: int) -> list[Sample]:
    """The first samples, about so many tokens."""
    found, total = [], 0
    for sample in drawn:
        if total + len(sample) > size:
            break
        found.append(sample)
        total += len(sample)
    return found


def tokens(batches: Sequence[Batch]) -> int:
    return sum(batch.layout.total for batch in batches)


def learned(model: Model, batches: Sequence[Batch], dtype: torch.dtype) -> Gradient:
    """The gradient of a step as the training loop hands it to the optimizer."""
    masters, found = Masters(model, dtype), Gradient()

    class Keep(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for name, weight in masters.weights.items():
                assert weight.grad is not None
                found[name] = weight.grad.clone()

    optimizer = Keep(masters.weights.values(), lr=0.0)
    for _ in steps(
        masters, pretrain, [batches], optimizer, lambda _: 1.0, max_grad_norm=float("inf"), seed=0
    ):
        pass
    return found


def added_in_bf16(model: Model, batches: Sequence[Batch]) -> Gradient:
    """The same where torch adds the gradients of all batches up in the weights' own type."""
    model = model.to(torch.bfloat16).train()
    counts = totals(batches)
    for batch in batches:
        pretrain(model, batch, counts).total.backward()
    return {
        name: weight.grad.float()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def theirs(folder: Path, model: Model, batch: Batch, *, peer: str) -> Gradient:
    """The gradient of the same model and batch, padded, by transformers."""
    from transformers import BertForPreTraining

    dtype = torch.float32 if peer == AUTOCAST else torch.bfloat16
    network = BertForPreTraining.from_pretrained(folder, dtype=dtype).train()
    owner, positions = batch.layout.sequence_ids, batch.layout.positions
    shape = (len(batch.layout.lengths), batch.layout.lengths[-1])

    def padded(values: Tensor, empty: int) -> Tensor:
        return torch.full(shape, empty).index_put_((owner, positions), values)

    assert batch.token_indices is not None
    labels = torch.full_like(batch.ids, -100).index_copy(
        0, batch.token_indices, batch.targets["mlm"]
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=peer == AUTOCAST):
        loss = network(
            input_ids=padded(batch.ids, 0),
            token_type_ids=padded(batch.types, 0),
            attention_mask=padded(torch.ones_like(batch.ids), 0),
            labels=padded(labels, -100),
            next_sentence_label=batch.targets["nsp"],
        ).loss
    loss.backward()
    found = {name: weight.grad for name, weight in network.named_parameters()}
    ours = [name for name, _ in model.named_parameters()]
    return BERT.read(ours, found, model.config)


def error(found: Gradient, exact: Gradient, names: Sequence[str] = ("",)) -> float:
    """The norm of the difference over that of the exact, of all weights of these names."""
    chosen = [name for name in exact if any(part in name for part in names)]
    apart = torch.cat([(found[n].double() - exact[n].double()).flatten() for n in chosen])
    whole = torch.cat([exact[n].double().flatten() for n in chosen])
    return float(apart.norm() / whole.norm())
