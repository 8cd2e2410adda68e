"""Calls of pipelines whose results in transformers are stored in golden/.

This file is also imported by `make_golden.py`, where bertkit is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A call of a pipeline.

    Attributes:
        pipeline: Name of the pipeline.
        model: Name of the model in `models.py`, or minilm.
        inputs: Positional arguments of the call.
        arguments: Keyword arguments of the call.
        opened: Keyword arguments of the opening.
    """

    pipeline: str
    model: str
    inputs: list[Any]
    arguments: Mapping[str, Any] = {}
    opened: Mapping[str, Any] = {}


TEXT = "The cat sat on the mat, and Bob lives in Berlin."
PEOPLE = "Ann lives in Berlin and works for Acme. Bobs unknown cats sat on the old river bank!"
LONG = " ".join(["the cat sat on the old mat in berlin and ann works for acme ."] * 9)
PAIR = {"text": "the cat sat", "text_pair": "the dog sat on the mat"}
QUESTION = {"question": "Who lives in Berlin?", "context": PEOPLE}
FAR = {"question": "who sat?", "context": LONG}
LOWER = "the cat sat on the mat in the berlin that lives on"
MASKED = ["the [MASK] sat on the mat.", "ann [MASK] in [MASK]."]
TOPICS = ["sports", "politics", "science"]
ABOUT = {"hypothesis_template": "this text is about {}."}

CLASSIFY, TAG, ANSWER = "text-classification", "token-classification", "question-answering"
FILL, ZERO = "fill-mask", "zero-shot-classification"
SUMMARIZE, TRANSLATE, GENERATE = "summarization", "translation", "text2text-generation"
SHORT = {"max_new_tokens": 9}

