"""Model surgery for PyTorch: read a network as a tree, cut it, stitch in something new, and use it as before."""

from suture.layers.calls import open_block as context
from suture.layers.context import Context
from suture.layers.edit import Edit, editing
from suture.layers.recording import EditError
from suture.surgery.adapter import Adapter

__version__ = "0.1.0"

__all__ = ["Adapter", "Context", "Edit", "EditError", "__version__", "context", "editing"]
