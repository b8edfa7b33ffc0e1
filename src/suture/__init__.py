"""Model surgery for PyTorch: read a network as a tree, cut it, stitch in something new, and use it as before."""

from __future__ import annotations

from suture.adapters.control_vector import ControlVector
from suture.generation.causal_lm import CausalLM
from suture.graph.capturing import Captured, capture, patch
from suture.graph.cloning import clone
from suture.graph.contents import GraphError
from suture.graph.drawing import plot
from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.rewiring import replay, rewire
from suture.graph.tracing import trace
from suture.layers.calls import open_block as context
from suture.layers.check import check
from suture.layers.context import Context
from suture.layers.description import register
from suture.layers.diff import diff
from suture.layers.edit import Edit, editing
from suture.layers.functions import register_function
from suture.layers.intercepting import intercept
from suture.layers.recording import EditError
from suture.surgery.adapter import Adapter
from suture.surgery.group import AdapterGroup
from suture.surgery.merging import MergeableAdapter, MergeableGroup
from suture.surgery.recipe import Recipe, RecipeError, recipe
from suture.surgery.selection import Selection, select
from suture.surgery.survey import SelectionError
from suture.weights.model_folder import load, save

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "AdapterGroup",
    "Captured",
    "CausalLM",
    "Context",
    "ControlVector",
    "Edit",
    "EditError",
    "Graph",
    "GraphError",
    "Input",
    "MergeableAdapter",
    "MergeableGroup",
    "Recipe",
    "RecipeError",
    "Selection",
    "SelectionError",
    "__version__",
    "capture",
    "check",
    "clone",
    "context",
    "diff",
    "editing",
    "intercept",
    "load",
    "patch",
    "plot",
    "recipe",
    "register",
    "register_function",
    "replay",
    "rewire",
    "save",
    "select",
    "trace",
]
