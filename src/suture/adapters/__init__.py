"""Adapters that ship with the library. Each is written on the public interface alone, as yours can be."""

from __future__ import annotations

from suture.adapters.control_vector import ControlVector as ControlVector
from suture.adapters.control_vector import Steer as Steer
from suture.adapters.control_vector import Steered as Steered
from suture.adapters.control_vector import Steering as Steering
from suture.adapters.cross_attention import CrossAttention as CrossAttention
from suture.adapters.dropout import Dropout as Dropout
from suture.adapters.dropout import Dropouts as Dropouts
from suture.adapters.lora import LoRA as LoRA
from suture.adapters.lora import LoRAs as LoRAs
