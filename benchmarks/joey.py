"""joeynmt 2.3.0 as a peer: in an environment of its own, asked by its command line.

Its pins (protobuf < 3.21 among them) clash with ours, and what it imports is less than what it
names. With torch 2.13.0 on Python 3.11 these work:

    python -m venv runs/joeynmt
    runs/joeynmt/bin/pip install torch==2.13.0 numpy
    runs/joeynmt/bin/pip install --no-deps joeynmt==2.3.0
    runs/joeynmt/bin/pip install \\
        sacrebleu sentencepiece subword-nmt pyyaml tensorboard matplotlib \\
        packaging importlib-metadata tqdm setuptools

It gets our pieces with spaces between them, so that both sides read and write the same tokens, and
our shape. It computes in fp32, since it refuses 16 bits on a CPU.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bertkit.models.config import TransformerConfig
from bertkit.recipes.run_file import PretrainConfig
from bertkit.text.tokenizer import Tokenizer

PYTHON = Path("runs", "joeynmt", "bin", "python")
SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")
LANGUAGES = ("de", "en")


def installed() -> bool:
    return PYTHON.exists()


@dataclass(frozen=True)
class Joey:
    """A folder of texts in pieces, and a vocabulary, for a model of some shape."""

    folder: Path
    tokenizer: Tokenizer
    config: PretrainConfig

    def write(self, name: str, sides: Sequence[Sequence[str]]) -> None:
        """Both sides of some pairs, a line each, as pieces with spaces between them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for language, texts in zip(LANGUAGES, sides, strict=True):
            rows = (self.tokenizer.pieces(ids) for ids in self.tokenizer.ids(texts))
            lines = "".join(" ".join(row) + "\n" for row in rows)
            (self.folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
        pieces = "".join(f"{piece}\n" for piece in self.vocabulary())
        (self.folder / "pieces.txt").write_text(pieces, encoding="utf-8")

    def vocabulary(self) -> list[str]:
        """Its own special pieces, then ours, each once."""
        ours = self.tokenizer.pieces(range(self.tokenizer.vocab_size))
        return list(dict.fromkeys([*SPECIALS, *ours]))

    def settings(self, model: str) -> dict[str, Any]:
        """A configuration of it, as a file; JSON is YAML."""
        shape, train = self.config.model, self.config.train
        encoder, decoder = _recurrent(shape) if shape.recurrent else _transformer(shape)
        side = {"level": "word", "voc_file": str(self.folder / "pieces.txt")}
        return {
            "name": model,
            "joeynmt_version": "2.3.0",
            "model_dir": str(self.folder / model),
            "use_cuda": False,
            "random_seed": train.seed,
            "data": {
                "train": str(self.folder / "train"),
                "dev": str(self.folder / "val"),
                "dataset_type": "plain",
                "src": {**side, "lang": LANGUAGES[0]},
                "trg": {**side, "lang": LANGUAGES[1]},
            },
            "model": {
                "initializer": "xavier_uniform",
                "tied_embeddings": True,
                "tied_softmax": True,
                "encoder": encoder,
                "decoder": decoder,
            },
            "training": {
                "optimizer": "adamw",
                "adam_betas": list(train.betas),
                "learning_rate": train.learning_rate,
                "learning_rate_min": 0.0,
                "learning_rate_warmup": train.warmup_steps,
                "scheduling": "warmupinversesquareroot",
                "clip_grad_norm": train.max_grad_norm,
                "label_smoothing": train.label_smoothing,
                "normalization": "tokens",
                "batch_type": "sentence",
                "batch_size": train.batch_size,
                "epochs": 1000,
                "overwrite": True,
            },
            "testing": {"batch_size": 32, "batch_type": "sentence"},
        }

    def learn(self, *, warm: int, steps: int) -> float:
        """Target tokens/s of `steps` updates, by its own log, after `warm` others."""
        settings = self.settings("learned")
        settings["training"] |= {
            "updates": warm + steps,
            "logging_freq": steps // LOGGED,
            "validation_freq": 1000 * steps,
        }
        said = self._run("train", settings, "--skip-test")
        rates = [float(rate) for rate in re.findall(r"Tokens per Sec: +(\d+)", said)]
        return median(rates[-LOGGED:])

    def decode(
        self, run: Path, texts: Sequence[str], *, beams: int
    ) -> tuple[float, int, list[str]]:
        """Seconds by its own log, the tokens of its translations, and these: a Marian folder's
        model, 32 sentences of near-equal length at a time.

        It starts, reads and cuts into pieces outside of that time.
        """
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        self.write("sorted", [[texts[place] for place in order]] * 2)
        place = self.folder / "copied"
        place.mkdir(exist_ok=True)
        torch.save({"model_state": self.weights(run)}, place / "best.ckpt")
        settings = self.settings("copied")
        settings["data"] |= {"dev": None, "test": str(self.folder / "sorted")}
        settings["testing"] |= {"beam_size": beams, "beam_alpha": 1.0}
        said = self._run("test", settings, "--output-path", str(place / "written"))
        (seconds,) = re.findall(r"Generation took ([\d.]+)\[sec\]", said)
        lines = (place / "written.test").read_text(encoding="utf-8").splitlines()
        written = [""] * len(texts)
        for number, line in zip(order, lines, strict=True):
            written[number] = line.replace(" ", "").replace("▁", " ").strip()
        return float(seconds), sum(len(line.split()) + 1 for line in lines), written

    def weights(self, run: Path) -> dict[str, Tensor]:
        """Those of a Marian folder under its names.

        Its sinusoids alternate where Marian has all sines first, so that the dimensions of what
        flows through the layers change places; it begins a text with <s> where Marian has <pad>,
        whose embedding is zero; it has no bias over the vocabulary.
        """
        given = load_file(run / "model.safetensors")
        hidden = self.config.model.hidden
        order = alternating(hidden)
        table = given["model.shared.weight"][:, order]
        ours = {piece: i for i, piece in enumerate(
            self.tokenizer.pieces(range(self.tokenizer.vocab_size))
        )}  # fmt: skip
        nothing = torch.zeros(hidden)
        rows = [table[ours[p]] if p in ours else nothing for p in self.vocabulary()]
        weights = dict.fromkeys(
            ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"),
            torch.stack(rows),
        )
        for name, weight in given.items():
            found = re.fullmatch(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.+)\.(\w+)", name)
            if found is None:
                continue
            side, layer, part, kind = found.groups()
            if kind == "weight" and part.endswith(("q_proj", "k_proj", "v_proj", "fc1")):
                weight = weight[:, order]
            elif not part.endswith(("q_proj", "k_proj", "v_proj", "fc1")):
                weight = weight[order]
            weights[f"{side}.layers.{layer}.{NAMES[side][part]}.{kind}"] = weight.contiguous()
        positions = sinusoids(hidden)
        return weights | {"encoder.pe.pe": positions, "decoder.pe.pe": positions}

    def _run(self, mode: str, settings: Mapping[str, Any], *rest: str) -> str:
        """What it logs. Raises: RuntimeError with the end of it where it fails."""
        file = self.folder / f"{mode}.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        command = [str(PYTHON), "-m", "joeynmt", mode, str(file), *rest]
        threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | threads
        )
        said = done.stdout + done.stderr
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {said[-2000:]}")
        return said


