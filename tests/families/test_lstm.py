"""Folders of LSTMs that translate: what is written is what was, and what does not fit is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.models.test_seq2seq import KINDS, batch_of
from tests.vocabularies import vocabulary

import bertkit
from bertkit.checkpoint.folder import save
from bertkit.errors import CheckpointError
from bertkit.families import LSTM
from bertkit.models.model import build
