"""Pipelines: texts in, typed answers out, in order; long texts as asked."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.factories import SPECIALS, tiny_folder, tiny_model, tiny_tokenizer

import bertkit
from bertkit.checkpoint.folder import save
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.families import BERT
from bertkit.models.model import build
from bertkit.tasks.classify import Classify, Example, Options, reads_pairs

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tokenizer = tiny_tokenizer(LETTERS)
    for name, heads, labels in (
        ("pretrained", ("mlm", "nsp"), ()),
        ("classifier", ("classify",), ("no", "yes", "perhaps")),
        ("regressor", ("classify",), ("score",)),
    ):
        tiny_folder(root / name, tokenizer, *heads, labels=labels, length=16)
    return root


def test_embed_gives_float32_rows(folders: Path) -> None:
    embed = bertkit.pipeline("embed", folders / "pretrained")
    vectors = embed(["a b", "c", "a b"])
    assert vectors.shape == (3, 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-6)
    np.testing.assert_allclose(embed("a b")[0], vectors[0], atol=1e-6)
    assert embed([]).shape == (0, 16)


def test_long_texts_are_refused_cut_or_read_in_windows(folders: Path) -> None:
    embed = bertkit.pipeline("embed", folders / "pretrained")
    long = " ".join("abcdefghij" * 3)
    with pytest.raises(DataError, match=r"32 tokens.*16"):
        embed([long])
    cut = embed([long], long="truncate")
    np.testing.assert_allclose(cut, embed([" ".join("abcdefghijabcd")]), atol=1e-5)
    whole = embed([long], long="window")
    assert whole.shape == cut.shape
    assert abs(whole - cut).max() > 1e-4
    short = ["a b c", "d"]
    np.testing.assert_allclose(embed(short, long="window"), embed(short), atol=1e-6)


def test_windows_are_averaged_by_their_length(folders: Path) -> None:
    embed = bertkit.pipeline("embed", folders / "pretrained")
    text = " ".join("abcdefghijabcdefghij")
    windows = embed.tokenizer.windows(text, max_length=16, overlap=4)
    assert len(windows) > 1
    parts = [embed([embed.tokenizer.decode(w.ids)])[0] * len(w) for w in windows]
    expected = sum(parts) / sum(len(w) for w in windows)
    np.testing.assert_allclose(embed([text], long="window")[0], expected, atol=1e-5)


def test_classify_answers_in_order(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    answers = classify(["a", "b c d", "a"])
    assert [a.label for a in answers] == [max(a.scores, key=a.scores.__getitem__) for a in answers]
    for answer in answers:
        assert set(answer.scores) == {"no", "yes", "perhaps"}
        assert sum(answer.scores.values()) == pytest.approx(1.0, abs=1e-5)
        assert answer.score == max(answer.scores.values())
        assert not answer.truncated
    assert answers[0].scores == pytest.approx(answers[2].scores, abs=1e-5)
    assert json.loads(msgspec.json.encode(answers))[0]["label"] == answers[0].label


def test_pairs_differ_from_single_texts(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    single, pair = classify("a b"), classify(("a", "b"))
    assert single.scores != pytest.approx(pair.scores, abs=1e-6)


def test_truncation_is_said(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    answers = classify(["a", " ".join("ab" * 20)], long="truncate")
    assert [answer.truncated for answer in answers] == [False, True]


def test_regression_gives_its_number(folders: Path) -> None:
    regress = bertkit.pipeline("classify", folders / "regressor")
    answer = regress("a b")
    assert answer.label == "score"
    assert answer.score == answer.scores["score"]


def test_fill_mask_ranks_pieces(folders: Path) -> None:
    fill = bertkit.pipeline("fill-mask", folders / "pretrained")
    [[one], two] = fill(["a [MASK] b", "[MASK] c [MASK]"], top=4)
    assert [answer.mask for answer in two] == [0, 1]
    chances = [candidate.score for candidate in one.candidates]
    assert len(chances) == 4
    assert chances == sorted(chances, reverse=True)
    everything = fill(["a [MASK] b"], top=100)[0][0].candidates
    assert sum(f.score for f in everything) == pytest.approx(1.0, abs=1e-5)
    assert {f.token for f in everything} == {*SPECIALS, *LETTERS}
    with pytest.raises(DataError, match=r"nothing is masked; write \[MASK\]"):
        fill(["a b"])


def test_next_sentence_is_a_probability(folders: Path) -> None:
    follows = bertkit.pipeline("next-sentence", folders / "pretrained")
    answers = follows(["a b", "c"], ["c d", "e"])
    assert len(answers) == 2
    assert all(0.0 < answer.next < 1.0 for answer in answers)


def test_a_missing_head_is_named(folders: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no mlm head \(heads: classify\)"):
        bertkit.pipeline("fill-mask", folders / "classifier")
    with pytest.raises(
        CheckpointError, match="no classify head \\(heads: mlm, nsp\\); fine-tune one"
    ):
        bertkit.pipeline("classify", folders / "pretrained")


def test_wrong_names_are_refused(folders: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'embed'"):
        bertkit.pipeline("embedd", folders / "pretrained")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="pooling: 'sum'"):
        bertkit.pipeline("embed", folders / "pretrained", pooling="sum")
    with pytest.raises(ConfigError, match="classify has none"):
        bertkit.pipeline("classify", folders / "classifier", pooling="cls")  # type: ignore[call-overload]


def test_one_text_many_and_a_stream(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    texts = ["a", "b c", "d"] * 100
    many = classify(texts)
    assert classify(texts[1]).scores == pytest.approx(many[1].scores, abs=1e-5)
    read = 0

    def source() -> Iterator[str]:
        nonlocal read
        for text in texts:
            read += 1
            yield text

    stream = classify(source())
    first = next(stream)
    assert read < len(texts)  # answered before all is read
    for one, other in zip([first, *stream], many, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
    assert classify([]) == []
    assert list(classify(iter(()))) == []


def test_what_cannot_be_asked_is_named(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    for item in (3, ("a",), ("a", 3), (3, "a"), ("a", ["b", 3])):
        with pytest.raises(DataError, match="is nothing to ask about; give a text"):
            classify([item])
    with pytest.raises(DataError, match="3 texts; give one, or a pair"):
        classify(("a", ["b", "c"]))
    with pytest.raises(ConfigError, match="long: classify knows error, truncate, window"):
        classify("a", long="tile")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no second text, and others have"):
        classify([("a", "b"), "c"])
    assert bertkit.pipeline("next-sentence", folders / "pretrained")([], []) == []


def test_padding_rows_of_a_vocabulary_are_never_fillers(tmp_path: Path) -> None:
    save(tmp_path / "padded", tiny_model(64, "mlm"), tiny_tokenizer(LETTERS), BERT)
    fill = bertkit.pipeline("fill-mask", tmp_path / "padded")
    candidates = fill(["a [MASK]"], top=100)[0][0].candidates
    assert {f.token for f in candidates} == {*SPECIALS, *LETTERS}
    assert sum(f.score for f in candidates) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ConfigError, match="top: 0"):
        fill(["a [MASK]"], top=0)


def test_what_a_folder_cannot_answer_is_refused(folders: Path, tmp_path: Path) -> None:
    import shutil

    with pytest.raises(CheckpointError, match="name the labels of a new one"):
        bertkit.load(folders / "pretrained", heads=("classify",))
    folder = tmp_path / "multi"
    shutil.copytree(folders / "classifier", folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["problem_type"] = "multi_label_classification"
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    answer = bertkit.pipeline("classify", folder)("a b")
    assert sum(answer.scores.values()) != pytest.approx(1.0, abs=1e-3)
    assert answer.labels == [n for n in answer.labels if answer.scores[n] >= 0.5]


def test_weights_rule_over_a_stale_list_of_heads(folders: Path, tmp_path: Path) -> None:
    """transformers copies our key into the folder of a model it fine-tuned."""
    import shutil

    folder = tmp_path / "tuned"
    shutil.copytree(folders / "classifier", folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["bertkit"] = {"heads": ["mlm", "nsp"]}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert tuple(bertkit.load(folder).model.heads) == ("classify",)


def test_a_folder_of_another_task_is_named(folders: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(folders / "classifier")
    task = bertkit.tasks.find("tag")(("O", "B-x"))
    config = loaded.model.config
    save(
        tmp_path / "tagger",
        build(config, ("tag",), labels=task.labels),
        loaded.tokenizer,
        BERT,
        labels=task.labels,
        settings=task.settings(),
    )
    with pytest.raises(CheckpointError, match=r"tagger: was fine-tuned for tag, not for classify"):
        bertkit.pipeline("classify", tmp_path / "tagger")
    with pytest.raises(CheckpointError, match="no tag head"):
        bertkit.pipeline("tag", folders / "classifier")


def test_rerank_reads_pairs(folders: Path) -> None:
    rerank = bertkit.pipeline("rerank", folders / "regressor")
    texts = ["a b", "c", "a b", "d e f g h i j a b c d e f g h i j"]
    scores = rerank("a", texts)
    assert (scores.shape, scores.dtype) == ((4,), np.float32)
    np.testing.assert_allclose(scores[0], scores[2], atol=1e-6)
    score = bertkit.pipeline("classify", folders / "regressor")
    np.testing.assert_allclose(scores[1], score(("a", "c")).score, atol=1e-6)
    assert rerank("a", []).shape == (0,)


def test_rerank_of_two_labels_gives_log_odds(folders: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(folders / "pretrained")
    model = build(loaded.model.config, ("classify",), labels=("no", "yes"))
    task = Classify(("no", "yes"), Options(pairs=True))
    settings = {"labels": task.labels, "settings": task.settings()}
    save(tmp_path / "two", model, loaded.tokenizer, BERT, **settings)
    scores = bertkit.pipeline("rerank", tmp_path / "two")("a b", ["c", "d"])
    answers = bertkit.pipeline("classify", tmp_path / "two")([("a b", "c"), ("a b", "d")])
    for score, answer in zip(scores.tolist(), answers, strict=True):
        assert 1 / (1 + np.exp(-score)) == pytest.approx(answer.scores["yes"], abs=1e-6)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (("ham", "spam"), Options(pairs=False), "learned to label single texts"),
        (("stars",), Options(pairs=False, regression=True), "learned to label single texts"),
        (("a", "b"), Options(pairs=True, multi_label=True), "tells 2 labels apart"),
        (("a", "b", "c"), Options(pairs=True), "tells 3 labels apart"),
        (("no", "yes"), None, "does not say that they were learned from pairs"),
        (("fit",), Options(pairs=True, regression=True), None),
        (("LABEL_0",), None, None),  # as published cross-encoders are
    ],
)
def test_a_classifier_of_single_texts_is_no_re_ranker(
    labels: tuple[str, ...],
    options: Options | None,
    message: str | None,
    folders: Path,
    tmp_path: Path,
) -> None:
    loaded = bertkit.load(folders / "pretrained")
    model = build(loaded.model.config, ("classify",), labels=labels)
    settings = Classify(labels, options).settings() if options else {}
    save(tmp_path / "m", model, loaded.tokenizer, BERT, labels=labels, settings=settings)
    if message is None:
        assert bertkit.pipeline("rerank", tmp_path / "m")("a", ["b"]).shape == (1,)
    else:
        with pytest.raises(CheckpointError, match=message):
            bertkit.pipeline("rerank", tmp_path / "m")


def test_a_published_cross_encoder_scores_as_in_sentence_transformers(
    folders: Path, tmp_path: Path
) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[parity]'")
    made = peer.CrossEncoder(str(folders / "pretrained"), num_labels=1, device="cpu")
    made.save_pretrained(str(tmp_path / "cross"))
    config = json.loads((tmp_path / "cross" / "config.json").read_text())
    del config["bertkit"]  # of the folder it began with
    (tmp_path / "cross" / "config.json").write_text(json.dumps(config))
    texts = ["b c", "d", "e f g"]
    theirs = made.predict([("a", text) for text in texts], activation_fn=torch.nn.Identity())
    ours = bertkit.pipeline("rerank", tmp_path / "cross")("a", texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_classifier_says_whether_it_reads_pairs() -> None:
    rows = [Example("a", None, "x"), Example("b", None, "y")]
    pairs = [replace(row, pair="c") for row in rows]
    assert reads_pairs(Classify.from_examples(rows, Options()).settings()) is False
    assert reads_pairs(Classify.from_examples(pairs, Options()).settings()) is True
    assert reads_pairs({"bertkit": {"task": "classify"}}) is None


def test_what_cannot_rerank_is_refused(folders: Path) -> None:
    with pytest.raises(CheckpointError, match="tells 3 labels apart"):
        bertkit.pipeline("rerank", folders / "classifier")
    with pytest.raises(CheckpointError, match="has no classify head"):
        bertkit.pipeline("rerank", folders / "pretrained")
