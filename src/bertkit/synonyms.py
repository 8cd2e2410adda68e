"""Names of settings and tasks in other libraries, with their names in bertkit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from bertkit.errors import ConfigError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

TASKS = {
    "text-classification": "classify",
    "sentiment-analysis": "classify",
    "token-classification": "tag",
    "ner": "tag",
    "question-answering": "answer",
    "multiple-choice": "choose",
    "feature-extraction": "token-embeddings",
    "sentence-similarity": "embed",
    "text-ranking": "rerank",
    "text-generation": "generate",
    "text2text-generation": "generate",
    "translation": "generate",
    "summarization": "summarize",
}
"""bertkit's task or pipeline for each task name of transformers and the Hugging Face Hub."""

SETTINGS = {
    # Training: transformers.TrainingArguments, SentenceTransformerTrainingArguments, peft.
    "num_train_epochs": ("epochs",),
    "num_epochs": ("epochs",),
    "max_steps": ("epochs", "steps"),
    "per_device_train_batch_size": ("batch_size",),
    "train_batch_size": ("batch_size",),
    "per_device_eval_batch_size": ("max_batch_tokens",),
    "eval_batch_size": ("max_batch_tokens",),
    "auto_find_batch_size": ("max_batch_tokens",),
    "lr": ("learning_rate",),
    "learning_rate_init": ("learning_rate",),
    "encoder_learning_rate": ("learning_rate",),
    "warmup_ratio": ("warmup",),
    "warmup_steps": ("warmup",),
    "warmup_proportion": ("warmup",),
    "optim": ("optimizer",),
    "adam_epsilon": ("eps",),
    "adam_beta1": ("betas",),
    "adam_beta2": ("betas",),
    "l2_weight": ("weight_decay",),
    "lr_scheduler_type": ("schedule",),
    "early_stopping": ("patience",),
    "early_stopping_patience": ("patience",),
    "load_best_model_at_end": ("metric",),
    "metric_for_best_model": ("metric",),
    "max_length": ("max_tokens", "long"),
    "max_seq_length": ("max_length", "long"),
    "model_max_length": ("max_length", "long"),
    "truncation": ("long",),
    "fp16": ("precision",),
    "bf16": ("precision",),
    "dtype": ("precision",),
    "torch_dtype": ("precision",),
    "no_cuda": ("device",),
    "use_cpu": ("device",),
    "device_map": ("device",),
    "gradient_clip_val": ("max_grad_norm",),
    "clip_grad_norm": ("max_grad_norm",),
    "report_to": ("track",),
    "save_steps": ("save_minutes",),
    "save_strategy": ("save_minutes",),
    "resume_from_checkpoint": ("resume",),
    "output_dir": ("out",),
    "output_path": ("out",),
    "train_dataset": ("train",),
    "eval_dataset": ("dev",),
    "validation": ("dev",),
    "freeze_layers": ("frozen_layers",),
    "layerwise_lr_decay": ("layer_decay",),
    "llrd": ("layer_decay",),
    "peft_config": ("lora",),
    "lora_r": ("lora",),
    "r": ("rank",),
    "lora_alpha": ("alpha", "lora"),
    "lora_dropout": ("dropout", "lora"),
    "target_modules": ("layers", "lora"),
    "class_weight": ("class_weights",),
    "loss_weights": ("class_weights",),
    "label_smoothing_factor": ("label_smoothing",),
    "test_size": ("dev",),
    "validation_fraction": ("dev",),
    "validation_split": ("dev",),
    "n_iter_no_change": ("patience",),
    "max_iter": ("epochs",),
    "n_epochs": ("epochs",),
    "num_iterations": ("epochs",),
    "n_jobs": ("processes",),
    "num_proc": ("processes",),
    "num_workers": ("processes", "loader_processes"),
    "dataloader_num_workers": ("loader_processes",),
    "problem_type": ("multi_label",),
    "random_state": ("seed",),
    "data_seed": ("seed",),
    "callbacks": ("on_epoch",),
    # Columns: datasets, Trainer.
    "text_column_name": ("text_column",),
    "label_column_name": ("label_column",),
    "sentence1_key": ("text_column",),
    "sentence2_key": ("pair_column",),
    "target_column": ("label_column",),
    # Models: config.json of transformers.
    "hidden_size": ("hidden",),
    "num_hidden_layers": ("layers",),
    "num_attention_heads": ("heads",),
    "intermediate_size": ("intermediate",),
    "max_position_embeddings": ("max_positions",),
    "hidden_act": ("activation",),
    "hidden_dropout_prob": ("dropout",),
    "attention_probs_dropout_prob": ("attention_dropout",),
    "layer_norm_eps": ("eps",),
    "type_vocab_size": ("token_types",),
    # Vocabularies: tokenizers, sentencepiece.
    "vocab_size": ("vocab", "size"),
    "model_type": ("kind", "family"),
    "do_lower_case": ("lowercase",),
    "min_freq": ("min_frequency",),
    # Inference: transformers pipelines and generate, SentenceTransformer.encode.
    "max_new_tokens": ("max_tokens", "decoding"),
    "min_new_tokens": ("min_tokens", "decoding"),
    "do_sample": ("temperature", "decoding"),
    **dict.fromkeys(
        (
            *("max_tokens", "temperature", "top_p", "num_beams", "num_return_sequences"),
            *("no_repeat_ngram_size", "repetition_penalty", "length_penalty"),
        ),
        ("decoding",),
    ),
    "stop_strings": ("stop",),
    "top_k": ("top", "decoding"),
    "k": ("top",),
    "limit": ("top",),
    "score_threshold": ("min_score",),
    "filter": ("where",),
    "model_name_or_path": ("model",),
    "model_name": ("model",),
    "model_id": ("model",),
    "pretrained_model_name_or_path": ("model", "name"),
    "return_all_scores": ("top",),
    "prompt_name": ("prompt",),
    "hidden_layer": ("layer",),
    "output_hidden_states": ("layer",),
    "pooling_mode": ("pooling",),
    "pooling_strategy": ("pooling",),
    "dataset": ("train",),
}
"""bertkit's settings for each setting of another library.

An error message suggests the first one that the called function has.
"""

