"""Under which names a graph owns the layers and tensors that it uses: those that they had in their tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suture.graph.calls import Call, Item
from suture.layers.mount import Holder
from suture.layers.node import children_of


class Edits:
    """Tells what was made of a graph that another layer stands at one of its paths."""

    def __init__(self) -> None:
        self._heard: list[Callable[[str, nn.Module], None]] = []

    def tell(self, heard: Callable[[str, nn.Module], None]) -> None:
        """Has `heard` called with the path and the layer, after every edit."""
        self._heard.append(heard)

    def __getstate__(self) -> dict[str, Any]:
        # Who hears of one graph does not of its copy.
        return {"_heard": []}

    def made(self, path: str, layer: nn.Module | None) -> None:
        """Says that `layer` stands at `path` now."""
        if layer is not None:
            for heard in self._heard:
                heard(path, layer)


def put(holder: nn.Module, name: str, layer: nn.Module | None) -> None:
    """Puts a layer in a holder, also where that has an attribute of this name: a tree may name its layers so."""
    vars(holder)["_modules"][name] = layer


class Namespace(Holder):
    """Holds the layers of a graph, at the paths that they had. It is not called."""

    def __init__(self, path: str, edits: Edits) -> None:
        super().__init__(path)
        self.__dict__["_edits"] = edits
        self.composite = ""
        """The class of the composite whose layers these are."""

    def extra_repr(self) -> str:
        return self.composite

    def register_module(self, name: str, module: nn.Module | None) -> None:
        """Puts a layer here, and tells the graph."""
        put(self, name, module)
        edits: Edits = self.__dict__["_edits"]
        edits.made(f"{self.path}.{name}", module)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) and name in children_of(self):
            self.register_module(name, value)
        elif name in vars(self):
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)


class Names:
    """The name of every layer that a graph calls, given in the order of the calls.

    `source` is the tree or graph whose own paths are kept as they are; others have their class name in front.
    """

    def __init__(self, items: Iterable[Item], source: nn.Module | None) -> None:
        self._roots: dict[int, str] = {} if source is None else {id(source): ""}
        self._taken: dict[str, nn.Module] = {}
        self._of: dict[Item, str] = {}
        self._alone: dict[int, str] = {}
        for item in items:
            if item.is_layer:
                self._of[item] = self._name(item)

    def of(self, item: Item) -> str:
        """The name of the layer that is called."""
        return self._of[item]

    def composites(self) -> dict[str, str]:
        """The classes of the composites that are called, by their names."""
        return {name: item.name for item, name in self._of.items() if not isinstance(item, Call)}

    def layers(self) -> dict[str, nn.Module]:
        """Every layer that is called as one step, by its name."""
        return {name: cast("nn.Module", item.target) for item, name in self._of.items() if isinstance(item, Call)}

    def _name(self, item: Item) -> str:
        layer = cast("nn.Module", item.target)
        if item.root is None:
            if id(layer) not in self._alone:
                self._alone[id(layer)] = self._give(type(layer).__name__, layer)
            return self._alone[id(layer)]
        root = self._roots.get(id(item.root))
        if root is None:
            root = self._roots[id(item.root)] = self._give(type(item.root).__name__, item.root)
        path = ".".join(filter(None, [root, item.path]))
        return self._give(path, layer) if path else path

    def _give(self, name: str, layer: nn.Module) -> str:
        """`name`, or with a number where another layer has it."""
        number, given = 1, name
        while self._taken.setdefault(given, layer) is not layer:
            number += 1
            given = f"{name}_{number}"
        return given


def own(root: nn.Module, layers: dict[str, nn.Module], edits: Edits) -> None:
    """Puts layers at their paths below `root`, in namespaces."""
    for path, layer in layers.items():
        around, _, name = path.rpartition(".")
        _namespace(root, around, edits).register_module(name, layer)


def tell_composites(root: nn.Module, classes: dict[str, str]) -> None:
    """Has the namespaces below `root` say whose layers they hold."""
    for name, module in cast("Iterable[tuple[str, nn.Module]]", root.named_modules()):
        if isinstance(module, Namespace):
            module.composite = classes.get(name, "")


def own_tensor(root: nn.Module, path: str, tensor: Tensor, edits: Edits) -> None:
    """Puts a tensor at a path below `root`."""
    around, _, name = path.rpartition(".")
    holder = _namespace(root, around, edits)
    if isinstance(tensor, nn.Parameter):
        holder.register_parameter(name, tensor)
    else:
        holder.register_buffer(name, tensor)


def tensors_in(structure: Any) -> list[Tensor]:
    """The tensors among arguments; symbolic values are none."""
    return [leaf for leaf in pytree.tree_leaves(structure) if isinstance(leaf, Tensor)]


def _namespace(root: nn.Module, path: str, edits: Edits) -> nn.Module:
    namespace = root
    parts = path.split(".") if path else []
    for number, part in enumerate(parts, start=1):
        child = children_of(namespace).get(part)
        if child is None:
            child = Namespace(".".join(parts[:number]), edits)
            namespace.register_module(part, child)
        namespace = child
    return namespace


def tensor_name(tensor: Tensor, call: Call, names: Names) -> str | None:
    """Where a tensor that is computed with stands: among the parameters of a composite around, if it is one's."""
    for scope in reversed(call.around):
        layer: Any = scope.target
        for name, own_tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
            if own_tensor is tensor:
                return ".".join(filter(None, [names.of(scope), name]))
    return None