LOGGED = 5
"""How often it tells its speed in the steps that count."""


def _transformer(shape: TransformerConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its encoder and its decoder."""
    stack = {
        "type": "transformer",
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "hidden_size": shape.hidden,
        "ff_size": shape.intermediate,
        "dropout": shape.dropout,
        "layer_norm": "post",
        "activation": "relu",
        "embeddings": {"embedding_dim": shape.hidden, "scale": True, "dropout": shape.dropout},
    }
    return stack, stack


def _recurrent(shape: TransformerConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """LSTMs that read both ways, and a decoder that starts from the last state of the top layer
    and feeds nothing of a step into the next but its state: the nearest that it has to ours."""
    assert shape.recurrent is not None
    both = {
        "type": "recurrent",
        "rnn_type": "lstm",
        "num_layers": shape.layers,
        "dropout": shape.dropout,
        "embeddings": {"embedding_dim": shape.hidden, "scale": True, "dropout": shape.dropout},
    }
    encoder = {**both, "hidden_size": shape.hidden // 2, "bidirectional": True}
    decoder = {
        **both,
        "hidden_size": shape.hidden,
        "hidden_dropout": 0.0,
        "attention": shape.recurrent.attention,
        "init_hidden": "last",
        "input_feeding": False,
    }
    return encoder, decoder


def _attention(theirs: str, ours: str) -> dict[str, str]:
    parts = {**{f"{p}_proj": f"{p}_layer" for p in "qkv"}, "out_proj": "output_layer"}
    return {f"{theirs}.{name}": f"{ours}.{layer}" for name, layer in parts.items()}


_FEEDFORWARD = {
    "fc1": "feed_forward.pwff_layer.0",
    "fc2": "feed_forward.pwff_layer.3",
    "final_layer_norm": "feed_forward.layer_norm",
}
NAMES = {
    "encoder": {
        **_attention("self_attn", "src_src_att"),
        "self_attn_layer_norm": "layer_norm",
        **_FEEDFORWARD,
    },
    "decoder": {
        **_attention("self_attn", "trg_trg_att"),
        **_attention("encoder_attn", "src_trg_att"),
        "self_attn_layer_norm": "x_layer_norm",
        "encoder_attn_layer_norm": "dec_layer_norm",
        **_FEEDFORWARD,
    },
}
"""Its modules by Marian's names."""


def alternating(hidden: int) -> Tensor:
    """Which of Marian's dimensions stands where. Shapes: (hidden,)."""
    return torch.arange(hidden).view(2, -1).t().flatten()


def sinusoids(hidden: int, length: int = 5000) -> Tensor:
    """Its positions: sine and cosine in turn. Shapes: (1, length, hidden)."""
    frequencies = 10_000 ** (-torch.arange(0, hidden, 2, dtype=torch.float) / hidden)
    angles = torch.arange(length, dtype=torch.float)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).view(1, length, hidden)