UNNEEDED = {
    "batch_size": "bertkit forms batches by number of tokens",
    "per_device_eval_batch_size": "bertkit forms batches by number of tokens",
    "show_progress_bar": "progress is shown on stderr",
    "verbose": "messages are printed to stderr",
    "disable_tqdm": "progress is shown on stderr",
    "convert_to_numpy": "the result is a NumPy array",
    "convert_to_tensor": "use torch.from_numpy on the result",
    "normalize_embeddings": "the model directory specifies whether embeddings are normalized",
    "padding": "batches contain no padding",
    "trust_remote_code": "bertkit runs no code from model directories",
    "lr_scheduler_type": "the learning rate always decays linearly during fine-tuning",
    "gradient_checkpointing": "to use less memory, reduce max_batch_tokens",
    "eval_strategy": "bertkit evaluates the model after each epoch",
    "evaluation_strategy": "bertkit evaluates the model after each epoch",
    "logging_steps": "bertkit writes each step to the journal of the run",
    "gradient_accumulation_steps": "set batch_size; bertkit splits a batch by max_batch_tokens",
    "use_fast": "all tokenizers are fast",
    "framework": "all models run in PyTorch",
    "tokenizer": "the model directory contains the tokenizer",
    "num_labels": "labels are read from the examples",
}
"""Settings of other libraries that bertkit does not need, each with the reason."""


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def translated(name: str, known: Collection[str]) -> str | None:
    """Convert a name from another library to bertkit's name, or return None if none is known.

    Args:
        name: Name in another library.
        known: Names that are supported. Only these are returned.
    """
    candidates = (TASKS.get(name, ""), *SETTINGS.get(name.replace("-", "_"), ()))
    return next((candidate for candidate in candidates if candidate in known), None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name.

    Args:
        name: Unknown name, possibly from another library.
        known: Names that are supported.
    """
    options = list(known)
    if found := translated(name, options):
        return f"did you mean {found!r}?"
    if reason := UNNEEDED.get(name.replace("-", "_")):
        return f"remove it: {reason}"
    return did_you_mean(name, options)


def check_names(title: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that a function or class has a parameter for each keyword argument.

    Args:
        title: Name of the function or class, for the error message.
        names: Names of the keyword arguments.
        known: Names of the parameters.

    Raises:
        ConfigError: If an argument has no parameter. The message contains a suggestion.
    """
    for name in names:
        if name not in known:
            hint = suggestion(name, known)
            raise ConfigError(f"{name}: {title} has no such parameter; {hint}")


def check_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to raise ConfigError with a suggestion for an unknown keyword argument.

    A function that accepts `**keywords` must check these itself. For such a function, the decorator
    reports an unknown keyword argument only if a required argument is missing.
    """
    signature = inspect.signature(function)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    names = [name for name, kind in kinds.items() if kind in NAMED and name != "self"]
    is_open = inspect.Parameter.VAR_KEYWORD in kinds.values()
    title = function.__qualname__.removesuffix(".__call__")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [name for name in kwargs if name not in names]
        if unknown and is_open:
            try:
                signature.bind(*args, **kwargs)
                unknown = []
            except TypeError:
                unknown = [name for name in unknown if translated(name, names)]
        check_names(title, unknown, names)
        return function(*args, **kwargs)

    return call
