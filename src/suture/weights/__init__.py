"""Names, shapes and bytes of checkpoints: what is read from files and written to them."""

from __future__ import annotations

from suture.weights.checkpoint import Checkpoint as Checkpoint
from suture.weights.checkpoint import CheckpointError as CheckpointError
from suture.weights.checkpoint import MissingFileError as MissingFileError
from suture.weights.vocabulary import SpecialIds as SpecialIds
from suture.weights.vocabulary import Vocabulary as Vocabulary
