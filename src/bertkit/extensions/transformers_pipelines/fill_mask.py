"""The pipeline `fill-mask`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.pooling_files import read_object
from bertkit.config import Count, decode
from bertkit.console import say
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.extensions.transformers_pipelines.base import (
    Arguments,
    ArgumentsOfCalls,
    Truncation,
    cleaned,
)
from bertkit.models.model import Model
from bertkit.nn.precision import Inference
from bertkit.pipelines.fill_mask import FillMask, mask_logits
from bertkit.text.encoding import Encoding


class FillMaskArguments(Arguments, frozen=True):
    """Arguments of `FillMaskPipeline`."""

    top_k: Count = 5
    """Number of tokens to return for each mask."""
    targets: str | tuple[str, ...] | None = None
    """Words to score. If a word has several tokens, only its first token is used. Default: score
    all tokens of the vocabulary."""
    tokenizer_kwargs: Mapping[str, Any] = {}
    """Arguments for the tokenizer: truncation, max_length, and padding."""


class FillMaskPipeline(ArgumentsOfCalls, FillMask):
    """Predict the most probable tokens for each mask in a text.

    Servers and `bertkit predict` call the methods `prepare` and `run` of the base class instead.
    """

    accepted = FillMaskArguments

    def __init__(self, loaded: Loaded, engine: Engine | Inference, **arguments: Any) -> None:
        super().__init__(loaded, engine)
        self.given = arguments

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        cls.check({}, options)

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Return the tokens for the mask in a text, or a list for several masks or texts.

        Args:
            inputs: A text, or several texts.
            arguments: Arguments of `FillMaskArguments`.

        Raises:
            ConfigError: If an argument is unknown or has an invalid value.
            DataError: If a text contains no mask or is too long.
        """
        results = super().__call__(inputs, **arguments)
        # As in transformers, a list of one text gives the same result as the text itself.
        return results[0] if not isinstance(inputs, str) and len(results) == 1 else results

    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        targets = self._targets(arguments.targets)
        encodings = decode(Truncation, dict(arguments.tokenizer_kwargs)).encode(self.loaded, items)
        masks = [self.masks(text, code) for text, code in zip(items, encodings, strict=True)]

        def best(model: Model, batch: Batch) -> Tensor:
            """Return the best token ids and their probabilities. Shapes: (P, 2, top)."""
            parts = []
            for logits in mask_logits(model, batch):
                probabilities = torch.softmax(logits, -1)
                ids = torch.tensor(targets or range(logits.shape[1]), device=logits.device)
                found = probabilities[:, ids].topk(min(arguments.top_k, len(ids)))
                # Ids can be stored as floats, because a float represents all integers below 2^24
                # exactly.
                parts.append(torch.stack([ids[found.indices].float(), found.values], 1))
            return torch.cat(parts)

        outputs = self.engine.run(encodings, best, masks)
        return [
            self._tokens(encoding, indices, rows)
            for encoding, indices, rows in zip(encodings, masks, outputs, strict=True)
        ]

    def _tokens(
        self, encoding: Encoding, masks: NDArray[np.int64], outputs: NDArray[np.float32]
    ) -> Any:
        """Return the tokens for the mask as dicts, or one list per mask if there are several."""
        rows = []
        for mask, (ids, scores) in zip(masks, outputs, strict=True):
            row = []
            for token, score in zip(ids.astype(int).tolist(), scores.tolist(), strict=True):
                filled = encoding.ids.copy()
                filled[mask] = token
                # Keep special tokens if there are several masks, because skipping them would also
                # skip the other masks. transformers does the same.
                sequence = self._decode(filled.tolist(), skip_special_tokens=len(masks) == 1)
                name = self._decode([token], skip_special_tokens=False)
                row.append(
                    {"score": score, "token": token, "token_str": name, "sequence": sequence}
                )
            rows.append(row)
        return rows[0] if len(rows) == 1 else rows

    def _decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        text = self.tokenizer.core.decode(ids, skip_special_tokens=skip_special_tokens)
        return cleaned(text) if self._cleans else text

    @cached_property
    def _cleans(self) -> bool:
        path = (self.loaded.base or self.loaded.folder) / "tokenizer_config.json"
        settings = read_object(path) if path.exists() else {}
        return settings.get("clean_up_tokenization_spaces") is True

    def _targets(self, targets: str | Sequence[str] | None) -> list[int] | None:
        """Return the token ids of the targets, or None if there are no targets.

        Raises:
            ConfigError: If there are targets, but no token for any of them.
        """
        if targets is None:
            return None
        found: dict[int, None] = {}
        for target in [targets] if isinstance(targets, str) else targets:
            token = self.tokenizer.core.token_to_id(target)
            if token is None:
                ids = self.tokenizer.ids([target])[0].tolist()
                used = self.tokenizer.pieces(ids[:1])
                say(f"warning: targets: {target!r} is not a token; using {used or 'no token'}")
                token = next(iter(ids), None)
            if token is not None:
                found[token] = None
        if not found:
            raise ConfigError("targets: no target is in the vocabulary; pass other words")
        return list(found)
