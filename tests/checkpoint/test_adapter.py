"""LoRA adapters: bertkit and peft compute the same logits from each other's files."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.extensions.generation.tasks.test_seq2seq import EXAMPLES, write_model
from tests.extensions.generation.test_chat_format import vocabulary
from tests.factories import tiny_folder
from torch import Tensor

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.adapter import KEYS, write_adapter
from bertkit.checkpoint.directory import Loaded, load
from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.messages import Conversation
from bertkit.families import FAMILIES
from bertkit.models.lora import LoRA, add_lora, merged
from bertkit.models.model import Model
from bertkit.nn.lora import LoRALinear
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks import tag
from bertkit.text.vocabulary_training import train as train_tokenizer

peft = pytest.importorskip("peft", reason="pip install 'bertkit[dev]'")
transformers = pytest.importorskip("transformers")
pytestmark = [
    # The warning comes from peft.
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
]

CASES = {
    **dict.fromkeys(("bert", "roberta", "distilbert", "electra", "albert"), "classify"),
    "modernbert": "classify", "gte": "classify", "bert tag": "tag", "bert answer": "answer",
    "gpt2": "lm", "llama": "lm", "llama shared": "lm", "t5": "lm", "bart": "lm",
}  # fmt: skip
AUTO = {
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "lm": "AutoModelForCausalLM",
}
ALL = LoRA(rank=3, alpha=6.0)


def base_folder(case: str, folder: Path, english: list[str]) -> Path:
    name = case.split()[0]
    family = FAMILIES[name]
    if family.decoder is not None:
        return write_model(folder, name)
    size: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 48}
    size["length"] = 64
    if name in ("gpt2", "llama"):
        more: dict[str, Any] = {"attention.kv_heads": 2} if case == "llama shared" else {}
        more |= {"head.lm_tied": True} if case == "llama shared" else {}
        tokenizer = vocabulary("chatml")
        return tiny_folder(folder, tokenizer, "lm", family=family, spread=0.1, **size, **more)
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    # NSP adds a pooler.
    heads = ("mlm", "nsp") if name == "bert" else ("mlm",)
    return tiny_folder(folder, tokenizer, *heads, family=family, spread=0.1, **size)


def load_base(folder: Path, head: str) -> Loaded:
    torch.manual_seed(0)
    labels = ("a", "b", "c") if head in ("classify", "tag") else ()
    return load(folder, heads=[head], labels=labels)


def add_trained_lora(loaded: Loaded, lora: LoRA = ALL) -> Model:
    """Add adapters with nonzero weights to the model."""
    model = loaded.model
    sizes = partial(loaded.family.sizes, config=model.config)
    add_lora(model, lora, sizes, frozen_layers=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def bertkit_logits(model: Model, head: str) -> Tensor:
    ids = torch.tensor([6, 9, 12, 17, 9, 6])
    layout = Packed.of([len(ids)])
    batch = Batch(ids, torch.zeros_like(ids), layout)
    if model.decoder is not None:
        batch = Batch(
            ids, torch.zeros_like(ids), layout, source=batch, source_order=torch.zeros(1).long()
        )
    with torch.no_grad():
        return model(batch)[head].float()


def hf_logits(model: Any, head: str) -> Tensor:
    ids = torch.tensor([[6, 9, 12, 17, 9, 6]])
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
    if head == "answer":
        return torch.stack([out.start_logits[0], out.end_logits[0]], -1)
    return out.logits if head == "classify" else out.logits[0]


def hf_base(folder: Path, case: str) -> Any:
    head = CASES[case]
    auto = "AutoModelForSeq2SeqLM" if case in ("t5", "bart") else AUTO[head]
    more = {"num_labels": 3} if head in ("classify", "tag") else {}
    torch.manual_seed(3)
    return getattr(transformers, auto).from_pretrained(folder, **more).eval()


@pytest.mark.parametrize("case", CASES)
def test_written_adapter_matches_peft_logits(case: str, tmp_path: Path, english: list[str]) -> None:
    base, head = base_folder(case, tmp_path / "base", english), CASES[case]
    loaded = load_base(base, head)
    before = bertkit_logits(loaded.model, head)
    model = add_trained_lora(loaded).eval()
    write_adapter(tmp_path / "adapter", model, loaded.family, base=str(base))
    logits = bertkit_logits(model, head)

    other = peft.PeftModel.from_pretrained(hf_base(base, case), tmp_path / "adapter").eval()
    assert (hf_logits(other, head) - logits).abs().max() <= 1e-5
    assert (bertkit_logits(merged(model), head) - logits).abs().max() <= 1e-5
    again = load(tmp_path / "adapter")
    assert list(again.model.heads) == [head]
    assert (bertkit_logits(again.model, head) - logits).abs().max() <= 1e-5
    assert (bertkit_logits(Engine(model).model, head) - logits).abs().max() <= 1e-5
    # The control: the logits differ without the adapters.
    assert (before - logits).abs().max() > 1e-2
    with other.disable_adapter():
        assert (hf_logits(other, head) - logits).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("case", "targets", "more"),
    [
        ("llama shared", ["q_proj", "v_proj", "lm_head"], {"use_rslora": True}),
        ("gpt2", ["c_attn"], {"fan_in_fan_out": True}),
        ("t5", ["q", "v", "wo"], {}),
        ("bert", ["query", "value"], {"task_type": "SEQ_CLS"}),
    ],
)
def test_adapter_from_peft_matches_peft_logits(
    case: str, targets: list[str], more: dict[str, Any], tmp_path: Path, english: list[str]
) -> None:
    base, head = base_folder(case, tmp_path / "base", english), CASES[case]
    if case == "llama shared":
        targets = targets[:2]
    config = peft.LoraConfig(
        r=4, lora_alpha=4, target_modules=targets, init_lora_weights=False, **more
    )
    torch.manual_seed(5)
    other = peft.get_peft_model(hf_base(base, case), config).eval()
    logits = hf_logits(other, head)
    for file in ("adapter_model.safetensors", "adapter_model.bin"):
        other.save_pretrained(tmp_path / file, safe_serialization=not file.endswith(".bin"))
        assert (tmp_path / file / file).exists()
        again = load(tmp_path / file)
        assert (bertkit_logits(again.model, head) - logits).abs().max() <= 1e-5
    assert again.base == base
    if case == "bert":
        assert again.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    else:
        assert (bertkit_logits(load(base).model, head) - logits).abs().max() > 1e-2  # the control


def test_adapter_of_headless_model_matches_peft(tmp_path: Path, english: list[str]) -> None:
    """Weight names of a model without a head lack its prefix."""
    base = base_folder("bert", tmp_path / "base", english)
    model = transformers.AutoModel.from_pretrained(base).eval()
    config = peft.LoraConfig(target_modules=["key"], init_lora_weights=False)
    other = peft.get_peft_model(model, config).eval()
    other.save_pretrained(tmp_path / "adapter")
    ids = torch.tensor([6, 9, 12])
    with torch.no_grad():
        states = other(input_ids=ids[None]).last_hidden_state[0]
        batch = Batch(ids, torch.zeros_like(ids), Packed.of([3]))
        assert (load(tmp_path / "adapter").model.encoder(batch) - states).abs().max() <= 1e-5
        assert (load(base).model.encoder(batch) - states).abs().max() > 1e-2


def test_adapter_with_old_weight_names_loads(tmp_path: Path, english: list[str]) -> None:
    """Adapters that were trained with GTE's original code."""
    base, path = base_folder("gte", tmp_path / "base", english), tmp_path / "adapter"
    loaded = load_base(base, "classify")
    model = add_trained_lora(loaded).eval()
    write_adapter(path, model, loaded.family, base=str(base))
    now, older = r"gte\.layers\.(\d+)\.self_attn\.o_proj", r"new.encoder.layer.\1.attention.o_proj"
    tensors = {
        re.sub(now, older, name): tensor
        for name, tensor in load_file(path / "adapter_model.safetensors").items()
    }
    assert any("new.encoder" in name for name in tensors)
    save_file(tensors, path / "adapter_model.safetensors", {"format": "pt"})
    config = json.loads((path / "adapter_config.json").read_text())
    config["target_modules"] = [re.sub(now, older, name) for name in config["target_modules"]]
    (path / "adapter_config.json").write_text(json.dumps(config))
    again = load(path).model
    assert (
        bertkit_logits(again, "classify") - bertkit_logits(model, "classify")
    ).abs().max() <= 1e-5


