from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from suture import Adapter, EditError, SelectionError, editing, select
from suture import layers as sl


class Beside(sl.Sum, Adapter[nn.Module]):
    """Keeps its target and adds a branch with dropout."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, branch=sl.Chain(linear=sl.Linear(4, 4), drop=sl.Dropout(0.5)))


class Instead(sl.Chain, Adapter[nn.Module]):
    """Does not keep its target."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(sl.Linear(4, 4))


class Reader(sl.Sum, Adapter[nn.Module]):
    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, sl.UseContext("side", "x"))


class TwoPlaces(sl.Chain, Adapter[sl.Chain]):
    """Edits its target twice and then fails, if it is told to."""

    def __init__(self, target: sl.Chain, fails: bool = False) -> None:
        self.fails = fails
        with self.setup_adapter(target):
            super().__init__(target)

    def inject(self, parent: nn.Module | None = None) -> TwoPlaces:
        self.target.append(sl.Tanh())
        self.target.pop(0)
        if self.fails:
            raise ZeroDivisionError
        return super().inject(parent)


def model() -> sl.Chain:
    return sl.Chain(one=sl.Linear(4, 4), two=sl.Chain(three=sl.Linear(4, 4), four=sl.ReLU()))


def facts(tree: sl.Composite) -> list[Any]:
    places = [(place.path, id(place.layer), id(place.parent)) for place in tree.places()]
    return [places, [(name, id(value)) for name, value in tree.state_dict(keep_vars=True).items()], repr(tree)]


X = torch.randn(3, 4)


def test_an_adapter_takes_the_place_of_its_target_and_gives_it_back() -> None:
    tree = model()
    before, bare = facts(tree), tree(X)
    adapter = Beside(tree["one"]).inject(tree)
    assert tree[0] is adapter
    assert adapter.is_injected
    assert adapter.target is tree["one"]
    assert not torch.equal(tree(X), bare)
    adapter.eject()
    assert not adapter.is_injected
    assert facts(tree) == before
    assert torch.equal(tree(X), bare)


def test_it_can_go_in_again_under_the_same_keys() -> None:
    tree = model()
    adapter = Beside(tree["one"]).inject(tree)
    keys, out = list(tree.state_dict()), tree.eval()(X)
    adapter.eject()
    adapter.inject(tree)
    assert list(tree.state_dict()) == keys
    assert torch.equal(tree(X), out)


def test_injected_twice_or_ejected_twice_is_an_error_that_changes_nothing() -> None:
    tree = model()
    adapter = Beside(tree["one"]).inject(tree)
    before = facts(tree)
    with pytest.raises(EditError, match="injected already"):
        adapter.inject(tree)
    assert facts(tree) == before
    adapter.eject()
    before = facts(tree)
    with pytest.raises(EditError, match="not injected"):
        adapter.eject()
    assert facts(tree) == before


def test_a_leaf_needs_to_be_told_where_it_stands() -> None:
    tree = model()
    with pytest.raises(EditError, match=r"inject\(parent\)"):
        Beside(tree["one"]).inject()


def test_a_composite_knows_where_it_stands() -> None:
    tree = model()
    adapter = Beside(tree["two"]).inject()
    assert tree[1] is adapter


def test_a_target_that_stands_nowhere_stays_the_adapters_own() -> None:
    root = model()
    adapter = Beside(root).inject()
    assert torch.equal(adapter.eval()(X), root(X) + adapter["branch"](X))
    adapter.eject()
    assert root.parent is None
    around = sl.Chain(root)
    adapter.inject()
    assert around[0] is adapter
    adapter.eject()
    assert around[0] is root


def test_a_parent_that_does_not_call_the_target_is_refused() -> None:
    tree = model()
    before = facts(tree)
    with pytest.raises(LookupError, match="deeper in"):
        Beside(tree["two.three"]).inject(tree)
    assert facts(tree) == before


def test_what_is_no_module_cannot_be_adapted() -> None:
    with pytest.raises(TypeError, match="is a module"):
        Beside(cast("Any", torch.relu))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("nested", [False, True])
def test_three_adapters_of_one_target_go_out_in_every_order(order: tuple[int, ...], nested: bool) -> None:
    tree = model()
    before, bare = facts(tree), tree(X)
    target: nn.Module = tree["two.three"]
    adapters: list[Beside] = []
    for _ in range(3):
        parent = tree.find_parent(target)
        assert parent is not None
        adapters.append(Beside(target).inject(parent))
        target = adapters[-1] if nested else target
    for number in order:
        adapters[number].eject()
    assert facts(tree) == before
    assert torch.equal(tree(X), bare)


def test_an_eject_that_would_take_another_out_is_refused_by_name() -> None:
    tree = model()
    outer = Beside(tree["one"]).inject(tree)
    inner = Instead(outer["branch.linear"]).inject(outer.layer("branch", sl.Chain))
    before = facts(tree)
    with pytest.raises(EditError, match="the adapter Instead"):
        outer.eject()
    assert facts(tree) == before
    inner.eject()
    outer.eject()


