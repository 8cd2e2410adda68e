"""Tests of the benchmarks: alternating calls, ratios, stored results and baselines."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from benchmarks import __main__, embed, finetune, harness, kept, pretrain, text, trainer

from bertkit.extensions.export import tuning_record as tuned
from bertkit.nn import precision

RESULTS = sorted(kept.RESULTS.glob("*/*.json"))
SETUPS = (kept.Setup("fp32, packed", 1.0), kept.Setup("fp32, in order", 0.5))


@pytest.mark.parametrize("warm", [1, 3])
def test_turns_alternate_sides_after_warmup(warm: int) -> None:
    called: list[str] = []
    times, answers = harness.turns(
        {name: lambda name=name: called.append(name) or name for name in "ABC"},  # type: ignore[misc]
        rounds=2,
        warm=warm,
    )
    assert "".join(called) == "ABC" * (warm + 2)
    assert answers == {"A": ["A", "A"], "B": ["B", "B"], "C": ["C", "C"]}
    assert [len(kept) for kept in times.values()] == [2, 2, 2]


def test_ratio_is_speedup_for_rates_and_times() -> None:
    rate = kept.row("", 30.0, 10.0, peer_name="", unit="x/s", target=3.0, better="higher")
    time = kept.row("", 10.0, 30.0, peer_name="", unit="s", target=3.5, better="lower")
    assert (rate.ratio, rate.holds) == (3.0, True)
    assert (time.ratio, time.holds) == (3.0, False)


def test_main_reports_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(pretrain, "main", lambda options: importlib.import_module("faiss"))
    with pytest.raises(SystemExit) as ended:
        __main__.main(["pretrain"])
    assert ended.value.code == 2
    assert "requires faiss; run make bench NAME=pretrain to install it" in capsys.readouterr().err
    monkeypatch.setattr(pretrain, "main", lambda options: importlib.import_module("bertkit.none"))
    with pytest.raises(ModuleNotFoundError):
        __main__.main(["pretrain"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: {pretrain,finetune,"),
        (["none"], "invalid choice: 'none'"),
        (["embed", "--seeds", "0"], "embed: --seeds is not supported"),
    ],
)
def test_main_rejects_bad_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        __main__.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", __main__.NAMES)
def test_every_benchmark_has_a_main(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_compare_returns_rate_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    # With this clock, every call takes one second.
    monkeypatch.setattr("benchmarks.harness.time.perf_counter", lambda: float(next(ticks)))

    def compare(work: float | None) -> kept.Row:
        return harness.compare(
            "", lambda: 0, lambda: 0, peer_name="", unit="", work=work, target=1.0, setups=SETUPS
        )

    assert (compare(400.0).ours, compare(400.0).ratio) == (400.0, 1.0)
    assert (compare(None).ours, compare(None).ratio) == (1.0, 1.0)


def rows() -> tuple[kept.Row, kept.Row]:
    fast = kept.row(
        "a <b>", 30, 10, peer_name="peer", unit="x/s", target=2, better="higher", setups=SETUPS
    )
    close = kept.row("c", 2.1, 2.2, peer_name=kept.LIMIT, unit="b", target=1, better="lower")
    return fast, close


def test_book_writes_results(tmp_path: Path) -> None:
    book = kept.Book("toy", folder=tmp_path)
    book.leave_out("no bf16 rows")
    book.add(*rows())
    assert [p.relative_to(tmp_path) for p in tmp_path.rglob("*.*")] == [
        Path(kept.processor_class()) / "toy.json"
    ]
    found = json.loads(book.path.read_text(encoding="utf-8"))
    assert found["processor"] == kept.processor_class()
    assert found["rows"][0]["ratio"] == 3.0
    assert found["rows"][0]["peer_how"] == {"settings": "fp32, in order", "fill": 0.5}
    assert found["notes"] == ["no bf16 rows"]
    assert {"python", "torch", "bertkit"} <= set(found["versions"])


def test_book_skips_stored_rows(tmp_path: Path) -> None:
    fast, close = rows()
    book = kept.Book("toy", folder=tmp_path)
    assert book.needs(*fast.key)
    book.add(fast)
    again = kept.Book("toy", folder=tmp_path)
    assert not again.needs(*fast.key)
    assert again.needs(*close.key)
    again.add(close)
    assert [*kept.Book("toy", folder=tmp_path).rows] == [fast.key, close.key]
    filtered = kept.Book("toy", folder=tmp_path, forget=partial(kept.matches, "A <B>, peer"))
    assert [*filtered.rows] == [close.key]
    assert filtered.needs(*fast.key)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_local_run_ignores_published_results(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "processor_class", lambda: path.parent.name)
    monkeypatch.setattr(kept, "LOCAL", tmp_path)
    book = kept.Book(path.stem)
    assert book.rows == {}
    before = path.read_bytes()
    book.add(*rows())
    assert path.read_bytes() == before
    assert {file.parent for file in tmp_path.rglob("*.json*")} == {tmp_path / path.parent.name}


def test_git_ignores_local_results() -> None:
    root = kept.LOCAL.parents[1]
    ignored = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"/{kept.LOCAL.relative_to(root)}/" in ignored


def test_benchmark_prints_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = kept.Book("toy", folder=tmp_path)
    (row, _) = rows()
    assert book.needs(*row.key)
    assert capsys.readouterr().err == "toy: measuring a <b>, against peer\n"
    monkeypatch.setattr(harness, "SILENT_SECONDS", -1)
    harness.turns({"A": lambda: 1}, rounds=1)
    assert capsys.readouterr().err == "round 1 of 2\nround 2 of 2\n"
    book.add(row)
    assert capsys.readouterr().err == "toy: a <b>, against peer: 3.00×\n"
    assert not book.needs(*row.key)
    assert capsys.readouterr().err == ""


def test_book_needs_only_requested_rows(tmp_path: Path) -> None:
    book = kept.Book("toy", folder=tmp_path, only="FP32")
    assert book.needs("embed, fp32", "OpenVINO")
    assert book.needs("embed", "OpenVINO, bf16", "OpenVINO, fp32")
    assert not book.needs("embed, bf16", "OpenVINO")


@pytest.mark.parametrize("fresh", [False, True])
def test_book_renames_results_of_other_versions_or_threads(
    fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (row, other) = rows()
    monkeypatch.setattr(kept, "LOCAL", tmp_path)
    options = harness.Options(fresh=fresh, only="a <b>")
    kept.Book("toy").add(row, other)
    with monkeypatch.context() as changed:
        changed.setattr(kept, "versions", lambda: {"python": "2.7"})
        book = options.book("toy")
        assert book.needs(*row.key)
        assert "measuring again, because machine, versions or number of threads differ" in (
            capsys.readouterr().err
        )
        book.add(row)
    old = json.loads(book.path.with_suffix(".old.json").read_bytes())
    assert len(old["rows"]) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert not options.book("toy").rows


@pytest.mark.parametrize(
    ("name", "flags", "found"),
    [
        ("Intel(R) Xeon(R) Processor", "avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile",
         "intel-xeon-avx512-vnni-bf16-amx"),
        ("Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "avx2 avx512f avx512_vnni",
         "intel-xeon-platinum-8259cl-avx512-vnni"),
        ("AMD EPYC 7B13 64-Core Processor", "avx avx2", "amd-epyc-7b13-avx2"),
        ("arm", "asimd bf16", "arm-bf16"),
    ],
)  # fmt: skip
def test_processor_class_contains_instruction_sets(
    name: str, flags: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert kept.processor_class(name, flags) == found
    monkeypatch.setattr(tuned, "cpuinfo", lambda: f"model name\t: {name}\nflags\t: {flags}\n")
    assert (
        kept.processor_class(flags=flags) == found
    )  # the processor name is read from this machine
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert kept.processor_class(name, flags) == f"{found}-at-most-avx2"


@pytest.mark.parametrize("there", [True, False])
def test_unsupported_precisions_are_skipped(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bf16_is_faster", lambda device: there)
    monkeypatch.setattr(embed, "unavailable", lambda: None if there else "no such operator")
    assert ("bf16" in embed.precisions()) == there
    assert (("OpenVINO", "bf16") in embed.peers()) == there
    assert (("OpenVINO", "int8") in embed.peers()) == ("int8" in embed.precisions()) == there
    assert ("bf16" in finetune.ways()) == there
    assert any("bf16" in variant.settings for variant in pretrain.ways()) == there
    assert any(variant.masked_only for variant in pretrain.ways())


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_stored_results_are_consistent(path: Path) -> None:
    result = msgspec.json.decode(path.read_bytes(), type=kept.Result)
    assert (result.processor, result.name) == (path.parent.name, path.stem)
    assert result.rows
    assert len({row.key for row in result.rows}) == len(result.rows)
    for row in result.rows:
        assert row.ratio == pytest.approx(row.ours / row.peer) or row.ratio == pytest.approx(
            row.peer / row.ours
        )
        assert row.holds == (row.ratio >= row.target)
        if row.unit in ("s", "ms") or row.unit.endswith("/s"):
            assert row.peer_name == kept.LIMIT or (row.ours_how.settings and row.peer_how.settings)


def test_finetune_benchmark_resumes_and_keeps_old_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[int, str, str]] = []

    def run(name: str, seed: int, side: finetune.Side, folder: Path, much: str) -> finetune.Run:
        called.append((seed, side, much))
        is_bertkit = side == "ours"
        return finetune.Run(
            task=name, seed=seed, side=side, train=1.0 if is_bertkit else 2.0 + seed, predict=1.0,
            train_fill=1.0, predict_fill=0.5, precision="fp32", scores={"accuracy": 0.5},
            answered={}, train_rows=20, dev_rows=10, epochs=1, date=kept.now(),
            machine=kept.machine(), versions=kept.versions(),
        )  # fmt: skip

    def results() -> list[kept.Row]:
        (path,) = tmp_path.glob("*/finetune.json")
        return msgspec.json.decode(path.read_bytes(), type=kept.Result).rows

    monkeypatch.setattr(kept, "LOCAL", tmp_path)
    monkeypatch.setattr(precision, "bf16_is_faster", lambda device: False)
    monkeypatch.setattr(finetune, "processes", lambda: nullcontext(run))
    monkeypatch.setattr(finetune, "data_folder", lambda: tmp_path)
    monkeypatch.setattr(finetune, "chosen", lambda tasks, folder: ["sst2"])
    finetune.main(harness.Options(speed=True, seeds="0"))
    sides = ["ours", "default", "grouped"]
    assert [(s, m) for _, s, m in called if m == "speed"] == [(side, "speed") for side in sides]
    called.clear()
    finetune.main(harness.Options(speed=True, seeds="0,1"))
    assert {seed for seed, _, much in called if much == "speed"} == {1}
    found = {row.key: row for row in results()}
    row = found["sst2, training 20 rows", "transformers Trainer, fp32, grouped by length"]
    assert row.ratio == 2.5
    called.clear()
    monkeypatch.setattr(kept, "versions", lambda: {"python": "2.7"})
    finetune.main(harness.Options(speed=True, seeds="0"))
    assert {seed for seed, _, much in called if much == "speed"} == {0}
    assert len(results()) == 4
    called.clear()
    finetune.main(harness.Options(speed=True, seeds="0,1", fresh=True, minutes=-1.0))
    assert not called
    assert results()  # the results of the previous run are kept until new results exist


# ---- Baselines


LENGTHS = [3, 17, 90, 5, 44, 120, 8, 61] * 32


def test_grouping_by_length_reduces_padding_and_keeps_samples() -> None:
    def epoch(grouped: bool) -> tuple[float, list[int]]:
        found = pretrain.batches(LENGTHS, 8, grouped)
        epoch_batches = [next(found) for _ in range(len(LENGTHS) // 8)]
        padded = sum(max(LENGTHS[index] for index in batch) * len(batch) for batch in epoch_batches)
        return sum(LENGTHS) / padded, sorted(index for batch in epoch_batches for index in batch)

    fill, grouped_indices = epoch(True)
    mixed, mixed_indices = epoch(False)
    assert grouped_indices == mixed_indices == list(range(len(LENGTHS)))
    assert fill > 0.95
    assert mixed < 0.6


def test_masked_loss_equals_transformers() -> None:
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForPreTraining(BertConfig(vocab_size=20, intermediate_size=8, **small)).eval()
    ids = torch.randint(1, 20, (3, 6))
    labels = torch.where(torch.rand(3, 6) < 0.5, ids, -100)
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "labels": labels,
        "next_sentence_label": torch.tensor([0, 1, 0]),
    }
    expected = model(**batch).loss
    torch.testing.assert_close(pretrain.masked_loss(model, batch), expected)
    batch["next_sentence_label"] = torch.tensor([1, 0, 1])
    assert not torch.isclose(pretrain.masked_loss(model, batch), expected)


def test_collator_measures_fraction_without_padding() -> None:
    collator = trainer.Padding(lambda rows: {"attention_mask": torch.tensor(rows)})
    collator([[1, 1, 1, 1], [1, 0, 0, 0]])  # type: ignore[list-item]
    assert collator.fill() == 5 / 8
    collator([[1, 1, 0, 0]])  # type: ignore[list-item]
    assert collator.fill() == 1 / 2


def test_unsort_restores_order_of_rows() -> None:
    indices = [2, 0, 1]
    first, second = finetune.unsort((np.array([20, 0, 10]), np.array([2, 0, 1])), indices)
    assert first.tolist() == [0, 10, 20]
    assert second.tolist() == [0, 1, 2]


def test_benchmark_text_is_deterministic() -> None:
    found = text.sentences(1024)
    assert found == text.sentences(1024)
    assert len(set(map(len, found))) > 100
    with pytest.raises(ValueError, match="sentences"):
        text.sentences(10**6)