CASES = {
    "text_classification": [
        Case(CLASSIFY, "classifier", [TEXT]),
        Case("sentiment-analysis", "classifier", [[TEXT, PEOPLE]]),
        Case(CLASSIFY, "classifier", [TEXT], {"top_k": None}),
        Case(CLASSIFY, "classifier", [[TEXT, PEOPLE]], {"top_k": 2}),
        Case(CLASSIFY, "classifier", [[TEXT]], {"top_k": 1}),
        Case(CLASSIFY, "classifier", [TEXT], {}, {"top_k": None}),
        Case(CLASSIFY, "classifier", [[TEXT, PEOPLE]], {"return_all_scores": True}),
        Case(CLASSIFY, "classifier", [TEXT], {"return_all_scores": True}),
        Case(CLASSIFY, "classifier", [PAIR]),
        Case(CLASSIFY, "classifier", [[PAIR, PAIR]], {"top_k": None}),
        Case(CLASSIFY, "classifier", [TEXT], {"function_to_apply": "sigmoid", "top_k": None}),
        Case(CLASSIFY, "classifier", [TEXT], {"function_to_apply": "none", "top_k": None}),
        Case(CLASSIFY, "classifier", [[LONG, TEXT]], {"truncation": True, "padding": True}),
        Case(CLASSIFY, "classifier", [LONG], {"truncation": True, "max_length": 7}),
        Case(CLASSIFY, "multi-label", [TEXT], {"top_k": None}),
        Case(CLASSIFY, "ranker", [[PAIR, PAIR]]),
        Case(CLASSIFY, "ranker", [PAIR], {"function_to_apply": "none"}),
    ],
    "token_classification": [
        *(
            Case("ner", model, [PEOPLE], {"aggregation_strategy": strategy})
            for model in ("tagger", "roberta-tagger")
            for strategy in ("none", "simple", "first", "average", "max")
        ),
        Case(TAG, "tagger", [[TEXT, PEOPLE]]),
        Case(TAG, "tagger", [TEXT], {"ignore_labels": []}),
        Case(TAG, "tagger", [PEOPLE], {"ignore_labels": ["PER"]}, {"aggregation_strategy": "max"}),
        Case(TAG, "tagger", [PEOPLE], {"grouped_entities": True}),
        Case(TAG, "tagger", [PEOPLE], {"grouped_entities": True, "ignore_subwords": True}),
        Case(TAG, "tagger", [LONG], {"aggregation_strategy": "simple"}),
        Case(TAG, "tagger", [LONG], {"aggregation_strategy": "first", "stride": 20}),
        Case(TAG, "roberta-tagger", [LONG], {"aggregation_strategy": "max", "stride": 5}),
        Case(TAG, "tagger", [PEOPLE.split()], {"is_split_into_words": True, "delimiter": "--"}),
        Case(
            TAG,
            "tagger",
            [[PEOPLE.split(), TEXT.split()]],
            {"is_split_into_words": True, "aggregation_strategy": "simple"},
        ),
    ],
    "question_answering": [
        *(
            Case(ANSWER, model, [], QUESTION | arguments)
            for model in ("reader", "roberta-reader")
            for arguments in (
                {},
                {"top_k": 5},
                {"top_k": 3, "align_to_words": False},
                {"top_k": 2, "handle_impossible_answer": True},
                {"top_k": 4, "max_answer_len": 2},
            )
        ),
        Case(ANSWER, "reader", [], FAR),
        Case(ANSWER, "reader", [], FAR | {"top_k": 6, "max_seq_len": 24, "doc_stride": 8}),
        Case(ANSWER, "reader", [], FAR | {"max_seq_len": 24, "handle_impossible_answer": True}),
        Case(ANSWER, "roberta-reader", [], FAR | {"top_k": 4, "max_seq_len": 60, "doc_stride": 0}),
        Case(ANSWER, "reader", [], {"question": ["who?", "where?"], "context": PEOPLE}),
        Case(ANSWER, "reader", [[QUESTION, FAR]], {"top_k": 2}),
        Case(ANSWER, "reader", [QUESTION], {"max_question_len": 2, "padding": "do_not_pad"}),
        Case(ANSWER, "reader", ["Who?", PEOPLE], {}, {"top_k": 2}),
    ],
    "fill_mask": [
        Case(FILL, "bert", [MASKED[0]]),
        Case(FILL, "bert", [MASKED]),
        Case(FILL, "bert", [MASKED[:1]], {"top_k": 2}),
        Case(FILL, "bert", [MASKED[1]], {"top_k": 3}),
        Case(FILL, "bert", [MASKED[0]], {"targets": ["dog", "cat", "river"]}),
        Case(FILL, "bert", [MASKED[0]], {"targets": "dog"}),
        Case(FILL, "bert", [MASKED[0]], {"targets": ["cats", "dog"], "top_k": 1}),
        Case(FILL, "bert", [f"{MASKED[0]} {LONG}"], {"tokenizer_kwargs": {"truncation": True}}),
        Case(FILL, "bert", [MASKED[0]], {}, {"top_k": 1}),
        Case(FILL, "roberta", ["the<mask> sat . on the mat ,"], {"top_k": 4}),
        Case(FILL, "roberta", ["the <mask> sat on<mask>"], {"targets": ["the", "Ġcat"]}),
    ],
    "feature_extraction": [
        Case("feature-extraction", "bert", ["the cat"]),
        Case("feature-extraction", "bert", [["the cat", "a dog ."]]),
        Case("feature-extraction", "roberta", [LONG], {"truncation": True}),
        Case("feature-extraction", "bert", [LONG], {"tokenize_kwargs": {"max_length": 5}}),
        Case("feature-extraction", "minilm", ["A cat sat on the mat."]),
    ],
    "zero_shot": [
        Case(ZERO, "nli", [TEXT], {"candidate_labels": TOPICS}),
        Case(ZERO, "nli", [[TEXT, PEOPLE], TOPICS], ABOUT),
        Case(ZERO, "nli", [TEXT], {"candidate_labels": "sports, politics"}),
        Case(ZERO, "nli", [TEXT, TOPICS], {"multi_label": True}),
        Case(ZERO, "nli", [[TEXT]], {"candidate_labels": "science"}),
        Case(ZERO, "nli", [LONG, TOPICS], {}, {"multi_label": True}),
    ],
    "text2text_generation": [
        Case(GENERATE, "t5", [LOWER], SHORT),
        Case(GENERATE, "bart", [[LOWER, TEXT]], SHORT),
        Case(SUMMARIZE, "t5", [LOWER], {"max_new_tokens": 14}),
        Case(SUMMARIZE, "t5", [LOWER]),
        Case(SUMMARIZE, "bart", [[LOWER]], {"min_length": 8, "max_new_tokens": 12}),
        Case("translation_en_to_de", "t5", [LOWER], SHORT),
        Case("translation_en_to_de", "t5", [[LOWER, TEXT]], SHORT | {"num_beams": 1}),
        Case(TRANSLATE, "t5", [LOWER], SHORT),
        Case(TRANSLATE, "bart", [LOWER], SHORT | {"num_return_sequences": 3}),
        Case(TRANSLATE, "bart", [[LOWER, TEXT]], SHORT | {"num_return_sequences": 2}),
        Case(GENERATE, "bart", [LOWER], {"max_length": 11}, {"max_length": 7}),
        Case(GENERATE, "t5", [LONG], SHORT | {"truncation": True, "length_penalty": 2.0}),
        Case(GENERATE, "bart", [LOWER], SHORT | {"no_repeat_ngram_size": 1, "num_beams": 2}),
        Case(GENERATE, "bart", [LOWER], SHORT | {"repetition_penalty": 3.0, "num_beams": 1}),
        Case(GENERATE, "t5", [TEXT], {"clean_up_tokenization_spaces": True}),
        Case(GENERATE, "bart", [TEXT], {}, SHORT | {"early_stopping": True}),
    ],
}
"""Calls by golden file."""