@pytest.fixture
def folder(tmp_path: Path, english: list[str]) -> Path:
    base = base_folder("bert", tmp_path / "base", english)
    loaded = load_base(base, "classify")
    write_adapter(tmp_path / "adapter", add_trained_lora(loaded), loaded.family, base=str(base))
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base_model_name_or_path": None}, "base_model_name_or_path is missing; set it"),
        ({"base_model_name_or_path": "/no/where"}, "base_model_name_or_path: /no/where: no such"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3' (only 'LORA'): not supported"),
        ({"peft_type": None}, "peft_type = None (only 'LORA'): not supported"),
        ({"use_dora": True}, "use_dora = True (only False or None): not"),
        ({"alpha_pattern": {"query": 3}}, "alpha_pattern = {'query': 3} (only {} or None)"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' changed the weights"),
        ({"lora_alpha": "much"}, "lora_alpha must be a number, got 'much'"),
    ],
)
def test_load_rejects_unsupported_adapters(
    folder: Path, changed: dict[str, Any], message: str
) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(CheckpointError) as error:
        load(folder)
    assert message in str(error.value)
    assert "adapter_config.json" in str(error.value)


def test_table_has_every_key_of_lora_config() -> None:
    groups = [set(KEYS.applied), set(KEYS.irrelevant), set(KEYS.neutral)]
    assert {field.name for field in dataclasses.fields(peft.LoraConfig)} == set().union(*groups)
    assert sum(map(len, groups)) == len(set().union(*groups))


