"""Models before BERT: word vectors, LSTMs, and ELMo."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "classic",
    families={
        "lstm": "bertkit.extensions.classic.families.lstm:LSTM",
        "lstm-lm": "bertkit.extensions.classic.families.lstm:LSTM_LM",
    },
    pretrainings={"elmo": "bertkit.extensions.classic.pretrain_elmo:PRETRAINING"},
    pipelines={
        "words": "bertkit.extensions.classic.words:Words",
        "fill-gap": "bertkit.extensions.classic.fill_gap:FillGap",
    },
)
