"""From a graph to a picture."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn

from suture.graph.calls import Call, Item, Scope
from suture.graph.drawing.dimensions import Dimensions
from suture.graph.drawing.flow import Flow, Source, is_cache, outputs_of, parts_of
from suture.graph.drawing.picture import Box, Edge, Picture, Tag
from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.values import Value, values_in
from suture.layers.cache import KVCache
from suture.layers.label import label

_RETURNED = "output "
_SIGNS = {
    "add": "+",
    "iadd": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "matmul": "@",
    "neg": "-",
    "eq": "==",
    "lt": "<",
    "gt": ">",
    "getitem": "[ ]",
}


def sketch(graph: Graph, cache: tuple[str, str | int] | None = None) -> Picture:
    """A picture of a graph; `cache` says which input and which output are a cache, where it has one as tensors.

    >>> from suture import layers as sl
    >>> from suture.graph.tracing import trace
    >>> graph = trace(sl.Residual(norm=sl.LayerNorm(4), up=sl.Linear(4, 4)), Input("x", shape=(None, 4)))
    >>> [(edge.source.name, edge.target.name) for edge in sketch(graph).edges]
    [('x', 'norm'), ('norm', 'up'), ('x', '+'), ('up', '+'), ('+', 'output')]
    """
    return _Sketch(graph, cache).picture


class _Sketch:
    def __init__(self, graph: Graph, cache: tuple[str, str | int] | None) -> None:
        self.graph = graph
        self.flow = Flow(graph)
        self.dimensions = Dimensions(graph)
        self.root = Box(key="", name="", caption="", role="composite")
        self.boxes: dict[Source | Scope, Box] = {}
        self.seen: dict[str, int] = {}
        self.edges: dict[tuple[Box, Box], dict[str, int]] = {}
        self.tags: dict[Source, list[tuple[Box, str, str]]] = {}
        """By what makes them, what takes them: the box, by which keyword, which part."""
        self.shared: dict[Box, int] = {}
        """How many boxes stand first in a composite since they are for all that is in it."""
        self.stateful: set[Box] = set()
        """The layers that keep something in a cache."""
        for name in self.flow.inputs:
            self._input(name)
        for call in self.flow.calls:
            self._call(call)
        for call in self.flow.calls:
            for keyword, value in self.flow.taken(call):
                self._connect(self.boxes[call], keyword, value, self.flow.home[call])
        for name, structure in outputs_of(graph).items():
            self._output(name, structure)
        self._caches()
        if cache is not None:
            self._mark_caches(*cache)
        self._name_tags()
        title = type(graph.root).__name__
        edges = [Edge(*ends, _joined(labels)) for ends, labels in self.edges.items()]
        self.picture = Picture(title, self.root, edges)

    def _input(self, name: str) -> None:
        structure = self.flow.inputs[name]
        values = values_in(structure)
        optional = all(isinstance(value, Input) and value.optional for value in values)
        told = self._told(structure)
        box = Box(key=f"input {name}: {told}", name=name, caption=told, role="input", optional=optional)
        box.cache = is_cache(self.graph, name)
        self._add(box, None)
        self.boxes[name] = box

    def _call(self, call: Call) -> None:
        home = self.flow.home[call]
        box = self._box(call, "layer" if call.is_layer else "function", home)
        if home is not call.parent and box.parent is not None:
            # Before what takes it, though it was recorded inside of the first of those.
            box.parent.inside.insert(self.shared.get(box.parent, 0), box.parent.inside.pop())
            self.shared[box.parent] = self.shared.get(box.parent, 0) + 1

    def _output(self, name: str, structure: Any) -> None:
        box = Box(key=f"{_RETURNED}{name}", name=name, caption=self._told(structure), role="output")
        self._add(box, None)
        values = dict(parts_of(structure))
        # All parts in one way.
        inside = any(self.flow.by_context(value, None) for value in values.values())
        for part, value in values.items():
            self._connect(box, "", value, None, part, tagged=inside)

    def _connect(
        self, box: Box, keyword: str, value: Value, at: Scope | None, place: str = "", tagged: bool = False
    ) -> None:
        source, part = self.flow.source(value)
        if tagged or self.flow.by_context(value, at):
            takes = (box, keyword, place or part)
            if takes not in self.tags.setdefault(source, []):
                self.tags[source].append(takes)
            return
        labels = self.edges.setdefault((self.boxes[source], box), {})
        told = self.dimensions.told(value)
        labels[told] = labels.get(told, 0) + 1

    def _box(self, item: Item, role: Any, home: Scope | None) -> Box:
        layer, path = item.target, self.graph.name_of(item) if item.is_layer else ""
        parent = self.root if home is None else self._scope(home)
        if isinstance(layer, nn.Module):
            name, caption = path.rpartition(".")[2], label(layer)
            name = name or type(layer).__name__
            identity = f"{path}:{caption}"
        else:
            name, caption = _SIGNS.get(item.name, item.name), ""
            identity = f"{parent.key}/{item.name}"
        number = self.seen[identity] = self.seen.get(identity, 0) + 1
        box = Box(key=f"{identity}#{number}", name=name, caption=caption, role=role, path=path)
        self._add(box, parent)
        box.weights = role == "layer" and isinstance(layer, nn.Module) and next(layer.parameters(), None) is not None
        if isinstance(layer, KVCache):
            self.stateful.add(box)
        if isinstance(item, Call | Scope):
            self.boxes[item] = box
        return box

    def _scope(self, scope: Scope) -> Box:
        return self.boxes[scope] if scope in self.boxes else self._box(scope, "composite", scope.parent)

    def _add(self, box: Box, parent: Box | None) -> None:
        box.parent = self.root if parent is None else parent
        box.parent.inside.append(box)

    def _told(self, structure: Any) -> str:
        if isinstance(structure, Value):
            return self.dimensions.told(structure)
        told = dict.fromkeys(self.dimensions.told(value) for value in values_in(structure))
        shapes = " and ".join(filter(None, list(told)[:2])) + (" ..." if len(told) > 2 else "")
        return f"{len(values_in(structure))} values{f' of {shapes}' if shapes else ''}"

    def _caches(self) -> None:
        """What a cache has become is an output too, though it is advanced in place and not returned."""
        for name in [name for name in self.flow.inputs if is_cache(self.graph, name)]:
            self.boxes[name].caption = "what earlier calls left"
            if name in self.tags:
                box = Box(key=f"cache {name}", name=name, caption="advanced in place", role="output", cache=True)
                self._add(box, None)
                self.tags[name].append((box, "", ""))

    def _mark_caches(self, taken: str, given: str | int) -> None:
        """Marks a cache that is tensors, which are taken and given."""
        outputs = [box for box in self.root.inside if box.key.startswith(_RETURNED)]
        self.boxes[taken].cache = True
        for number, box in enumerate(outputs):
            box.cache = box.name == given or (isinstance(given, int) and number == given % len(outputs))

    def _name_tags(self) -> None:
        taken = set(self.flow.inputs)
        for source, takers in self.tags.items():
            if any(not box.key.startswith(_RETURNED) for box, _, _ in takers):
                self._tag(source, [each for each in takers if not each[0].key.startswith(_RETURNED)], taken)
        for source, takers in self.tags.items():
            for box, _, part in takers:
                if box.key.startswith(_RETURNED):
                    self._return(source, box, part, taken)

    def _tag(self, source: Source, takers: list[tuple[Box, str, str]], taken: set[str]) -> None:
        """A tag for what composites inside read from the context."""
        origin = self.boxes[source]
        name = source
        if not isinstance(name, str):
            keywords = {keyword for _, keyword, _ in takers if keyword}
            candidates = [each for keyword in keywords for each in (keyword, f"{origin.name}.{keyword}")]
            # Of a layer that is made of a function, that says more than the name of its class.
            own_name = origin.said if origin.said.isidentifier() else origin.name
            candidates = [*(candidates if len(keywords) == 1 else ()), own_name]
            name = _free(candidates, taken)
        origin.gives.append(Tag(name))
        for box, _, part in takers:
            box.takes.append(Tag(name, part, updated=origin.cache and box in self.stateful))

    def _return(self, source: Source, output: Box, part: str, taken: set[str]) -> None:
        """A tag for what is returned straight from inside of a composite: that of the output."""
        if not output.takes:
            output.takes.append(Tag(_free([output.name, f"next {output.name}"], taken)))
        self.boxes[source].gives.append(Tag(output.takes[0].name, part))


def _free(candidates: list[str], taken: set[str]) -> str:
    """The first of the names that is not taken, or the last one with a number."""
    numbered = (f"{candidates[-1]} {number}" for number in itertools.count(2))
    name = next(name for name in itertools.chain(candidates, numbered) if name not in taken)
    taken.add(name)
    return name


def _joined(labels: dict[str, int]) -> str:
    return "\n".join(f"{number} of {told}" if number > 1 else told for told, number in labels.items())