LORA_VALUES: dict[str, list[Any]] = {
    "base_model_name_or_path": [],  # another model
    "bias": ["all", "lora_only"],
    "exclude_modules": [["query"], ["nothing"]],
    "layers_pattern": ["layer"],
    "layers_to_transform": [[0], [0, 1]],
    "lora_alpha": [12, 1.5],
    "modules_to_save": [["classifier"]],
    "peft_type": ["IA3", "LOHA"],
    "rank_pattern": [{"query": 3}],
    "target_modules": [["query"], ["query", "value", "key", "dense"], "all-linear"],
    "task_type": ["SEQ_CLS"],
}


def test_lora_config_keys_match_peft(folder: Path, tmp_path: Path) -> None:
    """The result equals peft's, or bertkit rejects the key."""
    path, wrong, num_equal = folder / "adapter_config.json", {}, 0
    right = json.loads(path.read_text())
    base = hf_base(tmp_path / "base", "bert")
    for key in (field.name for field in dataclasses.fields(peft.LoraConfig)):
        value = right.get(key)
        other = [not value] if isinstance(value, bool) else [True, {"a": 1}]
        for changed in LORA_VALUES.get(key, other):
            path.write_text(json.dumps({**right, key: changed}))
            try:
                found = bertkit_logits(load(folder).model, "classify")
            except CheckpointError:
                continue
            try:
                model = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()
            except Exception:  # peft cannot load it
                continue
            difference = float((found - hf_logits(model, "classify")).abs().max())
            num_equal += difference <= 1e-5
            if difference > 1e-5:
                wrong[key, str(changed)] = difference
    assert not wrong
    assert num_equal > 10


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_adapter_biases_replace_base_biases(bias: str, tmp_path: Path, english: list[str]) -> None:
    base = base_folder("bert", tmp_path / "base", english)
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "dense"], bias=bias)
    model = peft.get_peft_model(hf_base(base, "bert"), config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    model.save_pretrained(tmp_path / "adapter")
    found = bertkit_logits(load(tmp_path / "adapter").model, "classify")
    assert (found - hf_logits(model, "classify")).abs().max() <= 1e-4
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({n: t for n, t in load_file(file).items() if "base_layer" not in n}, file)
    found = bertkit_logits(load(tmp_path / "adapter").model, "classify")
    assert (found - hf_logits(model, "classify")).abs().max() > 1e-3  # the control


def test_load_rejects_base_with_other_shapes(
    folder: Path, tmp_path: Path, english: list[str]
) -> None:
    shutil.rmtree(tmp_path / "base")
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    tiny_folder(tmp_path / "base", tokenizer, "mlm", hidden=16, layers=2)
    with pytest.raises(CheckpointError, match=r"has adapters of shapes \[32, 3\] and \[3, 32\]"):
        load(folder)
    shutil.rmtree(tmp_path / "base")
    tiny_folder(tmp_path / "base", tokenizer, "mlm", hidden=32, layers=1, intermediate=48)
    with pytest.raises(
        CheckpointError, match=r"base has no weight bert\.encoder\.layer\.1\.attention"
    ):
        load(folder)


def test_load_rejects_adapters_as_base(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    itself = {**config, "base_model_name_or_path": str(folder)}
    (folder / "adapter_config.json").write_text(json.dumps(itself))
    with pytest.raises(CheckpointError, match="is an adapter itself"):
        load(folder)
    (other / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": str(folder)})
    )
    with pytest.raises(CheckpointError, match="is an adapter itself; use a complete model as base"):
        load(other)


def test_load_rejects_mismatched_adapter_weights(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    removed = next(name for name in tensors if name.endswith("lora_B.weight"))
    save_file({name: t for name, t in tensors.items() if name != removed}, file)
    with pytest.raises(CheckpointError, match=r"no bert\..*lora_B\.weight"):
        load(folder)
    save_file(
        {**tensors, removed.replace("lora_B.weight", "lora_magnitude_vector"): torch.ones(3)}, file
    )
    with pytest.raises(CheckpointError, match="lora_magnitude_vector: not an adapter of a linear"):
        load(folder)
    other = removed.replace("lora_B", "lora_A")
    empty = {removed: tensors[removed][:, :0].clone(), other: tensors[other][:0].clone()}
    save_file({**tensors, **empty}, file)
    with pytest.raises(CheckpointError, match=r"has adapters of shapes \[\d+, 0\] and \[0, \d+\]"):
        load(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"no adapter_model\.\w+ or adapter_model\.bin; "):
        load(folder)


def test_complete_model_is_preferred_to_adapter(folder: Path, tmp_path: Path) -> None:
    """The directory contains both, as after moving the files of a run together."""
    base = tmp_path / "base"
    for file in folder.iterdir():
        shutil.copy(file, base)
    assert bertkit.load(base).base is None
    assert not any(isinstance(m, LoRALinear) for m in bertkit.load(base).model.modules())


def tagged_examples() -> list[tag.Example]:
    spans = [(0, 3), (4, 9), (10, 16)]
    return [tag.Example("the class number", spans, ["O", "B-x", "I-x"], "a:1")] * 4


@pytest.mark.parametrize("case", ["tag", "crf", "choose", "chat", "seq2seq"])
def test_adapter_of_each_task_matches_complete_model(
    case: str, tmp_path: Path, english: list[str]
) -> None:
    """The adapter directory yields the weights of the complete model."""
    family = {"chat": "gpt2", "seq2seq": "bart"}.get(case, "bert")
    base = base_folder(family, tmp_path / "base", english)
    question = ChoiceQuestion("the class", ("of", "is"), 1)
    rows: dict[str, Any] = {
        "tag": tagged_examples(),
        "crf": tagged_examples(),
        "choose": [question] * 4,
        "chat": [Conversation((Message("user", "a"), Message("assistant", "b")), "a:1")] * 4,
        "seq2seq": EXAMPLES,
    }
    settings = Finetune(epochs=1, batch_size=2, learning_rate=1e-2, lora=LoRA(rank=2))
    finetune(
        "tag" if case == "crf" else case,
        base,
        train=rows[case],
        dev=rows[case],
        out=tmp_path / "out",
        settings=settings,
        options={"crf": True} if case == "crf" else None,
    )
    whole = load(tmp_path / "out")
    # Another head has weights of the same names, and peft has no task type for this head.
    adapter = load(tmp_path / "out" / "adapter", heads=["choose"] if case == "choose" else None)
    assert adapter.report.fresh == ()
    assert set(adapter.model.heads) == set(whole.model.heads)
    weights = adapter.model.state_dict()
    for name, weight in whole.model.state_dict().items():
        assert torch.allclose(weights[name], weight, atol=1e-6), name
    with pytest.raises(ConfigError, match=r"lora\.rank: .*adapter contains only LoRA adapters"):
        finetune(
            "tag" if case == "crf" else case,
            tmp_path / "out" / "adapter",
            train=rows[case],
            dev=rows[case],
            out=tmp_path / "other",
            settings=settings,
        )
    assert not (tmp_path / "other").exists()