def test_an_eject_whose_place_was_given_away_is_refused_by_name() -> None:
    tree = model()
    adapter = Beside(tree["one"]).inject(tree)
    edit = tree.replace(adapter, sl.Identity())
    before = facts(tree)
    with pytest.raises(EditError, match="Identity"):
        adapter.eject()
    assert facts(tree) == before
    edit.undo()
    adapter.eject()


def test_all_edits_of_inject_go_out_with_it() -> None:
    tree = model()
    before = facts(tree)
    adapter = TwoPlaces(tree.layer("two", sl.Chain)).inject()
    assert [type(layer) for layer in adapter.target] == [sl.ReLU, sl.Tanh]
    adapter.eject()
    assert facts(tree) == before


def test_an_inject_that_fails_leaves_nothing_behind() -> None:
    tree = model()
    before = facts(tree)
    adapter = TwoPlaces(tree.layer("two", sl.Chain), fails=True)
    with pytest.raises(ZeroDivisionError):
        adapter.inject()
    assert facts(tree) == before
    assert not adapter.is_injected


def test_a_block_of_edits_that_fails_takes_its_adapters_out() -> None:
    tree = model()
    before = facts(tree)
    adapter = Beside(tree["one"])
    with pytest.raises(ZeroDivisionError), editing(tree):  # noqa: PT012 (the block is what is tested)
        adapter.inject(tree)
        raise ZeroDivisionError
    assert facts(tree) == before
    assert not adapter.is_injected
    adapter.inject(tree).eject()


def test_undoing_the_edit_that_injected_is_ejecting() -> None:
    tree = model()
    made: list[Beside] = []

    def make(layer: nn.Module) -> Beside:
        made.append(Beside(layer))
        return made[-1]

    edit = select(tree, sl.Linear).adapt(make)
    assert [adapter.is_injected for adapter in made] == [True, True]
    edit.undo()
    assert [adapter.is_injected for adapter in made] == [False, False]


@pytest.mark.parametrize("training", [True, False])
def test_it_takes_the_mode_of_its_place(training: bool) -> None:
    tree = model().train(training)
    adapter = Beside(tree["one"]).inject(tree)
    assert adapter.layers(sl.Dropout)[0].training is training
    assert torch.equal(tree(X), tree(X)) is not training


def test_it_takes_the_dtype_of_its_place() -> None:
    tree = model().to(torch.bfloat16)
    adapter = Beside(tree["one"]).inject(tree)
    assert {parameter.dtype for parameter in adapter.parameters()} == {torch.bfloat16}
    assert tree(X.bfloat16()).dtype == torch.bfloat16


def test_it_reads_the_context_of_the_tree_it_is_in_and_no_longer_after() -> None:
    tree = sl.Chain(inner=sl.Identity())
    adapter = Reader(tree["inner"]).inject(tree)
    assert tree(1, x=10) == 11
    adapter.eject()
    with pytest.raises(TypeError, match="nothing in it reads that"):
        tree(1, x=10)


def test_injecting_while_going_through_the_layers_is_safe() -> None:
    tree = model()
    adapters = [Beside(layer).inject(parent) for layer, parent in tree.walk(sl.Linear)]
    assert len(adapters) == 2
    assert len(tree.layers(Beside)) == 2


def test_gradients_reach_the_adapter_and_not_a_frozen_base() -> None:
    tree = model()
    select(tree, "**").freeze()
    adapter = Beside(tree["one"]).inject(tree)
    loss: Tensor = tree(X).sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in adapter.parameters())
    assert all(parameter.grad is None for name, parameter in tree.named_parameters() if "+" not in name)


def test_on_injects_at_every_place_that_is_selected_and_tells_the_place_of_a_failure() -> None:
    tree = model()
    before, bare = facts(tree), tree(X)
    with Beside.on(tree, sl.Linear) as group:
        assert [type(layer) for layer in (tree[0], tree.layer("two", sl.Chain)[0])] == [Beside, Beside]
        assert [adapter.target_path for adapter in group] == ["one", "two.three"]
    assert facts(tree) == before
    assert torch.equal(tree(X), bare)
    with pytest.raises(ZeroDivisionError) as caught:
        TwoPlaces.on(tree, "two", fails=True)
    assert "This was for the Chain at 'two'." in caught.value.__notes__
    assert facts(tree) == before


def test_an_iterator_among_the_arguments_serves_every_place() -> None:
    class Steps(sl.Chain, Adapter[nn.Module]):
        def __init__(self, target: nn.Module, widths: Iterable[int]) -> None:
            self.widths = list(widths)
            with self.setup_adapter(target):
                super().__init__(target)

    adapters = Steps.on(model(), sl.Linear, widths=(width for width in (4, 8)))
    assert [adapter.widths for adapter in adapters] == [[4, 8], [4, 8]]


def test_on_says_when_nothing_is_selected() -> None:
    with pytest.raises(SelectionError):
        Beside.on(model(), "three", "four.five")


