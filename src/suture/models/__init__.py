"""Pretrained decoders: one page per family, loaded from checkpoints and saved as such."""

from __future__ import annotations

from suture.models.backbone import Backbone as Backbone
from suture.models.backbone import TokenEmbedding as TokenEmbedding
from suture.models.block import TransformerBlock as TransformerBlock
from suture.models.llama import LlamaConfig as LlamaConfig
from suture.models.pretrained import Description as Description
from suture.models.pretrained import LoadedModel as LoadedModel
from suture.models.pretrained import load as load
from suture.models.pretrained import save as save
