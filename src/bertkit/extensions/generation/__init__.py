"""Text generation: GPT-2, T5, BART, Marian and Llama; decoding, translation, chat, DPO."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "generation",
    families={
        "openai-gpt": "bertkit.extensions.generation.families.openai_gpt:OPENAI_GPT",
        "gpt2": "bertkit.extensions.generation.families.gpt2:GPT2",
        "marian": "bertkit.extensions.generation.families.marian:MARIAN",
        "bart": "bertkit.extensions.generation.families.bart:BART",
        "t5": "bertkit.extensions.generation.families.t5:T5",
        "llama": "bertkit.extensions.generation.families.llama:LLAMA",
    },
    formats={"gguf": "bertkit.extensions.generation.gguf:GgufFormat"},
    settings_readers={
        "generation": "bertkit.extensions.generation.generation_config:read_generation"
    },
    tasks={
        "chat": "bertkit.extensions.generation.tasks.chat:Chat",
        "dpo": "bertkit.extensions.generation.tasks.dpo:Dpo",
        "seq2seq": "bertkit.extensions.generation.tasks.seq2seq:Seq2seq",
    },
    tokenizers={
        "translate": "bertkit.extensions.generation.marian_tokenizer:MARIAN",
        "deberta": "bertkit.extensions.generation.encoder_tokenizers:DEBERTA",
        "xlm-roberta": "bertkit.extensions.generation.encoder_tokenizers:XLM_ROBERTA",
    },
    objectives={
        "next": "bertkit.extensions.generation.objectives:NextTokenConfig",
        "translate": "bertkit.extensions.generation.objectives:TranslationConfig",
        "spans": "bertkit.extensions.generation.objectives:DenoisingConfig",
        "infill": "bertkit.extensions.generation.objectives:DenoisingConfig",
        "mass": "bertkit.extensions.generation.objectives:DenoisingConfig",
        "prefix": "bertkit.extensions.generation.objectives:DenoisingConfig",
    },
    pipelines={
        "generate": "bertkit.extensions.generation.pipeline:Generate",
        "next-token": "bertkit.extensions.generation.next_token:NextToken",
        "summarize": "bertkit.extensions.generation.summarize:WriteSummaries",
    },
    routes={
        "/v1/completions": "bertkit.extensions.generation.routes:COMPLETIONS",
        "/v1/chat/completions": "bertkit.extensions.generation.routes:CHAT_COMPLETIONS",
        "/translate": "bertkit.extensions.generation.routes:TRANSLATE",
    },
    pages={
        "/steps": "bertkit.extensions.generation.pages:StepsPage",
        "/damage": "bertkit.extensions.generation.pages:CorruptionPage",
    },
)
