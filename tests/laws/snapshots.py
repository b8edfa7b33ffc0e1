"""Everything that can be seen of a tree, and what must hold of any tree at any time."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.node import node_of
from suture.layers.printing import tree as printed
from tests.laws.trees import WIDTH, evaluate

X = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)
GIVEN = torch.full((2, WIDTH), 0.25)


@dataclass
class Snapshot:
    """A tree, object by object. Two are compared by `differences`."""

    facts: dict[str, Any]
    kept: list[object]
    """The objects whose identities are among the facts, so that no other takes the place of one."""


def snapshot(model: sl.Composite) -> Snapshot:
    places = list(model.places())
    modules = list(model.named_modules(remove_duplicate=False))
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    facts = {
        "wiring": [(place.path, place.depth, id(place.layer), id(place.parent)) for place in places],
        "names in the wiring": [(place.slot.name, id(place.slot.home)) for place in places],
        "modules": [(name, id(module), module.training) for name, module in modules],
        "parents": [id(module.parent) for _, module in modules if isinstance(module, sl.Composite)],
        "paths": [module.path for _, module in modules if isinstance(module, sl.Composite)],
        "names that were given": [
            list(module.node.children) for _, module in modules if isinstance(module, sl.Composite)
        ],
        "hooks": [len(module._forward_hooks) for _, module in modules],  # pyright: ignore[reportPrivateUsage]
        "tensors": [
            (name, id(tensor), tensor.data_ptr(), tensor.dtype, tensor.requires_grad) for name, tensor in tensors
        ],
        "keys": list(model.state_dict()),
        "printed tree": printed(model),
        "context": repr(model.context_inputs),
        "output": outcome(model),
    }
    return Snapshot(facts, [*(module for _, module in modules), *(tensor for _, tensor in tensors), *places])


def differences(one: Snapshot, other: Snapshot) -> dict[str, tuple[Any, Any]]:
    return {key: (fact, other.facts[key]) for key, fact in one.facts.items() if fact != other.facts[key]}


def without_tensors(one: Snapshot) -> Snapshot:
    """What of a snapshot stays when tensors are cast or trained: all that is structure, by identity."""
    kept = {"wiring", "names in the wiring", "parents", "paths", "names that were given", "hooks", "keys", "context"}
    facts = {key: fact for key, fact in one.facts.items() if key in kept}
    facts["modules"] = [(name, module) for name, module, _ in one.facts["modules"]]
    return Snapshot(facts, one.kept)


def state(model: sl.Composite) -> dict[str, Any]:
    """The values of every tensor, bit for bit, and the modes."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {
        "tensors": {name: (t.dtype, t.requires_grad, t.detach().double().tolist()) for name, t in tensors},
        "modes": {name: module.training for name, module in model.named_modules(remove_duplicate=False)},
    }


def appearance(model: sl.Composite) -> dict[str, Any]:
    """What of a snapshot is equal for a copy."""
    facts = snapshot(model).facts
    return {key: facts[key] for key in ("paths", "names that were given", "keys", "printed tree", "context", "output")}


def outcome(model: sl.Composite) -> Any:
    """The bits that a call returns, or the type of the exception that it raises."""
    torch.manual_seed(0)
    dtype = dtype_of(model)
    try:
        with torch.no_grad():
            return bits(model(X.to(dtype), context=entries_for(model, dtype)))
    except Exception as error:
        return type(error).__name__


def expected(model: sl.Composite) -> Any:
    """What `outcome` should be by the definition of the composites."""
    torch.manual_seed(0)
    dtype = dtype_of(model)
    entries = {("side", key): value for key, value in entries_for(model, dtype)["side"].items()}
    try:
        with torch.no_grad():
            return bits(evaluate(model, (X.to(dtype),), entries))
    except Exception as error:
        return type(error).__name__


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype in which a tree can be called, if it is all of one."""
    return next((tensor.dtype for tensor in (*model.parameters(), *model.buffers())), torch.float32)


def entries_for(model: sl.Composite, dtype: torch.dtype = torch.float32) -> dict[str, dict[str, Any]]:
    """Those entries that the tree reads; others would be refused."""
    entries = {"given": GIVEN.to(dtype), "shift": 0.5}
    return {"side": {read.key: entries[read.key] for read in model.context_inputs}}


def bits(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.shape, result.double().numpy().tobytes()
    if isinstance(result, tuple):
        return tuple(bits(each) for each in result)
    return result


# What must hold


def check(model: sl.Composite, base: dict[int, set[str]] | None = None) -> None:
    """The invariants of every tree; `base` are the keys that parameters had at the start, by identity."""
    places = list(model.places())
    wired = {id(place.layer) for place in places}
    for place in places:
        owned = model[place.path]
        assert owned is place.layer, f"{place.path} leads to another layer"
        if isinstance(place.layer, sl.Composite):
            assert place.layer.parent is place.parent, f"{place.path} has another parent than the one that calls it"
            assert place.layer.path == place.path
            assert [id(place.layer) == id(other.layer) for other in places].count(True) == 1, f"{place.path} twice"
    assert model.parent is None
    for name, module in model.named_modules():
        if name and isinstance(module, sl.Composite):
            assert module.path == name, f"{name} knows itself as {module.path}"
        node = node_of(module)
        if node is None:
            continue
        for key, child in node.children.items():
            called = child is None or wired & {id(inner) for inner in child.modules()}
            assert called, f"{name}.{key} is owned, and nothing in it is called"
    for identity, keys in keys_of(model).items():
        before = (base or {}).get(identity, keys)
        assert before & keys, f"the parameter at {before} is now at {keys}"
    assert model.load_state_dict(model.state_dict(), strict=True)
    assert outcome(model) == expected(model)


def keys_of(model: nn.Module) -> dict[int, set[str]]:
    """The keys of every parameter, by identity: a shared leaf has several. Those in structural copies are not old."""
    modules = list(model.named_modules(remove_duplicate=False))
    copies = tuple(f"{name}." for name, module in modules if name and (n := node_of(module)) and n.shares_leaves)
    keys: dict[int, set[str]] = {}
    for key, parameter in model.named_parameters(remove_duplicate=False):
        if not hasattr(parameter, "moved") and not key.startswith(copies):
            keys.setdefault(id(parameter), set()).add(key)
    return keys
