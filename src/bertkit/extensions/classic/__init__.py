"""Models before BERT: word vectors, LSTMs, and ELMo."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "classic",
    families={
        "lstm": "bertkit.extensions.classic.families.lstm:LSTM",
        "lstm-lm": "bertkit.extensions.classic.families.lstm:LSTM_LM",
    },
    formats={
        "word-vectors": "bertkit.extensions.classic.word_models:WordVectorsFormat",
        "word-features": "bertkit.extensions.classic.word_models:WordFeaturesFormat",
        "elmo": "bertkit.extensions.classic.word_models:ElmoFormat",
    },
    pretrainings={"elmo": "bertkit.extensions.classic.pretrain_elmo:PRETRAINING"},
    pipelines={
        "words": "bertkit.extensions.classic.words:Words",
        "fill-gap": "bertkit.extensions.classic.fill_gap:FillGap",
    },
    routes={"/contexts": "bertkit.extensions.classic.pages:CONTEXTS"},
    pages={
        "/gap": "bertkit.extensions.classic.pages:GapPage",
        "/word": "bertkit.extensions.classic.pages:WordPage",
        "/growing": "bertkit.extensions.classic.pages:GrowingPage",
        "/distance": "bertkit.extensions.classic.pages:DistancePage",
    },
)
