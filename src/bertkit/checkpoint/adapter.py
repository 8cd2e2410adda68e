"""Folders of adapters (LoRA), as peft has them: `adapter_config.json` and their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.checkpoint.formats import format_of
from bertkit.checkpoint.hub import resolve
from bertkit.checkpoint.pooling_files import read_object
from bertkit.checkpoint.weights import read_file, standard_names, write_tensors
from bertkit.errors import CheckpointError
from bertkit.families import Family
from bertkit.models.lora import adapters
from bertkit.models.model import Model
from bertkit.published_keys import KeyTable
from bertkit.storage import write_json, writing

CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"
TENSOR_PREFIX = "base_model.model."
"""Begins the names of their tensors."""
A, B = ".lora_A.weight", ".lora_B.weight"

KINDS = {
    "classify": "SEQ_CLS",
    "tag": "TOKEN_CLS",
    "crf": "TOKEN_CLS",
    "answer": "QUESTION_ANS",
    "lm": "CAUSAL_LM",
}
"""Our heads -> their kinds of task; heads that are not here have none."""
OF_KIND = {"SEQ_CLS": "classify", "TOKEN_CLS": "tag", "QUESTION_ANS": "answer"}
OF_KIND |= {"CAUSAL_LM": "lm", "SEQ_2_SEQ_LM": "lm"}

STORED = "the names and shapes of the stored weights determine it"
INITIAL = "initial values of the adapters"
KEYS = KeyTable(
    applied=(
        "auto_mapping",
        "base_model_name_or_path",
        "exclude_modules",
        "init_lora_weights",
        "layers_to_transform",
        "lora_alpha",
        "revision",
        "target_modules",
        "task_type",
        "use_rslora",
    ),
    irrelevant={
        "bias": "the stored biases replace those of the model",
        "corda_config": INITIAL,
        "eva_config": INITIAL,
        "fan_in_fan_out": "the family determines the layout of its weights",
        "inference_mode": "whether the adapters can be trained",
        "layers_pattern": STORED,
        "loftq_config": INITIAL,
        "lora_dropout": "changes training only",
        "lora_ga_config": INITIAL,
        "megatron_core": "module that megatron_config needs",
        "modules_to_save": STORED,
        "peft_version": "version of the library that wrote the file",
        "qalora_group_size": "group size that use_qalora needs",
        "r": STORED,
        "rank_pattern": STORED,
        "runtime_config": "changes speed or memory use only",
    },
    neutral={
        "peft_type": ("LORA",),
        "alora_invocation_tokens": (None,),
        "alpha_pattern": ({}, None),
        "arrow_config": (None,),
        "ensure_weight_tying": (False, None),
        "kasa_config": (None,),
        "layer_replication": (None,),
        "lora_bias": (False, None),
        "megatron_config": (None,),
        "monteclora_config": (None,),
        "target_parameters": (None, []),
        "trainable_token_indices": (None,),
        "use_bdlora": (None, False),
        "use_dora": (False, None),
        "use_qalora": (False, None),
        "velora_config": (None,),
    },
)
"""Keys of `LoraConfig` in peft."""

STARTS = (True, False, "gaussian", None)
"""How adapters may have begun: other ways change the model's own weights as well."""


