"""Model surgery for PyTorch: read a network as a tree, cut it, stitch in something new, and use it as before."""

__version__ = "0.1.0"
