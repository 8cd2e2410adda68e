"""Fine-tuning of encoder-decoder models on text pairs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.pipelines.test_special_tokens import tokenizer_of
from torch.nn import functional as F

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.checkpoint.weights import LoadReport
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, DataError
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.generation_config import Generation
from bertkit.extensions.generation.tasks.language import target_logprobs
from bertkit.extensions.generation.tasks.seq2seq import Seq2seq, Seq2seqOptions
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.nn import cross_entropy
from bertkit.objectives.loss import totals
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.tasks.summarize import SummaryExample
from bertkit.tasks.task import Reading, by_example, group, make_batch, run_head

ROWS = {
    "the cat sat on the mat and slept": "a cat slept",
    "two dogs ran over the hill": "dogs ran",
    "the old man read a book by the sea": "a man read",
    "it rained on the town all day": "it rained",
}
EXAMPLES = [
    SummaryExample(text, (target,), f"a:{n}") for n, (text, target) in enumerate(ROWS.items(), 1)
]


def write_model(folder: Path, family: str) -> Path:
    """Write a randomly initialized model with a vocabulary trained on the rows."""
    texts = folder.parent / f"{family}.txt"
    texts.write_text("\n".join([*ROWS, *ROWS.values(), "summarize: "]))
    use = "spans" if family == "t5" else "encode"
    out = folder.parent / f"{family}-vocabulary"
    tokenizer = train_vocabulary([texts], out=out, kind="bpe", size=400, use=use)
    shape: dict[str, Any] = {"vocab": tokenizer.vocab_size, "hidden": 64, "layers": 2, "heads": 4}
    shape |= {"intermediate": 128, "max_positions": 64}
    model_family = FAMILIES[family]
    assert model_family.decoder is not None
    torch.manual_seed(0)
    model = build(model_family.config(shape), ("lm",), decoder=model_family.decoder.config(shape))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embedding" not in name:
                weight.mul_(5)  # the output depends on the source
    save(folder, model, tokenizer, model_family)
    return folder


@pytest.fixture(scope="module", params=["bart", "t5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / request.param, request.param)


def task_for(folder: Path, options: Seq2seqOptions | None = None) -> tuple[bertkit.Loaded, Seq2seq]:
    loaded = bertkit.load(folder)
    return loaded, Seq2seq((), options).with_decoder(loaded.begin, loaded.target)


@pytest.mark.parametrize("forced", [None, 0])
@pytest.mark.parametrize("single", ["$A", "$A </s>", "<s> $A", "<s> $A </s>"])
def test_target_has_the_special_tokens_of_the_tokenizer(single: str, forced: int | None) -> None:
    tokenizer = tokenizer_of(single)
    begin = bertkit.Loaded(
        SimpleNamespace(decoder=True),  # type: ignore[arg-type]
        tokenizer, FAMILIES["bart"], LoadReport(), Path(),
        generation=Generation(start=7, first=forced),
    ).begin  # fmt: skip
    task = Seq2seq().with_decoder(begin, tokenizer)
    examples = [SummaryExample("a", ("ab",), "a:1")]
    (feature,) = task.features(examples, tokenizer, 64, long="error", labeled=True)
    starts = [0] if "<s>" in single else []
    assert feature.encoding.ids.tolist() == [7, *starts, *tokenizer.ids(["ab"])[0], 1]


def test_loss_and_scores_match_transformers(folder: Path) -> None:
    """The labels of a row are the target with the special tokens of the tokenizer."""
    loaded, task = task_for(folder)
    features = task.features(EXAMPLES, loaded.tokenizer, 64, long="error", labeled=True)
    batch = make_batch(task, features)
    hf_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    losses, counts = [], []
    with torch.no_grad():
        bertkit_loss = task.loss(loaded.model, batch, totals([batch])).total.item()
        for text, target in ROWS.items():
            source = torch.tensor(loaded.tokenizer.encode(text).ids)[None]
            labels = torch.tensor(loaded.tokenizer.encode(target).ids)[None]
            losses.append(hf_model(input_ids=source, labels=labels).loss.item())
            counts.append(labels.numel())
        flipped_loss = hf_model(input_ids=source.flip(1), labels=labels).loss.item()
    assert bertkit_loss == pytest.approx(np.average(losses, weights=counts), abs=3e-6)
    assert abs(flipped_loss - losses[-1]) > 6e-6  # control: the loss depends on the source

    outputs = run_head(task, Engine(loaded.model, max_batch_tokens=30), features)
    answers = task.answers(by_example(EXAMPLES, group(features), outputs), torch.nn.Identity())
    assert [answer.tokens for answer in answers] == counts
    assert [-a.log_probability for a in answers] == pytest.approx(losses, abs=1e-5)
    score = task.score(answers, EXAMPLES)["log_probability"]
    assert score == pytest.approx(-bertkit_loss, abs=1e-5)


def test_finetuned_model_generates_training_targets(folder: Path, tmp_path: Path) -> None:
    rows = [{"source": source, "target": target} for source, target in ROWS.items()]
    settings = Finetune(epochs=2, batch_size=4, learning_rate=3e-3, weight_decay=0.0)
    scores = finetune(
        "seq2seq", folder, train=rows * 40, dev=rows, out=tmp_path / "out", settings=settings,
        options={"prompt": "summarize: "},
    )  # fmt: skip
    assert scores["perplexity"] < 1.5
    writer = bertkit.pipeline("generate", tmp_path / "out")
    assert [best.text.strip() for best, *_ in writer(list(ROWS))] == list(ROWS.values())
    with_lookup = writer(list(ROWS), Decoding(prompt_lookup_num_tokens=4))
    assert [best.text.strip() for best, *_ in with_lookup] == list(ROWS.values())
    # The prompt is saved with the model.
    source = writer.requests(["the cat"])[0].source
    assert source is not None
    assert "summarize" in writer.tokenizer.decode(source.tolist())


def test_features_truncate_or_reject_long_texts(folder: Path) -> None:
    loaded, task = task_for(folder, Seq2seqOptions(prompt="summarize: "))
    (feature,) = task.features(EXAMPLES[:1], loaded.tokenizer, 14, long="truncate", labeled=True)
    assert feature.truncated
    assert feature.source is not None
    assert len(feature.source) == 14
    assert len(feature.encoding) <= 14
    assert len(feature.target) == len(feature.encoding) - 1
    with pytest.raises(DataError, match=r"a:1"):
        task.features(EXAMPLES[:1], loaded.tokenizer, 14, long="error", labeled=True)
    long = [SummaryExample("a", ("the cat " * 40,), "a:9")]
    with pytest.raises(DataError, match=r"a:9: the target has \d+ tokens, but the maximum"):
        task.features(long, loaded.tokenizer, 14, long="error", labeled=True)


def test_finetune_rejects_model_without_decoder(tiny: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"source": "a b", "target": "a"}\n')
    with pytest.raises(CheckpointError, match=r"not an encoder-decoder model; use T5, BART"):
        finetune("seq2seq", tiny, train=data, dev=data, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"source": " ", "target": "a"}', ":1: the document is empty"),
        ('{"source": "a", "target": ""}', ":1: no target"),
        ('{"source": "a", "goal": "b"}', "no column has a known name for the target"),
    ],
)
def test_reader_rejects_invalid_rows(row: str, message: str, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(row + "\n")
    with pytest.raises(DataError, match=message):
        Seq2seq.reader.read(data, Reading(), labeled=True)


@pytest.mark.parametrize("rows", [1, 7, 16, 40])
def test_target_logprobs_match_plain_formula(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_BYTES", 7 * 20 * 8)
    x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(20, 8).double().requires_grad_(), torch.randn(20).double()
    targets, upstream = torch.randint(0, 20, (rows,)), torch.randn(rows)
    plain = F.linear(x, weight, bias).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    actual = target_logprobs(x, weight, bias, targets)
    torch.testing.assert_close(actual.double(), plain, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(target_logprobs(x, weight, bias, targets), actual)
    expected = torch.autograd.grad((plain * upstream).sum(), [x, weight])
    for a, b in zip(
        torch.autograd.grad((actual * upstream).sum(), [x, weight]), expected, strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