@dataclass(frozen=True)
class Adapter:
    """A folder of adapters, opened. `tensors` have the names that a model's weights have."""

    folder: Path
    base: Path
    """The model that it changes."""
    head: str | None
    """The head that it is for, if it says so."""
    architecture: str | None
    """The class of transformers that it was made for, if it says so."""
    tensors: Mapping[str, Tensor]
    alpha: float
    by_root: bool
    """Whether alpha is divided by the root of the rank (rsLoRA)."""

    def merge(self, family: Family, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of its base with what it adds to them, and its own in place of others.

        Raises: CheckpointError where they are of another shape, or not there.
        """
        matrices = {n.removesuffix(A): t for n, t in self.tensors.items() if n.endswith(A)}
        own = {n: t for n, t in self.tensors.items() if not n.endswith((A, B))}
        marks = {id(t): name for name, t in matrices.items()}
        named = standard_names(family, {**{f"{n}.weight": t for n, t in matrices.items()}, **own})
        result = dict(weights)
        for name, tensor in named.items():
            if id(tensor) in marks:
                tensor = self._changed(family, name, marks[id(tensor)], weights)
            result[name] = tensor
        return result

    def _changed(
        self, family: Family, name: str, module: str, weights: Mapping[str, Tensor]
    ) -> Tensor:
        a, b = self.tensors[module + A].float(), self.tensors.get(module + B)
        if b is None or name not in weights:
            lacks = f"no {module}{B}" if b is None else f"{self.base} has no {name} to change"
            raise CheckpointError(f"{self.folder / FILE}: {lacks}; they do not belong together")
        weight, turned = weights[name].float(), name.endswith(family.transposed or ("\0",))
        shape = tuple(weight.T.shape if turned else weight.shape)
        fits = a.ndim == b.ndim == 2 and 0 < len(a) == b.shape[1]
        if not fits or shape != (len(b), a.shape[1]):
            raise CheckpointError(
                f"{self.folder / FILE}: {module} has adapters of shapes {list(b.shape)} and "
                f"{list(a.shape)}, and {self.base} a weight of {list(shape)}; they do not belong "
                "together"
            )
        scale = self.alpha / (math.sqrt(len(a)) if self.by_root else len(a))
        change = b.float() @ a
        return torch.add(weight, change.T if turned else change, alpha=scale)

    def settings(self, family: Family, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """The base's `config.json` for the head that the adapter is for."""
        settings = dict(theirs)
        if self.head is not None or self.architecture is not None:
            settings["architectures"] = [self.architecture]
            heads = {"heads": [] if self.head is None else [self.head]}
            settings["bertkit"] = {**settings.get("bertkit", {}), **heads}
            settings["bertkit"].pop("task", None)
        if any(name in self.tensors for name in family.outputs):
            settings.pop("id2label", None)
        return settings


def base_of(folder: Path) -> Path:
    """The folder of the model that adapters change; of any other folder itself.

    Raises: CheckpointError for one that names no model, or one that is not there.
    """
    if format_of(folder) != "adapter":
        return folder
    place, settings = folder / CONFIG, read_object(folder / CONFIG)
    name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"{place}: names no model; write the one it adapts as base_model_name_or_path"
        )
    try:
        base = resolve(name, revision if isinstance(revision, str) else None)
    except CheckpointError as error:
        raise CheckpointError(f"{place}: base_model_name_or_path: {error}") from None
    if format_of(base) == "adapter":
        raise CheckpointError(f"{place}: {base} holds adapters itself; name a whole model")
    return base


def read_adapter(folder: Path) -> Adapter | None:
    """The adapters of a folder; None for one of a whole model.

    Raises: CheckpointError for adapters of another kind than LoRA's, and for damaged ones.
    """
    base = base_of(folder)
    if base == folder:
        return None
    place, settings = folder / CONFIG, read_object(folder / CONFIG)
    try:
        KEYS.check({"peft_type": None, **settings})
    except ValueError as error:
        raise CheckpointError(f"{place}: {error}") from None
    if settings.get("init_lora_weights", True) not in STARTS:
        raise CheckpointError(
            f"{place}: init_lora_weights = {settings['init_lora_weights']!r}: it changed the "
            "model's own weights; convert it in peft, then save again"
        )
    alpha = settings.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise CheckpointError(f"{place}: lora_alpha = {alpha!r}: is no number")
    if not (folder / FILE).exists():
        raise CheckpointError(f"{folder}: no {FILE}; save it in peft as safetensors")
    tensors = {}
    for name, tensor in read_file(folder / FILE, "fetch or write it again")[0].items():
        if ".original_module." in name:  # peft stores them with bias = "all"
            continue
        own = name.removeprefix(TENSOR_PREFIX).replace(".base_layer.", ".")
        own = own.replace(".modules_to_save.", ".")
        if "lora_" in own and not own.endswith((A, B)):
            raise CheckpointError(f"{folder / FILE}: {own}: no adapter of a linear layer")
        if own.endswith(A) and not _is_selected(own.removesuffix(A), settings):
            raise CheckpointError(
                f"{folder / FILE}: {own}: not selected by target_modules, exclude_modules, or "
                f"layers_to_transform of {CONFIG}; remove it"
            )
        tensors[own] = tensor
    head = OF_KIND.get(str(settings.get("task_type")))
    if any(name.startswith("crf.") for name in tensors):  # in no adapters but ours
        head = "crf"
    mapped = settings.get("auto_mapping")
    made_for = mapped.get("base_model_class") if isinstance(mapped, dict) else None
    return Adapter(
        folder,
        base,
        head,
        made_for if isinstance(made_for, str) else None,
        tensors,
        float(alpha),
        bool(settings.get("use_rslora")),
    )


