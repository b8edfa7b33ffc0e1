"""The graph: what leads from named inputs to outputs, as a layer."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suture.graph.binding import Parameters
from suture.graph.calls import Call, Item
from suture.graph.contents import Contents, GraphError
from suture.graph.emitting import Program
from suture.graph.forms import Forms
from suture.graph.functional_cache import CachedGraph
from suture.graph.handles import Handle
from suture.graph.intercepted import Intercepted
from suture.graph.naming import Edits, Names, own, own_tensor, put, tell_composites, tensor_name, tensors_in
from suture.graph.recording import Recorded
from suture.graph.records import Rows, Shared
from suture.graph.rewiring import Again
from suture.graph.running import Running
from suture.graph.values import Value, values_in
from suture.layers.calls import enter_call, open_block, set_pending
from suture.layers.context import Context, Entries, Read
from suture.layers.frames import call_module, frame_for
from suture.layers.intercepting import interceptor
from suture.layers.location import is_located
from suture.layers.node import children_of
from suture.layers.symbolic import symbolic_in

_ABSENT = object()
_ATTRIBUTES = ("compiled", "contents", "init_cache", "reads", "source")
"""What a graph has under these names, also where it has a layer of the name."""


def make_program(graph: Graph) -> None:
    """Makes the function that runs a graph; compiled code does not look at how."""
    graph.make_program()


# What `torch.compiler.assume_constant_result` does, which would import the compiler with this file.
vars(make_program)["_dynamo_marked_constant"] = True


class Graph(Forms, Recorded):
    """What leads from `inputs` to `outputs`.

    Args:
        inputs: The values that are given: `Input`s, or values on the way, which cuts out a part. One, several, or a
            dictionary, also nested; its keys, or the names of the inputs, are the parameters. Optional inputs that are
            not declared can still be given by keyword.
        outputs: What is returned: values in any structure of tuples, lists and dictionaries.
        source: The tree or graph whose paths the layers keep. Other layers go by the names of their classes.

    It is called with the inputs by position, by keyword, or as the structure that `inputs` is. It is a layer: it owns
    the layers that it calls, shares their weights with where they came from, and can stand in a tree or another graph.

    Raises:
        GraphError: an output hangs from an input that is not declared, or a required input reaches no output.

    Example:
        >>> import torch
        >>> from suture import layers as sl
        >>> from suture.graph import Input
        >>> x = Input("x", shape=(None, 4))
        >>> graph = Graph(inputs=x, outputs=torch.relu(sl.Linear(4, 2)(x)))
        >>> graph(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
        >>> print(graph.code)
        def forward(x):
            Linear_2 = Linear(x)
            relu = torch.relu(Linear_2)
            return relu
    """

    def __init__(self, inputs: Any, outputs: Any, *, source: nn.Module | None = None) -> None:
        super().__init__()
        if not values_in(outputs):
            raise GraphError(f"A graph returns symbolic values. Received as outputs: {outputs!r:.80}.")
        self._edits = Edits()
        self._program: Program | None = None
        self._tensor_paths: dict[int, str] = {}
        self._follow(inputs, outputs, source.root if isinstance(source, Graph) else source)
        self.reads: dict[str, Read] = {}
        """Which inputs are entries of the context."""
        self.init_cache: Callable[[int, int], Any] | None = None
        own(self, self._names.layers(), self._edits)
        tell_composites(self, self._names.composites())
        self._own_tensors(source.constants if isinstance(source, Graph) else {})
        if source is not None:
            self.training = source.training

    def _follow(self, inputs: Any, outputs: Any, source: nn.Module | None) -> None:
        """Finds what leads from the inputs to the outputs."""
        self._takes = Parameters(inputs)
        self._outputs = outputs
        self.contents = Contents(self.flat_inputs.values(), outputs)
        """The calls and scopes that it is made of."""
        self._takes.add(self.contents.left_out)
        self._names = Names(self._items_called(), source)
        self.source = (source,)
        """The tree or graph whose paths it keeps, in a tuple: it is no part of this one."""

    # What it is made of

    @property
    def inputs(self) -> Any:
        """The inputs, in the structure in which they were declared."""
        return self._takes.structure

    @property
    def outputs(self) -> Any:
        """The outputs, as symbolic values in their structure."""
        return self._outputs

    @property
    def flat_inputs(self) -> dict[str, Value]:
        """The value of every single input, by its name."""
        return self._takes.flat

    @property
    def takes(self) -> Parameters:
        """Its parameters: how what is given is matched to the inputs."""
        return self._takes

    @property
    def calls(self) -> list[Call]:
        """The calls of layers and functions, in order."""
        return list(self.contents.needed)

    @property
    def layers(self) -> dict[str, nn.Module]:
        """The layers that are steps of the graph, by path, as they stand there now."""
        return {name: self.get_submodule(name) for name in self._names.layers()}

    @property
    def paths(self) -> list[str]:
        """The paths of all that is called, composites included."""
        return [self.name_of(item) for item in self._items_called()]

    @property
    def root(self) -> nn.Module:
        """Whose paths the paths of its layers are."""
        return self if self.source[0] is None else self.source[0]

    def like(self, outputs: Any, inputs: Any = None) -> Graph:
        """A graph with other outputs, made by a replay, and the inputs of this one or others in their structure."""
        other = Graph(inputs=self.inputs if inputs is None else inputs, outputs=outputs, source=self)
        other.reads, other.init_cache = dict(self.reads), self.init_cache
        other.training = self.training
        return other

    def bind_symbolic(self, inputs: Any) -> list[Any]:
        """A symbolic value for each single input, from a structure like `inputs` or a dictionary of more than these."""
        if isinstance(inputs, Mapping):
            given = cast("Mapping[str, Any]", inputs)
            return self._takes.bind((), {name: value for name, value in given.items() if name in self._takes.by_name})
        return self._takes.bind((inputs,), {})

    def name_of(self, item: Item) -> str:
        """The path, in this graph, of the layer that is called."""
        return self._names.of(item)

    def __getitem__(self, path: str) -> Handle:
        """The layer at a path, or at any end of a path that is unique: how it is called here, and what it gives.

        Raises `KeyError` for no such layer, or several.
        """
        by_path: dict[str, list[Item]] = {}
        for item in self._items_called():
            by_path.setdefault(self.name_of(item), []).append(item)
        found = [each for each in by_path if each == path] or [
            each for each in by_path if f".{each}".endswith(f".{path}")
        ]
        if found and len(found) > 1:
            raise KeyError(f"Several layers of this graph end in {path!r}: {', '.join(found[:4])}. Give more of it.")
        if not found:
            paths = list(filter(None, by_path))
            near = difflib.get_close_matches(path, paths) or paths[:8]
            raise KeyError(f"This graph calls no layer {path!r}. Near to it: {', '.join(near)}.")
        items = by_path[found[0]]
        return Handle(found[0], cast("nn.Module", items[0].target), tuple(items))

    @property
    def code(self) -> str:
        """The graph as Python code: what runs when it is called."""
        return self.program.code

    @property
    def program(self) -> Program:
        """The function that runs it, made when it is first wanted."""
        make_program(self)
        return cast("Program", self._program)

    def make_program(self) -> None:
        """Makes the function that runs the graph, if that was not done."""
        if self._program is None:
            self._program = Program(self)
            self._edits.tell(self._program.put)

    def register_module(self, name: str, module: nn.Module | None) -> None:
        """Puts a layer at a path of one name, where the graph calls it from then on."""
        put(self, name, module)
        self._edits.made(name, module)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) and name in children_of(self):
            self.register_module(name, value)
        elif name in _ATTRIBUTES:
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """The layer at a path, also where the graph has an attribute of its name. Raises `AttributeError`."""
        found: nn.Module | None = self
        for name in target.split(".") if target else ():
            found = None if found is None else children_of(found).get(name)
        return super().get_submodule(target) if found is None else found

    # Calling

    def __call__(self, *args: Any, context: Context | Entries | None = None, **entries: Any) -> Any:
        """Runs the graph; entries of the tree that it came from go by `context`, by keyword or by `with` blocks."""
        if (frame := frame_for(self)) is not None:
            return frame.call(args, self._entries(context, entries))
        value = symbolic_in((*args, *entries.values(), context))
        if value is not None:
            return value.call(self, args, self._entries(context, entries))
        given = self._entries(context, entries)
        if (functions := interceptor()) is not None:
            return functions.hand_on(self, args, given, lambda args, given: call_module(self, *args, **given), self)
        return call_module(self, *args, **given)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program, bound = self.program, self._takes.bind(args, kwargs)
        if (functions := interceptor()) is not None:
            values = dict(zip(self.flat_inputs.values(), bound, strict=True))
            return Running(self, values, Intercepted(self, functions)).outputs()
        # What is compiled around the graph takes it in.
        function = program.function if self.compiled is None or torch.compiler.is_compiling() else self.compiled
        try:
            return function(*bound)
        except Exception as error:
            where = program.locate(error.__traceback__)
            if where is not None and not is_located(error):
                error.add_note(f"In layer {where}, in a graph.")
            raise

    def inside(self, args: tuple[Any, ...], kwargs: dict[str, Any], root: nn.Module, path: str) -> Any:
        given = dict(zip(self.flat_inputs.values(), self._takes.bind(args, kwargs), strict=True))
        return Running(self, given, Again(self, root, path)).outputs()

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters, for whoever asks how it is called."""
        return self._takes.signature

    def with_cache(
        self,
        init: Callable[[int, int], Any],
        inputs: str = "cache",
        outputs: int | str = -1,
        update_index: str | None = None,
    ) -> CachedGraph:
        """The graph as a backbone whose cache is one object: an input and an output of it are its state.

        Args:
            init: `init(batch, length)` makes the state of an empty cache, in the structure of the input.
            inputs: The name of the input that takes the cache.
            outputs: Which of the outputs, by position or key, is the next cache. The rest is what the backbone gives.
            update_index: The name of an input, a whole number (), that is told how many tokens are in the cache.

        Raises `ValueError` for an input that is not there.
        """
        return CachedGraph(self, init, inputs, outputs, update_index)

    # Contexts

    @property
    def context_inputs(self) -> tuple[Read, ...]:
        """The context entries that are inputs of the graph."""
        return tuple(self.reads.values())

    def context(self, *scopes: Entries, **named: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Gives entries to every call of the graph for a block, as `context` of a tree does."""
        return open_block(self, *scopes, **named)

    def set_context(self, scope: str, entries: Mapping[str, Any]) -> None:
        """Gives entries to the next call of the graph."""
        set_pending(self, {scope: entries})

    def _entries(self, context: Context | Entries | None, entries: dict[str, Any]) -> dict[str, Any]:
        """What is given by name: as the parameters that they are, or as entries of a context."""
        own_names = {name: value for name, value in entries.items() if name in self._takes.by_name}
        others = {name: value for name, value in entries.items() if name not in own_names}
        keys = {read.key for read in self.reads.values()}
        if unknown := [name for name in others if name not in keys]:
            raise TypeError(f"The graph has no input {unknown[0]!r}. It takes: {', '.join(self._takes.by_name)}.")
        running = enter_call(self, context, others)
        read = {name: running.read(Read(read.scope, read.key, _ABSENT)) for name, read in self.reads.items()}
        return {name: value for name, value in read.items() if value is not _ABSENT} | own_names

    # Making it

    def _items_called(self) -> list[Item]:
        """The calls and scopes, in the order of recording, that are of layers."""
        found: dict[Item, None] = {}
        for call in self.contents.replayed:
            found.update(dict.fromkeys((*call.around, call)))
        found.update(dict.fromkeys(self.contents.whole))
        return sorted((item for item in found if item.is_layer), key=lambda item: item.number)

    def _own_tensors(self, constants: Mapping[str, Tensor]) -> None:
        """Owns the tensors that functions are called with: a composite's own, and those of code around.

        Those of `constants` keep their paths.
        """
        known = {id(tensor): path for path, tensor in constants.items()}
        unused = (name for number in itertools.count() if (name := f"constant_{number}") not in constants)
        for call in self.contents.needed:
            for tensor in tensors_in(call.arguments):
                if id(tensor) not in self._tensor_paths:
                    path = known.get(id(tensor)) or tensor_name(tensor, call, self._names) or next(unused)
                    self._tensor_paths[id(tensor)] = path
                    own_tensor(self, path, tensor, self._edits)

    @property
    def constants(self) -> dict[str, Tensor]:
        """The tensors that functions are called with, by path, as they are now."""
        state = dict((*self.named_parameters(remove_duplicate=False), *self.named_buffers(remove_duplicate=False)))
        return {path: state[path] for path in self._tensor_paths.values()}

    def path_of(self, tensor: Tensor) -> str | None:
        """The path of a tensor that functions are called with; None for any other."""
        return self._tensor_paths.get(id(tensor))

    def present(self, structure: Any) -> Any:
        """Arguments with the tensors of the graph as they are now, where they were moved or loaded since."""
        if not self._tensor_paths:
            return structure
        return pytree.tree_map_only(Tensor, self._present, structure)

    def _present(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._tensor_paths:
            return tensor
        holder, name = self.holder_of(tensor)
        return getattr(holder, name)

    def holder_of(self, tensor: Tensor) -> tuple[nn.Module, str]:
        """The module that owns a tensor of the graph, and its name there."""
        around, _, name = self._tensor_paths[id(tensor)].rpartition(".")
        return self.get_submodule(around), name

    # Copying

    def __getstate__(self) -> dict[str, Any]:
        made_anew = ("_takes", "_outputs", "contents", "_names", "source", "compiled", "init_cache")
        state = {name: value for name, value in vars(self).items() if name not in made_anew}
        tensors = {id(tensor): tensor for call in self.contents.needed for tensor in tensors_in(call.arguments)}
        return state | {
            "recorded": Rows((self.inputs, self.outputs)),
            "shared": Shared((self.source[0], self.init_cache)),
            "_program": None,
            "_tensor_paths": [(tensors[key], path) for key, path in self._tensor_paths.items()],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows, shared = state.pop("recorded"), state.pop("shared")
        super().__setstate__(state)
        source, self.init_cache = shared.what
        self._tensor_paths = {id(tensor): path for tensor, path in state["_tensor_paths"]}
        inputs, outputs = rows.restored()
        self._follow(inputs, outputs, source)

    def extra_repr(self) -> str:
        return f"{', '.join(self._takes.by_name)}; {len(self.contents.needed)} calls"

    def __repr__(self) -> str:
        from suture.layers.printing import tree  # printing is not needed to run a graph

        return tree(self)