def test_one_that_fails_takes_all_that_went_in_before_out_again() -> None:
    class Picky(Beside):
        def __init__(self, target: nn.Module, worse: nn.Module) -> None:
            super().__init__(target)
            if target is worse:
                raise ZeroDivisionError

    tree = model()
    before = facts(tree)
    with pytest.raises(ZeroDivisionError):
        Picky.on(tree, sl.Linear, worse=tree["two.three"])
    assert facts(tree) == before


def test_on_takes_the_outermost_of_nested_places() -> None:
    tree = model()
    assert [adapter.target_path for adapter in Beside.on(tree, "two", "three")] == ["two"]


def test_it_goes_back_to_where_it_was_without_being_told() -> None:
    tree = model()
    adapter = Beside(tree["two.three"]).inject(tree.layer("two", sl.Chain))
    out = tree.eval()(X)
    adapter.eject()
    adapter.inject()
    assert torch.equal(tree(X), out)


def test_it_goes_back_inside_what_was_put_around_its_target_meanwhile() -> None:
    tree = model()
    before = facts(tree)
    first, second = (Beside(tree["one"]) for _ in range(2))
    first.inject(tree)
    second.inject(tree[0])
    first.eject()
    first.inject()
    assert [type(layer) for layer in second] == [Beside, sl.Chain]
    second.eject()
    first.eject()
    assert facts(tree) == before


def test_it_goes_back_to_its_name_after_edits_around_it() -> None:
    tree = model()
    adapter = Beside(tree["one"]).inject(tree)
    adapter.eject()
    tree.insert(0, sl.ReLU())
    around = tree.structural_copy()
    adapter.inject()
    assert tree[1] is adapter
    assert not around.layers(Beside)


def test_what_has_taken_the_place_of_its_target_is_named() -> None:
    tree = model()
    adapter = Beside(tree["one"]).inject(tree)
    adapter.eject()
    edit = tree.replace(tree["one"], sl.Identity())
    before = facts(tree)
    with pytest.raises(EditError, match="a Identity stands where its target, a Linear, stood"):
        adapter.inject()
    assert facts(tree) == before
    edit.undo()
    gone = tree.remove(tree["one"])
    with pytest.raises(EditError, match="cannot go back to 'one'"):
        adapter.inject()
    gone.undo()
    adapter.inject()


def test_its_name_is_that_of_its_class_unless_it_is_given_one() -> None:
    class Named(Beside):
        adapter_name = "mine"

    assert Beside(sl.Linear(4, 4)).adapter_name == "Beside"
    assert Named(sl.Linear(4, 4)).adapter_name == "mine"


def test_one_of_several_places_of_a_leaf_can_be_told() -> None:
    linear = sl.Linear(4, 4)
    tree = sl.Chain(linear, sl.ReLU(), linear)
    second = tree.node.slot_at(2)
    adapter = Beside(linear).inject_at(tree, second)
    assert [type(layer) for layer in tree] == [sl.Linear, sl.ReLU, Beside]
    assert tree[0] is adapter.target
    adapter.eject()
    assert [type(layer) for layer in tree] == [sl.Linear, sl.ReLU, sl.Linear]


def pickled(tree: sl.Chain) -> sl.Chain:
    return pickle.loads(pickle.dumps(tree))


COPIES: dict[str, Callable[[sl.Chain], sl.Chain]] = {
    "deep": copy.deepcopy,
    "structural": sl.Chain.structural_copy,
    "pickled": pickled,
}


@pytest.mark.parametrize("how", COPIES.values(), ids=COPIES)
def test_eject_in_a_copy_leaves_the_original_alone(how: Callable[[sl.Chain], sl.Chain]) -> None:
    tree = model().eval()
    bare = tree(X)
    two = tree.layer("two", sl.Chain)
    adapters = [Beside(tree["one"]).inject(tree), Beside(tree["two.three"]).inject(two), TwoPlaces(two).inject()]
    before, adapted = facts(tree), tree(X)
    copied = how(tree)
    assert torch.equal(copied(X), adapted)
    # The last one took another out, which comes back when it goes.
    while injected := copied.layers((Beside, TwoPlaces)):
        injected[-1].eject()
    assert torch.equal(copied(X), bare)
    assert facts(tree) == before
    for adapter in reversed(adapters):
        adapter.eject()
    assert torch.equal(tree(X), bare)


def test_it_goes_in_again_under_the_same_keys_beside_one_that_came_later() -> None:
    class First(sl.Sum, Adapter[nn.Module]):
        def __init__(self, target: nn.Module) -> None:
            with self.setup_adapter(target):
                super().__init__(target, branch=sl.Linear(2, 2))

    class Second(First):
        pass

    model = sl.Chain(x=sl.Linear(2, 2))
    first = First(model[0]).inject(model)
    Second(first.target).inject(first)
    keys = set(model.state_dict())
    first.eject()
    first.inject()
    assert set(model.state_dict()) == keys
