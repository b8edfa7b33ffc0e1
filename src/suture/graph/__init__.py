"""What a tree means: a graph of layer calls with explicit inputs and outputs, which can be replayed and rewired."""

from __future__ import annotations

from suture.graph.cloning import clone
from suture.graph.contents import GraphError
from suture.graph.drawing import plot
from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.rewiring import replay, rewire
from suture.graph.tracing import trace

__all__ = ["Graph", "GraphError", "Input", "clone", "plot", "replay", "rewire", "trace"]
