"""Copies of trees, bare and edited: deep copies, pickles and structural copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import Adapter, EditError, select
from suture import layers as sl

Copy = Callable[[Any], Any]
COPIES: dict[str, Copy] = {
    "deep copy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "structural copy": lambda model: model.structural_copy(),
}


class Beside(sl.Sum, Adapter[nn.Module]):
    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, beside=sl.Chain(sl.UseContext("side", "x", default=0.0), Plus()))


class Zero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Plus(nn.Module):
    def forward(self, x: float) -> float:
        return x + 1


class Rebuilt(sl.Chain, Adapter[sl.Chain]):
    """Replaces what is inside its target by something that holds the same layers."""

    def __init__(self, target: sl.Chain) -> None:
        with self.setup_adapter(target):
            super().__init__(target)

    def inject(self, parent: nn.Module | None = None) -> Rebuilt:
        inner = self.target.ensure_find(sl.Parallel)
        self.target.replace(inner, sl.Parallel(*(sl.Sum(layer, Zero()) for layer in inner)))
        return super().inject(parent)


def model() -> sl.Chain:
    block = sl.Chain(
        query=sl.Chain(linear=nn.Linear(4, 4)),
        both=sl.Parallel(sl.Chain(one=nn.Linear(4, 4)), nn.Linear(4, 4)),
        joined=sl.Lambda(torch.add),
    )
    return sl.Chain(blocks=sl.Stack(block, sl.Chain(other=nn.Linear(4, 4))))


def adapted() -> tuple[sl.Chain, list[Adapter[Any]]]:
    tree = model()
    adapters: list[Adapter[Any]] = [Rebuilt(tree.layer("blocks.0", sl.Chain)).inject()]
    for path in ("query", "linear", "other"):
        match = select(tree, path).one()
        adapters.append(Beside(match.layer).inject(match.parent))
    return tree, adapters


X = torch.randn(2, 4)


def facts(tree: sl.Composite) -> list[Any]:
    return [
        [(place.path, type(place.layer), place.parent.path, place.depth) for place in tree.places()],
        list(tree.state_dict()),
        [module.path for module in tree.modules() if isinstance(module, sl.Composite)],
        repr(tree),
    ]


def result(tree: sl.Composite, side: float) -> Tensor:
    return tree(X, x=side)


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_a_copy_of_an_adapted_tree_is_and_does_the_same(make_copy: Copy) -> None:
    tree, _ = adapted()
    copied = make_copy(tree)
    assert facts(copied) == facts(tree)
    for side in (0.0, 3.0):
        assert torch.equal(result(copied, side), result(tree, side))


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_ejecting_in_the_copy_leaves_the_original_alone(make_copy: Copy) -> None:
    bare = model()
    tree, adapters = adapted()
    before, out = facts(tree), result(tree, 2.0)
    copied = make_copy(tree)
    for adapter in [layer for layer, _ in copied.walk(Adapter)]:
        adapter.eject()
    assert facts(copied) == facts(bare)
    assert facts(tree) == before
    assert torch.equal(result(tree, 2.0), out)
    for adapter in adapters:
        adapter.eject()
    assert facts(tree) == facts(bare)
    assert torch.equal(tree(X), copied(X))


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_ejecting_the_original_leaves_the_copy_alone(make_copy: Copy) -> None:
    tree, adapters = adapted()
    copied = make_copy(tree)
    before, out = facts(copied), result(copied, 2.0)
    for adapter in reversed(adapters):
        adapter.eject()
    assert facts(copied) == before
    assert torch.equal(result(copied, 2.0), out)


@pytest.mark.parametrize(("name", "shared"), [("deep copy", False), ("pickle", False), ("structural copy", True)])
def test_which_copies_share_weights(name: str, shared: bool) -> None:
    tree, _ = adapted()
    copied = COPIES[name](tree)
    for mine, theirs in zip(tree.parameters(), copied.parameters(), strict=True):
        assert (mine is theirs) == shared


@pytest.mark.parametrize("make_copy", [COPIES["deep copy"], COPIES["structural copy"]])
def test_a_part_is_copied_without_what_is_around_it(make_copy: Copy) -> None:
    tree, _ = adapted()
    part = tree.layer("blocks.0", sl.Chain)
    copied = make_copy(part)
    assert copied.parent is None
    assert torch.equal(copied(X, x=1.0), part(X, x=1.0))


def test_a_layer_owned_around_a_part_becomes_the_copys_own() -> None:
    tree = sl.Chain(query=nn.Linear(4, 4))
    adapter = Beside(tree["query"]).inject(tree)
    copied = copy.deepcopy(adapter)
    assert len(copied.state_dict()) == 2
    assert torch.equal(copied(X), adapter(X))
    assert not any(mine is theirs for mine in copied.parameters() for theirs in tree.parameters())


def test_copy_copy_is_refused() -> None:
    with pytest.raises(TypeError, match="structural_copy"):
        copy.copy(model())


def test_a_plain_module_with_trees_inside_is_copied() -> None:
    plain = nn.ModuleDict({"one": adapted()[0], "two": model()})
    copied = copy.deepcopy(plain)
    assert facts(copied["one"]) == facts(plain["one"])  # pyright: ignore[reportArgumentType]


def test_an_adapter_in_a_copy_still_refuses_what_it_must() -> None:
    tree, _ = adapted()
    copied = copy.deepcopy(tree)
    inner = copied.layers(Beside)[-1]
    select(copied, "blocks.1").replace(sl.Identity())
    inner.eject()
    with pytest.raises(EditError, match="not injected"):
        inner.eject()


@pytest.mark.parametrize("make_copy", [COPIES["deep copy"], COPIES["structural copy"]])
def test_an_adapter_in_a_copied_wrapper_of_it_has_no_tree_to_go_out_of(make_copy: Copy) -> None:
    tree = sl.Chain(query=sl.Chain(linear=nn.Linear(4, 4)))
    inner: nn.Module = Beside(tree["query"]).inject()
    outer = Beside(inner).inject()
    copied: Beside = make_copy(outer)
    assert torch.equal(copied(X), outer(X))
    with pytest.raises(EditError, match="without the tree around it"):
        copied.layers(Beside)[0].eject()


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_a_copy_does_not_take_what_was_taken_out_for_what_calls_and_owns(make_copy: Copy) -> None:
    tree = sl.Chain(block=sl.Chain(inner=sl.Chain(linear=nn.Linear(4, 4))))
    adapters = [Beside(tree["block.inner"]).inject()]
    wrapping = select(tree, "block").wrap(lambda block: sl.Residual(block))
    adapters.append(Beside(tree["block.inner"]).inject())
    for adapter in adapters:
        adapter.eject()
    copied = make_copy(tree)
    assert facts(copied) == facts(tree)
    wrapping.undo()
    assert facts(make_copy(tree)) == facts(tree)
