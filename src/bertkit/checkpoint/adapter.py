"""Functions that read and write LoRA adapters in the format of peft.

An adapter directory contains `adapter_config.json` and the weights of the adapters.
"""

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
from bertkit.checkpoint.weights import read_tensors, standard_names, write_tensors
from bertkit.console import say
from bertkit.errors import CheckpointError
from bertkit.families import Family
from bertkit.models.lora import adapters
from bertkit.models.model import Model
from bertkit.published_keys import KeyTable
from bertkit.storage import write_json, writing

CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"
OLDER_FILE = "adapter_model.bin"
"""File in which peft saved adapters before version 0.5."""
TENSOR_PREFIX = "base_model.model."
"""Prefix of all tensor names in an adapter file."""
A, B = ".lora_A.weight", ".lora_B.weight"

KINDS = {
    "classify": "SEQ_CLS",
    "tag": "TOKEN_CLS",
    "crf": "TOKEN_CLS",
    "answer": "QUESTION_ANS",
    "lm": "CAUSAL_LM",
}
"""`task_type` in peft for each head. Other heads have no `task_type`."""
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
        "bias": "stored biases always replace the biases of the model",
        "corda_config": INITIAL,
        "eva_config": INITIAL,
        "fan_in_fan_out": "the model family determines the layout of the weights",
        "inference_mode": "it only specifies whether the adapters can be trained",
        "layers_pattern": STORED,
        "loftq_config": INITIAL,
        "lora_dropout": "only affects training",
        "lora_ga_config": INITIAL,
        "megatron_core": "module that is only used with megatron_config",
        "modules_to_save": STORED,
        "peft_version": "version of the library that wrote the file",
        "qalora_group_size": "group size that is only used with use_qalora",
        "r": STORED,
        "rank_pattern": STORED,
        "runtime_config": "only affects speed or memory use",
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
"""Keys of peft's `LoraConfig`."""

INITIALIZATIONS = (True, False, "gaussian", None)
"""Supported values of `init_lora_weights`. Other values also change the base model's weights."""


@dataclass(frozen=True)
class Adapter:
    """Contents of an adapter directory."""

    folder: Path
    base: Path
    """Directory of the base model."""
    head: str | None
    """Head that the adapter was trained with, or None if the adapter does not specify one."""
    architecture: str | None
    """Name of the model's class in transformers, or None if the adapter does not specify it."""
    tensors: Mapping[str, Tensor]
    """Tensors by name, without the prefixes that peft adds to the names of the base model."""
    alpha: float
    is_rank_stabilized: bool
    """Whether alpha is divided by the square root of the rank (rsLoRA)."""

    def merge(self, family: Family, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of the base model with the adapter merged into them.

        Args:
            family: Family of the base model.
            weights: Weights of the base model.

        Raises:
            CheckpointError: If a weight is missing, or its shape does not match the adapter.
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
        """Return the content of the base model's `config.json`, changed to the adapter's head.

        Args:
            family: Family of the base model.
            base_settings: Content of the base model's `config.json`.
        """
        settings = dict(base_settings)
        if self.head is not None or self.architecture is not None:
            settings["architectures"] = [self.architecture]
            heads = {"heads": [] if self.head is None else [self.head]}
            settings["bertkit"] = {**settings.get("bertkit", {}), **heads}
            settings["bertkit"].pop("task", None)
        if any(name in self.tensors for name in family.outputs):
            settings.pop("id2label", None)
            say(
                "warning: an adapter contains neither the names of labels nor thresholds and other "
                "options of the task; to use them, load the merged model"
            )
        return settings


def base_of(folder: Path) -> Path:
    """Return the directory of an adapter's base model.

    Args:
        folder: Directory of an adapter or of a complete model. A complete model is its own base.

    Raises:
        CheckpointError: If the adapter does not specify a base model, or the base model does not
            exist.
    """
    if format_of(folder) != "adapter":
        return folder
    path, settings = folder / CONFIG, read_object(folder / CONFIG)
    name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{path}: base_model_name_or_path is missing; set it to a hub id")
    try:
        base = resolve(name, revision if isinstance(revision, str) else None)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: base_model_name_or_path: {error}") from None
    if format_of(base) == "adapter":
        raise CheckpointError(f"{path}: {base} is an adapter itself; use a complete model as base")
    return base


def read_adapter(folder: Path) -> Adapter | None:
    """Read the adapter in a directory.

    Args:
        folder: Directory of an adapter or of a complete model.

    Returns:
        The adapter, or None if the directory contains a complete model.

    Raises:
        CheckpointError: If the adapter is not a LoRA adapter, or a file is invalid.
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
    tensors = {}
    for stored_name, tensor in read_tensors(folder, (FILE, OLDER_FILE)).items():
        # With bias = "all", peft also stores the modules that the adapter has replaced.
        if ".original_module." in stored_name:
            continue
        name = stored_name.removeprefix(TENSOR_PREFIX).replace(".base_layer.", ".")
        name = name.replace(".modules_to_save.", ".")
        if "lora_" in name and not name.endswith((A, B)):
            raise CheckpointError(f"{folder / FILE}: {name}: not an adapter of a linear layer")
        if name.endswith(A) and not _is_selected(name.removesuffix(A), settings):
            raise CheckpointError(
                f"{folder / FILE}: {name}: not selected by target_modules, exclude_modules, or "
                f"layers_to_transform in {CONFIG}; remove the tensor"
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
    """Return whether the settings of an adapter select a module.

    A setting that is a regular expression is ignored. Source: `check_target_module_exists` in peft.
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
    """Write the adapters and trained heads of a model so that `peft.PeftModel` can load them.

    Args:
        folder: Output directory.
        model: Model with LoRA adapters.
        family: Family of the model.
        base: Path or hub id of the base model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    # In transformers, weight names have the prefix of the family only if the class has a head.
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
    # Heads that the family does not define are stored only in complete models.
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
    """Return the name of the module in transformers that contains a weight of a head."""
    prefix = family.prefix if name.startswith(family.prefix) else ""
    return prefix + name.removeprefix(prefix).split(".")[0]
