"""Directories with the layout of popular checkpoints load like in transformers, or are rejected.

A layout is a kind of directory: files of the tokenizer, file and names of the weights, and keys of
`config.json`. Many checkpoints share a layout. A test writes a tiny random model with each layout,
and loads the same directory with bertkit, transformers, and sentence-transformers.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
from safetensors.torch import save_file
from tests.docs.test_settings import section
from tests.factories import write_vocab
from tests.parity.test_families import difference
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import bertkit
from bertkit.errors import BertkitError
from bertkit.storage import write_json

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "models.md"
VOCAB = 320
TEXT, PAIR = "the cat sat on the mat", "a dog , the cats !"
WORDS = sorted({*f"{TEXT} {PAIR} The ##s ##at ##og ( . ? dogs".split()})
LINES = [f"{a} {b} {c}." for a in WORDS for b in WORDS for c in ("the cat", "a mat", "on")]

BERT = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 64,
    "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "type_vocab_size": 2, "vocab_size": VOCAB,
}  # fmt: skip
POOLER = {
    "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
}  # fmt: skip
ROBERTA = {
    **BERT, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "layer_norm_eps": 1e-5,
    "max_position_embeddings": 66, "type_vocab_size": 1,
}  # fmt: skip
DISTILBERT = {
    "activation": "gelu", "attention_dropout": 0.1, "dim": 32, "dropout": 0.1, "hidden_dim": 64,
    "initializer_range": 0.02, "max_position_embeddings": 64, "model_type": "distilbert",
    "n_heads": 4, "n_layers": 2, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": VOCAB,
}  # fmt: skip
ALBERT = {
    **BERT, "model_type": "albert", "embedding_size": 16, "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "classifier_dropout_prob": 0.1,
    "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "inner_group_num": 1,
    "num_hidden_groups": 1, "down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0,
    "num_memory_blocks": 0, "layer_norm_eps": 1e-12,
}  # fmt: skip
ELECTRA = {
    **BERT, "model_type": "electra", "embedding_size": 16, "layer_norm_eps": 1e-12,
    "summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first",
    "summary_use_proj": True,
}  # fmt: skip
MPNET = {
    **ROBERTA, "model_type": "mpnet", "relative_attention_num_buckets": 32,
}  # fmt: skip
del MPNET["type_vocab_size"]
DEBERTA = {
    **BERT, "model_type": "deberta-v2", "max_relative_positions": -1, "relative_attention": True,
    "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "position_biased_input": False,
    "type_vocab_size": 0,
}  # fmt: skip
MODERNBERT = {
    "attention_bias": False, "attention_dropout": 0.0, "classifier_activation": "gelu",
    "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
    "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": False,
    "hidden_activation": "gelu", "hidden_size": 32, "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02, "intermediate_size": 48, "layer_norm_eps": 1e-05,
    "local_attention": 16, "local_rope_theta": 10000.0, "max_position_embeddings": 64,
    "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False,
    "norm_eps": 1e-05, "num_attention_heads": 4, "num_hidden_layers": 4,
    "position_embedding_type": "absolute", "reference_compile": True, "pad_token_id": 0,
    "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3,
    "repad_logits_with_grad": False, "sparse_pred_ignore_index": -100, "sparse_prediction": False,
    "vocab_size": VOCAB,
}  # fmt: skip
GENERATION = {
    "architectures": ["BertForPreTraining"], "bos_token_id": 0, "do_sample": False,
    "eos_token_ids": 0, "finetuning_task": None, "is_decoder": False, "length_penalty": 1.0,
    "max_length": 20, "num_beams": 1, "num_labels": 2, "num_return_sequences": 1,
    "output_attentions": False, "output_hidden_states": False, "output_past": True,
    "pad_token_id": 0, "pruned_heads": {}, "repetition_penalty": 1.0, "temperature": 1.0,
    "top_k": 50, "top_p": 1.0, "torchscript": False, "use_bfloat16": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
}  # fmt: skip
THREE = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}


@dataclass(frozen=True)
class Layout:
    """A kind of directory."""

    saved: str
    """Class of transformers whose weights the directory contains."""
    config: Mapping[str, Any]
    """Content of config.json, with small sizes."""
    tokenizer: str
    """File of the vocabulary, or the class that wrote the tokenizer.json."""
    settings: Mapping[str, Any] | None = None
    """Content of tokenizer_config.json, if the directory has one."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Settings that transformers needs in addition to config.json."""
    weights: str = "safetensors"
    """safetensors, half (safetensors in fp16), bin, or older bin (of torch before 1.6)."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Patterns of weight names of transformers 5 -> names in the file."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Tensors that transformers 5 does not use, by name."""
    modules: tuple[str, ...] = ()
    """Modules of sentence-transformers after the encoder."""


