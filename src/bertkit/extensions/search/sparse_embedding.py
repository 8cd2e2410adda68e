"""Pipeline for sparse embeddings of texts: weights of the tokens of the vocabulary (SPLADE).

Source: Formal et al. 2021, "SPLADE v2: Sparse Lexical and Expansion Model for Information
Retrieval".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count, Settings, decode
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine
from bertkit.errors import check_choice
from bertkit.extensions.search.splade_files import read_splade
from bertkit.models.model import Model
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import BYTES_PER_NUMBER, ModelPipeline, encodings_of, works_of
from bertkit.pipelines.fill_mask import MASKS_PER_BATCH, mask_logits
from bertkit.tasks.inference import ITEMS_PER_CHUNK, Work, batched
from bertkit.text.long_texts import Long, encode
from bertkit.text.prompts import Prompter


class TokenWeight(msgspec.Struct, frozen=True, gc=False):
    """A token of the vocabulary, its id, and its weight for a text."""

    token: str
    index: int
    weight: float


class SparseOptions(Settings, frozen=True):
    """Options of sparse embeddings."""

    prompt: Annotated[str, Meta(max_length=300)] | None = None
    """Prompt to prepend to each text: the name of one of the model's prompts, or a text. Default:
    the model's default prompt, if any."""
    max_active_dims: Count | None = None
    """Maximum number of weights of a text. Default: as the model specifies, or all."""


class EmbedSparse(ModelPipeline):
    """Compute sparse embeddings of texts with a SPLADE model.

    An embedding contains the tokens of the vocabulary whose weight is not 0. The weight of a token
    is the maximum (or the sum) of log(1 + relu(logit)) over the positions of the text. The MLM head
    predicts the logits.

    A masked language model that was not trained with SPLADE gives embeddings that are not sparse.

    Args:
        loaded: The model.
        engine: Engine of the model, or the precision of a new engine.
    """

    prediction, options = list[TokenWeight], SparseOptions

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self._get_head("mlm", "use a SPLADE model")
        self.splade = read_splade(loaded.folder)
        self.prompt = Prompter(self.splade.prompts)
        self.tokens = self.tokenizer.pieces(range(self.tokenizer.vocab_size))

    def __call__(
        self, texts: str | Sequence[str], *, long: Long = "error", **options: Any
    ) -> list[TokenWeight] | list[list[TokenWeight]]:
        """Return the weights of a text, largest first, or a list for several texts.

        Args:
            texts: A text, or several texts.
            long: Policy for texts longer than the maximum length: error or truncate.
            options: `prompt` and `max_active_dims` of `SparseOptions`.

        Raises:
            ConfigError: If an option is not valid, or the model has no prompt of this name.
            DataError: If a text is too long and the policy is `error`.
        """
        parts = batched(as_list(texts), ITEMS_PER_CHUNK)
        prepared = (self.prepare(part, long=long, **options) for part in parts)
        answers = [answer for works in prepared for answer in self.run(works)]
        return answers[0] if isinstance(texts, str) else answers

    def prepare(self, texts: Sequence[str], *, long: Long = "error", **options: Any) -> list[Work]:
        """Encode texts.

        Args:
            texts: The texts.
            long: Policy for texts longer than the maximum length: error or truncate.
            options: Fields of `SparseOptions`.

        Raises:
            ConfigError: If an option is not valid, or the model has no prompt of this name.
            DataError: If a text is too long and the policy is `error`.
        """
        check_choice("long", long, self.policies)
        chosen, size = decode(SparseOptions, options), len(self.tokens)
        prompts, length = [self.prompt(chosen.prompt)] * len(texts), self.loaded.length
        encodings, owner = encode(
            self.tokenizer, texts, length=length, long=long, prompts=prompts, windowed=False
        )
        top = min(chosen.max_active_dims or self.splade.max_active_dims or size, size)
        works = works_of(encodings, owner, len(texts))
        # A weight is stored with its token and its id.
        return [replace(work, item=top, answer_bytes=3 * BYTES_PER_NUMBER * top) for work in works]

    def run(self, works: Sequence[Work]) -> list[list[TokenWeight]]:
        """Return the weights of each encoded text, largest first."""
        rows = self.engine.stream(encodings_of(works)[0], self._weights)
        answers = {index: self._answer(row[0], works[index].item) for index, row in rows}
        return [answers[index] for index in range(len(works))]

    def _answer(self, row: Tensor, most: int) -> list[TokenWeight]:
        """Return the largest weights of a text. Shapes: row: (V,)."""
        if not row.isfinite().all():
            raise ArithmeticError("the model computed a weight that is NaN or inf")
        weights, indices = row.topk(min(most, int(row.count_nonzero())))
        pairs = zip(indices.tolist(), weights.tolist(), strict=True)
        return [TokenWeight(self.tokens[index], index, weight) for index, weight in pairs]

    def _weights(self, model: Model, batch: Batch) -> Tensor:
        """Compute the weight of each token of the vocabulary. Shapes: returns (S, V)."""
        ids, size = batch.layout.sequence_ids, len(self.tokens)
        weights = torch.zeros(batch.layout.sequences, size, device=ids.device)
        reduction = "amax" if self.splade.pooling_strategy == "max" else "sum"
        batch = replace(batch, token_indices=torch.arange(len(ids), device=ids.device))
        # `mask_logits` yields the logits of a few positions at a time, because each has V logits.
        for rows, logits in zip(ids.split(MASKS_PER_BATCH), mask_logits(model, batch), strict=True):
            # A padded vocabulary has more embeddings than tokens.
            values = logits[:, :size].relu_().log1p_()
            if self.splade.activation_function == "log1p_relu":
                values.log1p_()
            weights.scatter_reduce_(0, rows[:, None].expand_as(values), values, reduction)
        return weights
