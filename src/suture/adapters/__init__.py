"""Adapters that ship with the library. Each is written on the public interface alone, as yours can be."""

from __future__ import annotations

from suture.adapters.control_vector import ControlVector as ControlVector
from suture.adapters.control_vector import Steer as Steer
from suture.adapters.control_vector import Steered as Steered
from suture.adapters.control_vector import Steering as Steering
