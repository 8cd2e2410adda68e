"""Pipelines that have the names, arguments, and results of those in transformers 4.57."""

from bertkit.registry import Extension

_HERE = "bertkit.extensions.transformers_pipelines"

EXTENSION = Extension(
    "transformers_pipelines",
    pipelines={
        "feature-extraction": f"{_HERE}.feature_extraction:FeatureExtractionPipeline",
        "fill-mask": f"{_HERE}.fill_mask:FillMaskPipeline",
        "ner": f"{_HERE}.token_classification:TokenClassificationPipeline",
        "question-answering": f"{_HERE}.question_answering:QuestionAnsweringPipeline",
        "sentiment-analysis": f"{_HERE}.text_classification:TextClassificationPipeline",
        "summarization": f"{_HERE}.text2text_generation:SummarizationPipeline",
        "text-classification": f"{_HERE}.text_classification:TextClassificationPipeline",
        "text2text-generation": f"{_HERE}.text2text_generation:Text2TextGenerationPipeline",
        "token-classification": f"{_HERE}.token_classification:TokenClassificationPipeline",
        "translation": f"{_HERE}.text2text_generation:TranslationPipeline",
    },
)