GAMMA = {r"LayerNorm\.weight": "LayerNorm.gamma", r"LayerNorm\.bias": "LayerNorm.beta"}
UNCASED = {"do_lower_case": True, "model_max_length": 512}
CASED = {"do_lower_case": False, "model_max_length": 512}
SENTENCE = ("Pooling", "Normalize")

DEBERTA_ONLY = {
    "deberta.embeddings.position_embeddings.weight": torch.ones(64, 32),
    "mask_predictions.dense.weight": torch.ones(32, 32),
    "mask_predictions.dense.bias": torch.ones(32),
    "mask_predictions.LayerNorm.weight": torch.ones(32),
    "mask_predictions.LayerNorm.bias": torch.ones(32),
    "mask_predictions.classifier.weight": torch.ones(1, 32),
    "mask_predictions.classifier.bias": torch.ones(1),
}
"""Weights of DeBERTa's pretraining: positions of the mask decoder, and replaced tokens."""


def positions(name: str) -> dict[str, torch.Tensor]:
    """Return the position ids that transformers stored before version 4.31."""
    return {f"{name}.position_ids": torch.arange(64)[None]}


LAYOUTS: dict[str, tuple[Layout, str]] = {
    "bert, TensorFlow names": (
        Layout(
            "BertForPreTraining",
            {**BERT, "architectures": ["BertForMaskedLM"], "gradient_checkpointing": False,
             "layer_norm_eps": 1e-12, "model_type": "bert", "pad_token_id": 0,
             "position_embedding_type": "absolute", "use_cache": True},
            "BertTokenizer", UNCASED, renamed=GAMMA,
        ),
        """google-bert/bert-base-uncased google-bert/bert-base-cased
        google-bert/bert-large-uncased google-bert/bert-large-cased""",
    ),
    "bert, keys of a pooler": (
        Layout(
            "BertForPreTraining",
            {**BERT, **POOLER, "architectures": ["BertForMaskedLM"], "layer_norm_eps": 1e-12,
             "model_type": "bert", "pad_token_id": 0, "output_past": True},
            "BertTokenizer", CASED, more=positions("bert.embeddings"),
        ),
        """google-bert/bert-base-multilingual-cased google-bert/bert-base-chinese
        hfl/chinese-roberta-wwm-ext hfl/chinese-macbert-base""",
    ),
    "bert, keys of transformers 2": (
        Layout("BertForPreTraining", {**BERT, **GENERATION, "model_type": "bert"}, "vocab.txt",
               weights="bin", more=positions("bert.embeddings")),
        "nlpaueb/legal-bert-base-uncased",
    ),
    "bert, no architecture": (
        Layout(
            "BertForPreTraining", {**BERT, "model_type": "bert"}, "vocab.txt", weights="older bin",
        ),
        "emilyalsentzer/Bio_ClinicalBERT allenai/scibert_scivocab_uncased",
    ),
    "bert encoder": (
        Layout(
            "BertModel",
            {**BERT, "architectures": ["BertModel"], "model_type": "bert", "pad_token_id": 0},
            "BertTokenizer", {**UNCASED, "tokenizer_class": "BertTokenizer"},
            weights="bin", more=positions("embeddings"), modules=SENTENCE,
        ),
        """sentence-transformers/all-MiniLM-L6-v2 sentence-transformers/all-MiniLM-L12-v2
        BAAI/bge-small-en-v1.5 BAAI/bge-base-en-v1.5 BAAI/bge-large-en-v1.5
        intfloat/e5-base-v2 thenlper/gte-small""",
    ),
    "bert encoder, fp16": (
        Layout(
            "BertModel",
            {**BERT, "architectures": ["BertModel"], "model_type": "bert",
             "torch_dtype": "float16"},
            "BertTokenizer", UNCASED, weights="half", modules=SENTENCE,
        ),
        "mixedbread-ai/mxbai-embed-large-v1",
    ),
    "bert with the vocabulary of XLM-R": (
        Layout(
            "BertModel",
            {**BERT, "architectures": ["BertModel"], "model_type": "bert", "pad_token_id": 0,
             "tokenizer_class": "XLMRobertaTokenizer"},
            "XLMRobertaTokenizer",
            {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512},
            modules=SENTENCE,
        ),
        "intfloat/multilingual-e5-small",
    ),
    "bert tagger": (
        Layout(
            "BertForTokenClassification",
            {**BERT, **POOLER, **THREE, "_num_labels": 3, "architectures":
             ["BertForTokenClassification"], "model_type": "bert", "output_past": True},
            "vocab.txt", CASED, more=positions("bert.embeddings"), weights="bin",
        ),
        "dslim/bert-base-NER dbmdz/bert-large-cased-finetuned-conll03-english",
    ),
    "bert classifier": (
        Layout(
            "BertForSequenceClassification",
            {**BERT, **THREE, "architectures": ["BertForSequenceClassification"],
             "model_type": "bert", "problem_type": "single_label_classification"},
            "vocab.txt", UNCASED, weights="bin", more=positions("bert.embeddings"),
        ),
        "ProsusAI/finbert nlptown/bert-base-multilingual-uncased-sentiment",
    ),
    "bert answers": (
        Layout(
            "BertForQuestionAnswering",
            {**BERT, "architectures": ["BertForQuestionAnswering"], "model_type": "bert"},
            "BertTokenizer", UNCASED, more=positions("bert.embeddings"),
        ),
        """google-bert/bert-large-uncased-whole-word-masking-finetuned-squad
        deepset/bert-base-cased-squad2""",
    ),
    "distilbert": (
        Layout(
            "DistilBertForMaskedLM", {**DISTILBERT, "architectures": ["DistilBertForMaskedLM"]},
            "BertTokenizer", UNCASED,
        ),
        """distilbert/distilbert-base-uncased distilbert/distilbert-base-cased
        distilbert/distilbert-base-multilingual-cased""",
    ),
    "distilbert classifier": (
        Layout(
            "DistilBertForSequenceClassification",
            {**DISTILBERT, "architectures": ["DistilBertForSequenceClassification"],
             "finetuning_task": "sst-2", "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
             "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "output_past": True},
            "vocab.txt", UNCASED,
        ),
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
    ),
    "distilbert answers": (
        Layout(
            "DistilBertForQuestionAnswering",
            {**DISTILBERT, "architectures": ["DistilBertForQuestionAnswering"],
             "output_past": True},
            "BertTokenizer", CASED,
        ),
        """distilbert/distilbert-base-cased-distilled-squad
        distilbert/distilbert-base-uncased-distilled-squad""",
    ),
    "roberta": (
        Layout(
            "RobertaForMaskedLM",
            {**ROBERTA, "architectures": ["RobertaForMaskedLM"], "model_type": "roberta"},
            "RobertaTokenizer", more=positions("roberta.embeddings"), weights="bin",
        ),
        """FacebookAI/roberta-base FacebookAI/roberta-large distilbert/distilroberta-base""",
    ),
    "roberta encoder": (
        Layout(
            "RobertaModel",
            {**ROBERTA, "architectures": ["RobertaModel"], "model_type": "roberta",
             "output_past": True},
            "merges.txt", weights="bin", more=positions("embeddings"),
        ),
        "microsoft/codebert-base",
    ),
    "roberta classifier": (
        Layout(
            "RobertaForSequenceClassification",
            {**ROBERTA, **THREE, "architectures": ["RobertaForSequenceClassification"],
             "model_type": "roberta", "_num_labels": 3},
            "RobertaTokenizer", more=positions("roberta.embeddings"),
        ),
        "FacebookAI/roberta-large-mnli SamLowe/roberta-base-go_emotions",
    ),
    "roberta classifier, merges.txt": (
        Layout(
            "RobertaForSequenceClassification",
            {**ROBERTA, **THREE, "architectures": ["RobertaForSequenceClassification"],
             "model_type": "roberta", "gradient_checkpointing": False},
            "merges.txt", weights="bin", more=positions("roberta.embeddings"),
        ),
        """cardiffnlp/twitter-roberta-base-sentiment-latest
        cardiffnlp/twitter-roberta-base-sentiment""",
    ),
    "roberta answers": (
        Layout(
            "RobertaForQuestionAnswering",
            {**ROBERTA, "architectures": ["RobertaForQuestionAnswering"], "language": "english",
             "model_type": "roberta", "name": "Roberta"},
            "merges.txt", {"do_lower_case": False, "model_max_length": 512}, weights="bin",
        ),
        "deepset/roberta-base-squad2",
    ),
    "xlm-roberta": (
        Layout(
            "XLMRobertaForMaskedLM",
            {**ROBERTA, "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta",
             "output_past": True},
            "XLMRobertaTokenizer", {"model_max_length": 512}, more=positions("roberta.embeddings"),
        ),
        "FacebookAI/xlm-roberta-base FacebookAI/xlm-roberta-large",
    ),
    "xlm-roberta encoder": (
        Layout(
            "XLMRobertaModel",
            {**ROBERTA, "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta",
             "classifier_dropout": None},
            "XLMRobertaTokenizer",
            {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512},
            weights="bin", modules=SENTENCE, more=positions("embeddings"),
        ),
        """BAAI/bge-m3 intfloat/multilingual-e5-base
        sentence-transformers/paraphrase-multilingual-mpnet-base-v2""",
    ),
    "xlm-roberta, transformers 3": (
        Layout(
            "XLMRobertaForSequenceClassification",
            {**ROBERTA, **THREE, "architectures": ["XLMRobertaForSequenceClassification"],
             "model_type": "xlm-roberta", "problem_type": "single_label_classification"},
            "sentencepiece.bpe.model", weights="bin", more=positions("roberta.embeddings"),
        ),
        "",
    ),
    "camembert": (
        Layout(
            "CamembertForMaskedLM",
            {**ROBERTA, "architectures": ["CamembertForMaskedLM"], "model_type": "camembert",
             "bos_token_id": 5, "eos_token_id": 6, "output_past": True},
            "CamembertTokenizer", {"model_max_length": 512}, weights="bin",
            more=positions("roberta.embeddings"),
        ),
        "almanach/camembert-base",
    ),
    "albert": (
        Layout(
            "AlbertForPreTraining", {**ALBERT, "architectures": ["AlbertForMaskedLM"]},
            "AlbertTokenizer", {"model_max_length": 512},
        ),
        "albert/albert-base-v2",
    ),
    "electra discriminator": (
        Layout(
            "ElectraForPreTraining", {**ELECTRA, "architectures": ["ElectraForPreTraining"]},
            "BertTokenizer", UNCASED, weights="bin", more=positions("electra.embeddings"),
        ),
        "google/electra-small-discriminator google/electra-base-discriminator",
    ),
    "electra generator": (
        Layout(
            "ElectraForMaskedLM", {**ELECTRA, "architectures": ["ElectraForMaskedLM"]},
            "BertTokenizer", UNCASED, weights="bin", more=positions("electra.embeddings"),
        ),
        "google/electra-small-generator",
    ),
    "mpnet": (
        Layout(
            "MPNetForMaskedLM", {**MPNET, "architectures": ["MPNetForMaskedLM"]},
            "mpnet vocab.txt", UNCASED, weights="bin", more=positions("mpnet.embeddings"),
        ),
        "microsoft/mpnet-base",
    ),
    "mpnet encoder": (
        Layout(
            "MPNetModel", {**MPNET, "architectures": ["MPNetForMaskedLM"]},
            "MPNetTokenizer", {**UNCASED, "tokenizer_class": "MPNetTokenizer"},
            more=positions("embeddings"), modules=SENTENCE,
        ),
        "sentence-transformers/all-mpnet-base-v2",
    ),
    "deberta": (
        Layout(
            "DebertaV2ForMaskedLM", DEBERTA, "spm.model",
            {"do_lower_case": False, "vocab_type": "spm"}, {"legacy": False}, weights="bin",
            more=DEBERTA_ONLY,
        ),
        """microsoft/deberta-v3-base microsoft/deberta-v3-small microsoft/deberta-v3-large
        microsoft/mdeberta-v3-base""",
    ),
    "deberta classifier": (
        Layout(
            "DebertaV2ForSequenceClassification",
            {**DEBERTA, **THREE, "architectures": ["DebertaV2ForSequenceClassification"],
             "pooler_dropout": 0, "pooler_hidden_act": "gelu", "pooler_hidden_size": 32},
            "DebertaV2Tokenizer",
            {"do_lower_case": False, "split_by_punct": False, "vocab_type": "spm",
             "sp_model_kwargs": {}, "tokenizer_class": "DebertaV2Tokenizer"},
        ),
        """MoritzLaurer/mDeBERTa-v3-base-mnli-xnli
        MoritzLaurer/DeBERTa-v3-large-mnli-fever-anli-ling-wanli""",
    ),
    "modernbert": (
        Layout(
            "ModernBertForMaskedLM", {**MODERNBERT, "architectures": ["ModernBertForMaskedLM"]},
            "ModernBERT",
            {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192,
             "model_input_names": ["input_ids", "attention_mask"], "unk_token": "[UNK]",
             "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
             "mask_token": "[MASK]"},
        ),
        "answerdotai/ModernBERT-base answerdotai/ModernBERT-large",
    ),
}  # fmt: skip


ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAIRSEQ = {"bos_id": 1, "eos_id": 2, "unk_id": 0}
SPECIALS: dict[str, dict[str, Any]] = {
    "spm.model": {
        "pad_id": 0, "pad_piece": "[PAD]", "bos_id": 1, "bos_piece": "[CLS]", "eos_id": 2,
        "eos_piece": "[SEP]", "unk_id": 3, "unk_piece": "[UNK]",
    },
    "spiece.model": {
        "pad_id": 0, "pad_piece": "<pad>", "unk_id": 1, "bos_id": 2, "bos_piece": "[CLS]",
        "eos_id": 3, "eos_piece": "[SEP]", "control_symbols": ["[MASK]"],
    },
    "sentencepiece.bpe.model": {"unk_id": 0, "bos_id": 1, "eos_id": 2},
}  # fmt: skip
"""Special tokens of SentencePiece models, by the file names of DeBERTa, ALBERT, and XLM-R."""

FILES = {
    "BertTokenizer": "vocab.txt",
    "MPNetTokenizer": "mpnet vocab.txt",
    "RobertaTokenizer": "merges.txt",
    "XLMRobertaTokenizer": "sentencepiece.bpe.model",
    "CamembertTokenizer": "sentencepiece.bpe.model",
    "AlbertTokenizer": "spiece.model",
    "DebertaV2Tokenizer": "spm.model",
}


def write_vocabulary(folder: Path, file: str) -> None:
    """Write the vocabulary of a tiny tokenizer without tokenizer.json."""
    if file == "vocab.txt":
        write_vocab(folder, WORDS)
    elif file == "mpnet vocab.txt":
        tokens = ["<s>", "<pad>", "</s>", "[UNK]", *WORDS, "<mask>"]
        (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    elif file == "merges.txt":
        byte_pairs(ROBERTA_TOKENS).model.save(str(folder))
    else:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_prefix=str(folder / "trained"), vocab_size=60,
            hard_vocab_limit=False, minloglevel=2, **SPECIALS[file],
        )  # fmt: skip
        (folder / "trained.model").rename(folder / file)
        (folder / "trained.vocab").unlink()


def byte_pairs(specials: list[str]) -> tokenizers.Tokenizer:
    """Return byte-level BPE that is trained on the texts."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(LINES, trainer)
    return core


def write_tokenizer(folder: Path, layout: Layout) -> None:
    kind = layout.tokenizer
    if kind == "ModernBERT":
        core = byte_pairs(BERT_TOKENS)
        core.normalizer = normalizers.NFC()
        ends = [(token, core.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
        )
        core.save(str(folder / "tokenizer.json"))
    elif kind in FILES:
        with tempfile.TemporaryDirectory() as other:
            write_vocabulary(Path(other), FILES[kind])
            made = getattr(transformers, kind).from_pretrained(other)
            made.backend_tokenizer.save(str(folder / "tokenizer.json"))
    else:
        write_vocabulary(folder, kind)
    if layout.settings is not None:
        write_json(folder / "tokenizer_config.json", dict(layout.settings))


def write_weights(folder: Path, layout: Layout) -> None:
    """Write random weights of the class with the names of the layout."""
    torch.manual_seed(1)
    settings = {**layout.config, **layout.arguments}
    config = transformers.CONFIG_MAPPING[layout.config["model_type"]](**settings)
    model = getattr(transformers, layout.saved)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.tie_weights()
    weights = {}
    for name, tensor in model.state_dict().items():
        for pattern, new in layout.renamed.items():
            name = re.sub(pattern, new, name)
        weights[name] = tensor.clone()
    weights |= layout.more
    if layout.weights == "half":
        weights = {name: tensor.half() for name, tensor in weights.items()}
    if layout.weights in ("safetensors", "half"):
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    else:
        is_zip = layout.weights == "bin"
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)


def write_modules(folder: Path, modules: tuple[str, ...]) -> None:
    """Write the files of sentence-transformers 2."""
    kinds = ("Transformer", *modules)
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write_json(folder / "modules.json", listed)
    pooling = {
        "word_embedding_dimension": 32, "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }  # fmt: skip
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False})
    versions = {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
    write_json(folder / "config_sentence_transformers.json", {"__version__": versions})


def write_layout(folder: Path, layout: Layout) -> Path:
    folder.mkdir()
    write_json(folder / "config.json", dict(layout.config))
    write_tokenizer(folder, layout)
    write_weights(folder, layout)
    if layout.modules:
        write_modules(folder, layout.modules)
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_matches_transformers(name: str, tmp_path: Path) -> None:
    layout, _ = LAYOUTS[name]
    folder = write_layout(tmp_path / "model", layout)
    hf_model = getattr(transformers, layout.saved).from_pretrained(
        folder, dtype=torch.float32, **layout.arguments
    )
    loaded = bertkit.load(folder)
    assert difference(loaded.model, hf_model, loaded.family) <= 1e-5
    torch.manual_seed(2)
    other = type(hf_model)(hf_model.config).eval()  # the control: initial weights
    assert difference(loaded.model, other, loaded.family) > 1e-2
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for texts in ((TEXT,), (TEXT, PAIR), (PAIR,)):
        assert loaded.tokenizer.encode(*texts).ids.tolist() == hf_tokenizer(*texts)["input_ids"]
    known = [t for t in loaded.tokenizer.encode(TEXT).ids if t != loaded.tokenizer.unk]
    assert len(known) >= 5


@pytest.mark.parametrize("name", [name for name in LAYOUTS if LAYOUTS[name][0].modules])
def test_vectors_match_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "model", LAYOUTS[name][0])
    model = peer.SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
    )
    expected = model.encode([TEXT, PAIR])
    found = bertkit.pipeline("embed", folder)([TEXT, PAIR])
    assert np.abs(found - expected).max() <= 1e-5
    other = bertkit.pipeline("embed", folder, pooling="cls")([TEXT, PAIR])  # the control
    assert np.abs(other - expected).max() > 1e-3


UNSUPPORTED = {
    "allenai/longformer-base-4096": ("longformer", {}, "a different attention mechanism"),
    "google/bigbird-roberta-base": ("big_bird", {}, "a different attention mechanism"),
    "uw-madison/nystromformer-512": ("nystromformer", {}, "a different attention mechanism"),
    "YituTech/conv-bert-base": ("convbert", {}, "a different attention mechanism"),
    "google/fnet-base": ("fnet", {}, "a different attention mechanism"),
    "studio-ousia/luke-base": ("luke", {}, "a different attention mechanism"),
    "xlnet/xlnet-base-cased": ("xlnet", {}, "relative positions"),
    "funnel-transformer/small": ("funnel", {}, "relative positions"),
    "microsoft/deberta-base": ("deberta", {}, "the positions of DeBERTa version 1"),
    "junnyu/roformer_chinese_base": ("roformer", {}, "different rotary positions"),
    "facebook/esm2_t33_650M_UR50D": ("esm", {}, "different rotary positions"),
    "google/mobilebert-uncased": ("mobilebert", {}, "different layers"),
    "squeezebert/squeezebert-uncased": ("squeezebert", {}, "different layers"),
    "google/rembert": ("rembert", {}, "different layers"),
    "facebook/xlm-roberta-xl": ("xlm-roberta-xl", {}, "different layers"),
    "flaubert/flaubert_base_cased": ("flaubert", {}, "different layers"),
    "facebook/xmod-base": ("xmod", {}, "an adapter per language"),
    "microsoft/layoutlm-base-uncased": ("layoutlm", {}, "layout embeddings"),
    "google/canine-s": ("canine", {}, "characters"),
    "nghuyong/ernie-3.0-base-zh": ("ernie", {"use_task_id": True}, "use_task_id = True"),
    "vinai/phobert-base": (
        "roberta", {"tokenizer_class": "PhobertTokenizer"}, "'PhobertTokenizer' is not supported",
    ),
    "vinai/bertweet-base": (
        "roberta", {"tokenizer_class": "BertweetTokenizer"}, "'BertweetTokenizer' is not supported",
    ),
    "tohoku-nlp/bert-base-japanese": (
        "bert", {"tokenizer_class": "BertJapaneseTokenizer"},
        "'BertJapaneseTokenizer' is not supported",
    ),
}  # fmt: skip
"""Hub id -> `model_type`, the key that bertkit does not support, and a part of the message."""

ROBERTA_WORDS = Layout(
    "RobertaModel",
    {**ROBERTA, "model_type": "roberta", "tokenizer_class": "MPNetTokenizer"},
    "mpnet vocab.txt",
)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_checkpoint_is_rejected_by_name(name: str, tmp_path: Path) -> None:
    kind, changes, message = UNSUPPORTED[name]
    layout = ROBERTA_WORDS if kind == "roberta" else LAYOUTS["bert, no architecture"][0]
    folder = tmp_path / "model"
    if changes:
        bertkit.load(write_layout(folder, layout))  # the control: it loads without the change
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", {**layout.config, "model_type": kind, **changes})
    with pytest.raises(BertkitError) as error:
        bertkit.load(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def test_page_lists_each_checkpoint() -> None:
    text = section(PAGE.read_text(encoding="utf-8"), "Encoders and fine-tuned models")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    listed = {
        name: (kind.strip(" `"), supported.strip())
        for names, kind, supported, *_ in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    supported = [
        (name, layout.config["model_type"])
        for layout, names in LAYOUTS.values()
        if not layout.modules
        for name in names.split()
    ]
    expected = {name: (kind, "yes") for name, kind in supported}
    expected |= {name: (kind, "no") for name, (kind, *_) in UNSUPPORTED.items()}
    assert listed == expected
    assert len(listed) + sum(len(names.split()) for _, names in LAYOUTS.values()) > 60