def _is_selected(module: str, settings: Mapping[str, Any]) -> bool:
    """Return whether peft gives a module adapters; a text selects by a pattern, which is not run.

    Source: `check_target_module_exists` in peft.
    """

    def listed(names: Any) -> bool:
        return any(f".{module}".endswith(f".{name}") for name in names)

    targets, excluded = settings.get("target_modules"), settings.get("exclude_modules")
    layers = settings.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) else layers
    numbers = [int(part) for part in module.split(".") if part.isdecimal()]
    if isinstance(targets, list) and not listed(targets):
        return False
    if isinstance(excluded, list) and listed(excluded):
        return False
    return not isinstance(layers, list) or not layers or (bool(numbers) and numbers[0] in layers)


def write_adapter(folder: Path, model: Model, family: Family, *, base: str) -> None:
    """Write a model's adapters, and its heads that learned, as `peft.PeftModel` reads them.

    `base` names the model without them, a folder or a hub id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    # heads make the class of transformers one whose names have the prefix
    bare = not any(head in family.heads for head in model.heads)
    tensors: dict[str, Tensor] = {}
    layers = adapters(model)
    for name, layer in layers.items():
        a = weights[f"{name}.lora_a"].chunk(len(layer.sizes))
        b = weights[f"{name}.lora_b"].split(layer.sizes)
        rows = family.names([f"{name}.weight"], model.config)[f"{name}.weight"]
        for row, *parts in zip(rows, a, b, strict=True):
            module = row.removesuffix(".weight").removeprefix(family.prefix if bare else "")
            tensors |= {module + end: t.contiguous() for end, t in zip((A, B), parts, strict=True)}
    targets = [name.removesuffix(A) for name in tensors if name.endswith(A)]
    learned = (name for name, p in model.named_parameters() if p.requires_grad)
    # heads that are none of the family's are in the whole model alone
    of_heads = [n for n in learned if n.startswith(tuple(f"heads.{h}." for h in family.heads))]
    own = family.write({name: weights[name] for name in of_heads}, model.config)
    head, one = next(iter(model.heads), None), next(iter(layers.values()))
    kind = KINDS.get(str(head))
    architecture = family.architectures.get(frozenset(h for h in model.heads if h in family.heads))
    write_json(
        folder / CONFIG,
        {
            "peft_type": "LORA",
            "task_type": "SEQ_2_SEQ_LM" if kind == "CAUSAL_LM" and model.decoder else kind,
            "auto_mapping": None if kind else {"base_model_class": architecture},
            "base_model_name_or_path": str(Path(base).resolve()) if Path(base).exists() else base,
            "inference_mode": True,
            "r": one.rank,
            "lora_alpha": one.scale * one.rank,
            "lora_dropout": one.dropout.rate,
            "target_modules": targets,
            "modules_to_save": list(dict.fromkeys(_module(n, family) for n in own)) or None,
            "fan_in_fan_out": bool(family.transposed),
            "bias": "none",
        },
    )
    with writing(folder / FILE) as partial:
        write_tensors(
            partial, {TENSOR_PREFIX + name: tensor for name, tensor in {**tensors, **own}.items()}
        )


def _module(name: str, family: Family) -> str:
    """Their module of a head that a weight is in: the first below the model."""
    prefix = family.prefix if name.startswith(family.prefix) else ""
    return prefix + name.removeprefix(prefix).split(".")[0]
