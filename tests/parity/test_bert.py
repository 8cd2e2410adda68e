"""BERT equals transformers' on tiny random models: body, every head, the loss, gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.folder import Loaded, save
from bertkit.families import BERT
from bertkit.models.config import TransformerConfig
from bertkit.models.model import Model, build
from bertkit.nn.attention import Trace
from bertkit.objectives.loss import totals
from bertkit.objectives.pretrain import pretrain

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[parity]'")

SIZES = [3, 9, 9, 12, 20, 31]
VOCAB = 150
CLASSES = {
    ("pooler",): "BertModel",
    ("mlm",): "BertForMaskedLM",
    ("nsp",): "BertForNextSentencePrediction",
    ("mlm", "nsp"): "BertForPreTraining",
    ("classify",): "BertForSequenceClassification",
    ("choose",): "BertForMultipleChoice",
    ("answer",): "BertForQuestionAnswering",
    ("tag",): "BertForTokenClassification",
}
LABELLED = (("classify",), ("tag",))


def their_model(name: str, **settings: Any) -> Any:
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2 if name == "BertForQuestionAnswering" else 3,
        **settings,
    )
    model = getattr(transformers, name)(config)
    with torch.no_grad():  # larger than at birth, so that mistakes show
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.tie_weights()
    return model.eval()


@pytest.fixture
def tokenizer(tmp_path: Path) -> bertkit.Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCAB - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return bertkit.Tokenizer.load(tmp_path / "vocab.txt")


def opened(theirs: Any, tokenizer: bertkit.Tokenizer, folder: Path) -> Loaded:
    theirs.save_pretrained(folder)
    tokenizer.save(folder)
    return bertkit.load(folder)


def inputs() -> tuple[Batch, dict[str, Tensor]]:
    """The same sequences packed for us and padded for them."""
    layout = Packed.of(SIZES)
    ids = torch.randint(5, VOCAB, (layout.total,))
    types = (layout.positions > 4).long()
    masked = (layout.positions % 4 == 1).nonzero().squeeze(1)
    batch = Batch(
        ids,
        types,
        layout,
        masked,
        {"mlm": ids[masked], "nsp": torch.tensor([0, 1, 1, 0, 1, 0])},
    )
    shape = len(SIZES), max(SIZES)
    place = layout.owner, layout.positions
    padded = {
        "input_ids": torch.zeros(shape, dtype=torch.long).index_put(place, ids),
        "token_type_ids": torch.zeros(shape, dtype=torch.long).index_put(place, types),
        "attention_mask": torch.zeros(shape, dtype=torch.long).index_put(
            place, torch.ones_like(ids)
        ),
    }
    return batch, padded


def difference(ours: Model, theirs: Any, heads: tuple[str, ...]) -> float:
    batch, padded = inputs()
    place = batch.layout.owner, batch.layout.positions
    body = getattr(theirs, "bert", theirs)
    with torch.no_grad():
        found = ours(batch)
        hidden = body(**padded).last_hidden_state[place]
        gaps = [(ours.encoder(batch) - hidden).abs().max()]
        if heads == ("choose",):  # each sequence as the one choice of a question
            padded = {name: value[:, None] for name, value in padded.items()}
        answer = theirs(**padded)
        if "mlm" in heads:
            logits = getattr(answer, "prediction_logits", getattr(answer, "logits", None))
            gaps.append((found["mlm"] - logits[place][batch.places]).abs().max())
        if "nsp" in heads:
            logits = getattr(answer, "seq_relationship_logits", getattr(answer, "logits", None))
            gaps.append((found["nsp"] - logits).abs().max())
        if heads in (("classify",), ("choose",)):
            gaps.append((found[heads[0]] - answer.logits).abs().max())
        if "tag" in heads:
            gaps.append((found["tag"] - answer.logits[place][batch.places]).abs().max())
        if "answer" in heads:
            logits = torch.stack([answer.start_logits, answer.end_logits], -1)
            gaps.append((found["answer"] - logits[place]).abs().max())
        if "pooler" in heads:
            gaps.append((found["pooler"] - answer.pooler_output).abs().max())
    return float(torch.stack(gaps).max())


@pytest.mark.parametrize("heads", CLASSES, ids=CLASSES.values())
def test_body_and_heads_equal(
    heads: tuple[str, ...], tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    theirs = their_model(CLASSES[heads])
    ours = opened(theirs, tokenizer, tmp_path / "model")
    assert tuple(ours.model.heads) == heads
    assert difference(ours.model, theirs, heads) <= 1e-5


@pytest.mark.parametrize(
    "wrong", [{"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-2}, {"num_attention_heads": 8}]
)
def test_control_a_wrong_setting_fails(
    wrong: dict[str, Any], tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    changed = their_model("BertForPreTraining")
    for key, value in wrong.items():
        setattr(changed.config, key, value)
    ours = opened(changed, tokenizer, tmp_path / "model")
    assert difference(ours.model, their_model("BertForPreTraining"), ("mlm", "nsp")) > 1e-4


def test_loss_and_gradients_equal_in_train_mode(
    tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    theirs = their_model("BertForPreTraining")
    ours = opened(theirs, tokenizer, tmp_path / "model").model.train()
    batch, padded = inputs()
    place = batch.layout.owner[batch.places], batch.layout.positions[batch.places]
    labels = torch.full(padded["input_ids"].shape, -100).index_put(place, batch.targets["mlm"])
    their_loss = theirs.train()(
        **padded, labels=labels, next_sentence_label=batch.targets["nsp"]
    ).loss
    our_loss = pretrain(ours, batch, totals([batch])).total
    assert abs(our_loss.item() - their_loss.item()) <= 1e-5
    their_loss.backward()
    our_loss.backward()
    pairs = [
        (ours.encoder.embedding.tokens, theirs.bert.embeddings.word_embeddings),
        (ours.encoder.blocks[0].feedforward.up, theirs.bert.encoder.layer[0].intermediate.dense),
        (ours.encoder.blocks[2].attention.out, theirs.bert.encoder.layer[2].attention.output.dense),
    ]
    for mine, other in pairs:
        torch.testing.assert_close(mine.weight.grad, other.weight.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("heads", CLASSES, ids=CLASSES.values())
def test_transformers_opens_what_we_save(
    heads: tuple[str, ...], tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    config = TransformerConfig(
        vocab=VOCAB, hidden=32, layers=2, heads=2, intermediate=48, length=64
    )
    labels = ("a", "b", "c") if heads in LABELLED else ()
    ours = build(config, heads, labels=labels).eval()
    save(tmp_path / "saved", ours, tokenizer, BERT, labels=labels)
    theirs = getattr(transformers, CLASSES[heads]).from_pretrained(tmp_path / "saved").eval()
    assert difference(ours, theirs, heads) <= 1e-5
    if labels:
        assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    again = bertkit.load(tmp_path / "saved")
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


def test_trace_equals_their_states_and_attention(
    tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    theirs = their_model("BertModel", attn_implementation="eager")
    ours = opened(theirs, tokenizer, tmp_path / "model").model
    batch, padded = inputs()
    trace = Trace()
    with torch.no_grad():
        ours.encoder(batch, trace)
        answer = theirs(**padded, output_hidden_states=True, output_attentions=True)
    place = batch.layout.owner, batch.layout.positions
    assert len(trace.states) == 4
    for mine, other in zip(trace.states, answer.hidden_states, strict=True):
        torch.testing.assert_close(mine, other[place], atol=1e-5, rtol=1e-4)
    for mine, other in zip(trace.attention, answer.attentions, strict=True):
        for sequence, size in enumerate(SIZES):
            exact = other[sequence, :, :size, :size]
            torch.testing.assert_close(mine[sequence], exact, atol=1e-5, rtol=1e-4)
    assert [h.shape for h in trace.heads] == [(batch.layout.total, 4, 8)] * 3


def test_minilm_embeddings_equal_sentence_transformers(minilm: Path, english: list[str]) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[parity]'")
    texts = [text[:n] for text in english[:12] for n in (1, 40, 300)]
    theirs = peer.SentenceTransformer(str(minilm), device="cpu").encode(texts)
    ours = bertkit.pipeline("embed", minilm)(texts)
    assert ours.dtype == theirs.dtype == "float32"
    assert abs(ours - theirs).max() <= 1e-5
    assert abs(bertkit.pipeline("embed", minilm, pooling="cls")(texts) - theirs).max() > 1e-2
