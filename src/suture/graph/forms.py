"""The forms that a graph takes beside its own: compiled, torch.fx, an exported program, ONNX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from torch import fx
from torch.export import ExportedProgram

from suture.graph.compiling import compiled
from suture.graph.exporting import export, write_onnx
from suture.graph.fx import to_fx
from suture.layers.symbolic import TakesContext

if TYPE_CHECKING:
    from suture.graph.graph import Graph


class Forms(TakesContext):
    """What a graph is turned into; all of it is made from its list of calls."""

    compiled: Callable[..., Any] | None = None
    """What runs in the place of the emitted function since `compile`."""

    @property
    def _graph(self) -> Graph:
        return cast("Graph", self)

    def to_fx(self) -> fx.GraphModule:
        """The graph as torch's own, for passes and whatever else takes one; it shares the layers.

        It is called like the graph, contexts aside, with its required inputs first. The keys of its state are the same.

        Example:
            >>> from suture import layers as sl
            >>> from suture.graph import Input, trace
            >>> module = trace(sl.Chain(up=sl.Linear(4, 2), act=sl.ReLU()), Input("x", shape=(None, 4))).to_fx()
            >>> print(module.code.strip())
            def forward(self, x):
                up = self.up(x);  x = None
                act = self.act(up);  up = None
                return act
        """
        return to_fx(self._graph)

    def compile(self, **options: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Runs compiled from now on, as torch's `compile` has it for any module; gives the graph itself.

        There is one compiled function and no graph break. It is compiled anew where an edit of the layers asks for it,
        and not for other sizes of open dimensions, other values, or adapters of equal structure. What is matched to the
        inputs, contexts included, is matched before.

        Args:
            options: Those of `torch.compile`, such as `backend` and `mode`; `fullgraph` is True unless said.

        Example:
            >>> import torch
            >>> from suture import layers as sl
            >>> from suture.graph import Input, trace
            >>> graph = trace(sl.Linear(4, 2), Input("x", shape=(None, 4))).compile(backend="eager")
            >>> graph(torch.zeros(3, 4)).shape, list(graph.state_dict())
            (torch.Size([3, 2]), ['Linear.weight', 'Linear.bias'])
        """
        self.compiled = compiled(self._graph, options)
        return self

    def export(
        self,
        inputs: Collection[str] = (),
        *,
        dynamic: Mapping[str, Any] | None = None,
        examples: Mapping[str, Any] | None = None,
    ) -> ExportedProgram:
        """A program of torch.export, to be saved with `torch.export.save` and run where there is no Suture.

        Args:
            inputs: The optional inputs that are a part of it; without the others it is as if they were left out.
            dynamic: For inputs by name, which dimensions are open, as torch.export takes it. By default those that the
                input leaves open; equal names are equal sizes.
            examples: For inputs by name, something like what they will be, needed where an input says no shape.

        Returns:
            It is called with the inputs in their order, and with entries of the context by keyword.

        Raises:
            ValueError: There is no such input, or one has neither a shape nor an example.

        Example:
            >>> import torch
            >>> from suture import layers as sl
            >>> from suture.graph import Input, trace
            >>> program = trace(sl.Linear(4, 2), Input("x", shape=(None, 4))).export()
            >>> program.module()(torch.zeros(3, 4)).shape
            torch.Size([3, 2])
        """
        return export(self._graph, inputs, dynamic, examples)

    def to_onnx(
        self,
        path: Path | str,
        inputs: Collection[str] = (),
        *,
        dynamic: Mapping[str, Any] | None = None,
        examples: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Writes the graph as ONNX, with torch's own exporter. It needs `pip install suture[onnx]`.

        Args:
            path: Where the file is written.
            inputs: As for `export`, as are `dynamic` and `examples`.
            dynamic: Which dimensions are open.
            examples: Something like what inputs will be.
            options: Further ones of `torch.onnx.export`, such as `opset_version`.

        Raises:
            ImportError: onnx and onnxscript are not installed.
            ValueError: As for `export`.
        """
        write_onnx(export(self._graph, inputs, dynamic, examples), path, options)

    def save(self, path: Path | str) -> None:
        """Writes the graph to one file, as data: its structure as JSON, its weights as safetensors; no code.

        Layers are kept as the names of their registered classes with what they were made with, functions by name. Of
        composites, whose layers are calls of the graph, the class is kept.

        Raises:
            GraphError: A layer, a function or a constant cannot be named; the message says where, and what to do.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from suture import layers as sl
            >>> from suture.graph import Graph, Input, trace
            >>> graph = trace(sl.Chain(up=sl.Linear(4, 2), act=sl.ReLU()), Input("x", shape=(None, 4)))
            >>> x = torch.randn(3, 4)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     graph.save(Path(folder, "some.safetensors"))
            ...     torch.equal(Graph.load(Path(folder, "some.safetensors"))(x), graph(x))
            True
        """
        from suture.graph.saving import save  # what saves a graph needs the class

        save(self._graph, path)

    @staticmethod
    def load(path: Path | str) -> Graph:
        """Reads what `save` wrote: a graph that computes the same bits, and is drawn, rewired and saved the same.

        Raises:
            MissingFileError: There is no such file.
            CheckpointError: It is not a graph, was cut short, is of another version, or names what is not registered.
        """
        from suture.graph.reading import load

        return load(path)
