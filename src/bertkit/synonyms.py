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
    "epochs": "num_train_epochs num_epochs max_steps max_iter n_epochs num_iterations",
    "steps": "max_steps",
    "batch_size": "per_device_train_batch_size train_batch_size",
    "max_batch_tokens": "per_device_eval_batch_size eval_batch_size auto_find_batch_size",
    "learning_rate": "lr learning_rate_init encoder_learning_rate",
    "warmup": "warmup_ratio warmup_steps warmup_proportion",
    "optimizer": "optim",
    "eps": "adam_epsilon layer_norm_eps",
    "betas": "adam_beta1 adam_beta2",
    "weight_decay": "l2_weight",
    "schedule": "lr_scheduler_type",
    "patience": "early_stopping early_stopping_patience n_iter_no_change",
    "metric": "load_best_model_at_end metric_for_best_model",
    "max_tokens": "max_length max_new_tokens",
    "max_length": "max_seq_length model_max_length",
    "long": "max_length max_seq_length model_max_length truncation",
    "precision": "fp16 bf16 dtype torch_dtype",
    "device": "no_cuda use_cpu device_map",
    "max_grad_norm": "gradient_clip_val clip_grad_norm",
    "track": "report_to",
    "save_minutes": "save_steps save_strategy",
    "resume": "resume_from_checkpoint",
    "out": "output_dir output_path",
    "train": "train_dataset dataset",
    "dev": "eval_dataset validation test_size validation_fraction validation_split",
    "frozen_layers": "freeze_layers",
    "layer_decay": "layerwise_lr_decay llrd",
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout hidden_dropout_prob",
    "layers": "target_modules num_hidden_layers",
    "lora": "peft_config lora_r lora_alpha lora_dropout target_modules",
    "class_weights": "class_weight loss_weights",
    "label_smoothing": "label_smoothing_factor",
    "processes": "n_jobs num_proc num_workers",
    "loader_processes": "num_workers dataloader_num_workers",
    "multi_label": "problem_type",
    "seed": "random_state data_seed",
    "on_epoch": "callbacks",
    # Columns: datasets, Trainer.
    "text_column": "text_column_name sentence1_key",
    "label_column": "label_column_name target_column",
    "pair_column": "sentence2_key",
    # Models: config.json of transformers.
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "activation": "hidden_act",
    "attention_dropout": "attention_probs_dropout_prob",
    "token_types": "type_vocab_size",
    # Vocabularies: tokenizers, sentencepiece.
    "vocab": "vocab_size",
    "size": "vocab_size",
    "kind": "model_type",
    "family": "model_type",
    "lowercase": "do_lower_case",
    "min_frequency": "min_freq",
    # Inference: transformers pipelines and generate, SentenceTransformer.encode.
    "min_tokens": "min_new_tokens",
    "temperature": "do_sample",
    "stop": "stop_strings",
    "top": "top_k k limit return_all_scores",
    "decoding": "max_new_tokens min_new_tokens do_sample max_tokens temperature top_p top_k "
    "num_beams num_return_sequences no_repeat_ngram_size repetition_penalty length_penalty",
    "min_score": "score_threshold",
    "where": "filter",
    "model": "model_name_or_path model_name model_id pretrained_model_name_or_path",
    "name": "pretrained_model_name_or_path",
    "prompt": "prompt_name",
    "layer": "hidden_layer output_hidden_states",
    "pooling": "pooling_mode pooling_strategy",
}
"""Names of each setting in other libraries. If a name stands for several settings, such as
`max_length`, the first of these settings that a function or command has is meant.
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
    other = name.replace("-", "_")
    settings = (setting for setting, names in SETTINGS.items() if other in names.split())
    return next((found for found in (TASKS.get(name), *settings) if found in known), None)


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
