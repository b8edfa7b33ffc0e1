"""Pictures of graphs: a description of what is seen (`picture`), and the formats that it is written in."""

from __future__ import annotations

from suture.graph.drawing.plotting import Plot, plot

__all__ = ["Plot", "plot"]
