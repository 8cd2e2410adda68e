"""Models before BERT: word vectors, LSTMs, and ELMo."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "classic",
    families={
        "lstm": "bertkit.families.lstm:LSTM",
        "lstm-lm": "bertkit.families.lstm:LSTM_LM",
    },
    pipelines={
        "words": "bertkit.pipelines.words:Words",
        "fill-gap": "bertkit.pipelines.fill_gap:FillGap",
    },
)
