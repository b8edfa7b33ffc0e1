"""Pretrained decoders: one page per family, loaded from checkpoints and saved as such."""

from __future__ import annotations

from suture.models.backbone import Backbone as Backbone
from suture.models.backbone import TokenEmbedding as TokenEmbedding
from suture.models.block import TransformerBlock as TransformerBlock
from suture.models.gemma import GemmaConfig as GemmaConfig
from suture.models.gemma2 import Gemma2Config as Gemma2Config
from suture.models.gemma3 import Gemma3Config as Gemma3Config
from suture.models.gpt2 import GPT2Config as GPT2Config
from suture.models.llama import LlamaConfig as LlamaConfig
from suture.models.pretrained import Description as Description
from suture.models.pretrained import LoadedModel as LoadedModel
from suture.models.pretrained import load as load
from suture.models.pretrained import save as save
