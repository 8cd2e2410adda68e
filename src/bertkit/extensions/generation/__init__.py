"""Text generation: GPT-2, T5, BART, Marian and Llama; decoding, translation, chat, DPO."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "generation",
    families={
        "openai-gpt": "bertkit.families.openai_gpt:OPENAI_GPT",
        "gpt2": "bertkit.families.gpt2:GPT2",
        "marian": "bertkit.families.marian:MARIAN",
        "bart": "bertkit.families.bart:BART",
        "t5": "bertkit.families.t5:T5",
        "llama": "bertkit.families.llama:LLAMA",
    },
    tasks={
        "chat": "bertkit.tasks.chat:Chat",
        "dpo": "bertkit.tasks.dpo:Dpo",
        "seq2seq": "bertkit.tasks.seq2seq:Seq2seq",
    },
    pipelines={
        "generate": "bertkit.pipelines.generate:Generate",
        "summarize": "bertkit.pipelines.summarize:WriteSummaries",
    },
)
