"""Directories of LoRA adapters in the format of peft: `adapter_config.json` and weights."""

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
"""Prefix of the names of adapter tensors."""
A, B = ".lora_A.weight", ".lora_B.weight"

KINDS = {
    "classify": "SEQ_CLS",
    "tag": "TOKEN_CLS",
    "crf": "TOKEN_CLS",
    "answer": "QUESTION_ANS",
    "lm": "CAUSAL_LM",
}
"""Head -> `task_type` in peft; other heads have no `task_type`."""
HEADS_BY_TYPE = {"SEQ_CLS": "classify", "TOKEN_CLS": "tag", "QUESTION_ANS": "answer"}
HEADS_BY_TYPE |= {"CAUSAL_LM": "lm", "SEQ_2_SEQ_LM": "lm"}

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

INITIALIZATIONS = (True, False, "gaussian", None)
"""Supported values of `init_lora_weights`; others also change the weights of the base model."""


@dataclass(frozen=True)
class Adapter:
    """Loaded adapter directory. The names in `tensors` are names of weights of the model."""

    folder: Path
    base: Path
    """Directory of the base model."""
    head: str | None
    """Head of the adapter, if it specifies one."""
    architecture: str | None
    """Class of the model in transformers, if the adapter specifies it."""
    tensors: Mapping[str, Tensor]
    alpha: float
    is_rank_stabilized: bool
    """Whether alpha is divided by the square root of the rank (rsLoRA)."""

    def merge(self, family: Family, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of the base model with the adapter merged.

        Args:
            family: Family of the base model.
            weights: Weights of the base model.

        Raises:
            CheckpointError: If a weight is missing or has another shape.
        """
        matrices = {n.removesuffix(A): t for n, t in self.tensors.items() if n.endswith(A)}
        other = {n: t for n, t in self.tensors.items() if not n.endswith((A, B))}
        modules = {id(t): name for name, t in matrices.items()}
        named = standard_names(family, {**{f"{n}.weight": t for n, t in matrices.items()}, **other})
        result = dict(weights)
        for name, tensor in named.items():
            if id(tensor) in modules:
                tensor = self._merge_weight(family, name, modules[id(tensor)], weights)
            result[name] = tensor
        return result

    def _merge_weight(
        self, family: Family, name: str, module: str, weights: Mapping[str, Tensor]
    ) -> Tensor:
        a, b = self.tensors[module + A].float(), self.tensors.get(module + B)
        if b is None or name not in weights:
            reason = f"no {module}{B}" if b is None else f"{self.base} has no weight {name}"
            raise CheckpointError(f"{self.folder / FILE}: {reason}; use the adapter's base model")
        weight, is_transposed = weights[name].float(), name.endswith(family.transposed or ("\0",))
        shape = tuple(weight.T.shape if is_transposed else weight.shape)
        fits = a.ndim == b.ndim == 2 and 0 < len(a) == b.shape[1]
        if not fits or shape != (len(b), a.shape[1]):
            raise CheckpointError(
                f"{self.folder / FILE}: {module} has adapters of shapes {list(b.shape)} and "
                f"{list(a.shape)}, but the weight in {self.base} has shape {list(shape)}; use the "
                "adapter's base model"
            )
        scale = self.alpha / (math.sqrt(len(a)) if self.is_rank_stabilized else len(a))
        change = b.float() @ a
        return torch.add(weight, change.T if is_transposed else change, alpha=scale)

    def settings(self, family: Family, base_settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return `config.json` of the base model with the head of the adapter.

        Args:
            family: Family of the base model.
            base_settings: Content of `config.json` of the base model.
        """
        settings = dict(base_settings)
        if self.head is not None or self.architecture is not None:
            settings["architectures"] = [self.architecture]
            heads = {"heads": [] if self.head is None else [self.head]}
            settings["bertkit"] = {**settings.get("bertkit", {}), **heads}
            settings["bertkit"].pop("task", None)
        if any(name in self.tensors for name in family.outputs):
            settings.pop("id2label", None)
        return settings


def base_of(folder: Path) -> Path:
    """Return the base model of an adapter directory, or the directory itself for other models.

    Args:
        folder: Directory of adapters or of a model.

    Raises:
        CheckpointError: If the adapter specifies no base model, or the base model does not exist.
    """
    if format_of(folder) != "adapter":
        return folder
    path, settings = folder / CONFIG, read_object(folder / CONFIG)
    name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{path}: base_model_name_or_path is missing; set it to the model")
    try:
        base = resolve(name, revision if isinstance(revision, str) else None)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: base_model_name_or_path: {error}") from None
    if format_of(base) == "adapter":
        raise CheckpointError(f"{path}: {base} contains adapters itself; use a complete model")
    return base


def read_adapter(folder: Path) -> Adapter | None:
    """Load the adapters of a directory.

    Args:
        folder: Directory of adapters or of a model.

    Returns:
        The adapters, or None if the directory contains a complete model.

    Raises:
        CheckpointError: If the adapters are not LoRA adapters, or a file is invalid.
    """
    base = base_of(folder)
    if base == folder:
        return None
    path, settings = folder / CONFIG, read_object(folder / CONFIG)
    try:
        KEYS.check({"peft_type": None, **settings})
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if settings.get("init_lora_weights", True) not in INITIALIZATIONS:
        raise CheckpointError(
            f"{path}: init_lora_weights = {settings['init_lora_weights']!r} changed the weights of "
            "the base model; convert the adapter with peft and save it again"
        )
    alpha = settings.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise CheckpointError(f"{path}: lora_alpha must be a number, got {alpha!r}")
    if not (folder / FILE).exists():
        raise CheckpointError(f"{folder}: no {FILE}; save it with peft as safetensors")
    tensors = {}
    for stored_name, tensor in read_file(folder / FILE, "download or write it again")[0].items():
        # With bias = "all", peft also stores the original modules.
        if ".original_module." in stored_name:
            continue
        name = stored_name.removeprefix(TENSOR_PREFIX).replace(".base_layer.", ".")
        name = name.replace(".modules_to_save.", ".")
        if "lora_" in name and not name.endswith((A, B)):
            raise CheckpointError(f"{folder / FILE}: {name}: not an adapter of a linear layer")
        if name.endswith(A) and not _is_selected(name.removesuffix(A), settings):
            raise CheckpointError(
                f"{folder / FILE}: {name}: not selected by target_modules, exclude_modules, or "
                f"layers_to_transform of {CONFIG}; remove it"
            )
        tensors[name] = tensor
    head = HEADS_BY_TYPE.get(str(settings.get("task_type")))
    # Only bertkit writes adapters with a CRF.
    if any(name.startswith("crf.") for name in tensors):
        head = "crf"
    mapping = settings.get("auto_mapping")
    architecture = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    return Adapter(
        folder,
        base,
        head,
        architecture if isinstance(architecture, str) else None,
        tensors,
        float(alpha),
        bool(settings.get("use_rslora")),
    )


def _is_selected(module: str, settings: Mapping[str, Any]) -> bool:
    """Return whether the settings select a module. Patterns are not evaluated.

    Source: `check_target_module_exists` in peft.
    """

    def contains(names: Any) -> bool:
        return any(f".{module}".endswith(f".{name}") for name in names)

    targets, excluded = settings.get("target_modules"), settings.get("exclude_modules")
    layers = settings.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) else layers
    numbers = [int(part) for part in module.split(".") if part.isdecimal()]
    if isinstance(targets, list) and not contains(targets):
        return False
    if isinstance(excluded, list) and contains(excluded):
        return False
    return not isinstance(layers, list) or not layers or (bool(numbers) and numbers[0] in layers)


def write_adapter(folder: Path, model: Model, family: Family, *, base: str) -> None:
    """Write the adapters and the trained heads of a model in the format of `peft.PeftModel`.

    Args:
        folder: Output directory.
        model: Model with adapters.
        family: Family of the model.
        base: Path or hub id of the base model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    # The names of classes with a head in transformers have the prefix of the family.
    has_no_head = not any(head in family.heads for head in model.heads)
    tensors: dict[str, Tensor] = {}
    layers = adapters(model)
    for name, layer in layers.items():
        a = weights[f"{name}.lora_a"].chunk(len(layer.sizes))
        b = weights[f"{name}.lora_b"].split(layer.sizes)
        rows = family.names([f"{name}.weight"], model.config)[f"{name}.weight"]
        for row, *parts in zip(rows, a, b, strict=True):
            module = row.removesuffix(".weight").removeprefix(family.prefix if has_no_head else "")
            tensors |= {module + end: t.contiguous() for end, t in zip((A, B), parts, strict=True)}
    targets = [name.removesuffix(A) for name in tensors if name.endswith(A)]
    trained = (name for name, p in model.named_parameters() if p.requires_grad)
    # Heads that the family does not have are only stored with complete models.
    head_names = [n for n in trained if n.startswith(tuple(f"heads.{h}." for h in family.heads))]
    head_tensors = family.write({name: weights[name] for name in head_names}, model.config)
    head, layer = next(iter(model.heads), None), next(iter(layers.values()))
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
            "r": layer.rank,
            "lora_alpha": layer.scale * layer.rank,
            "lora_dropout": layer.dropout.rate,
            "target_modules": targets,
            "modules_to_save": list(dict.fromkeys(_module(n, family) for n in head_tensors))
            or None,
            "fan_in_fan_out": bool(family.transposed),
            "bias": "none",
        },
    )
    tensors |= head_tensors
    with writing(folder / FILE) as partial:
        write_tensors(partial, {TENSOR_PREFIX + name: tensor for name, tensor in tensors.items()})


def _module(name: str, family: Family) -> str:
    """Return the module of a head in transformers that contains a weight."""
    prefix = family.prefix if name.startswith(family.prefix) else ""
    return prefix + name.removeprefix(prefix).split(".")[0]
