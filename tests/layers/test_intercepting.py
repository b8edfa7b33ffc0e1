"""Blocks with call functions: which calls they stand in for, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import Graph, Input, capture, intercept, patch, rewire, trace
from suture import layers as sl
from suture.layers.frames import call_module

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def times(factor: float) -> Callable[..., Any]:
    """A call function that multiplies what linear layers give."""

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return factor * y if isinstance(layer, nn.Linear) else y

    return call


def opened(factor: float) -> Generator[None]:
    """A generator that leaves a block open where it stops."""
    with intercept(times(factor)):
        yield


@pytest.fixture(params=["tree", "graph"])
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    tree = sl.Chain(linear=sl.Linear(4, 4))
    before = tree(X)
    yield tree if request.param == "tree" else trace(tree, Input("x", shape=(None, 4)))
    assert torch.equal(tree(X), before)
    assert nn.Module.__call__ is call_module


def test_blocks_of_generators_end_in_any_order(model: Any) -> None:
    before, first, second = model(X), opened(2), opened(3)
    next(first)
    next(second)
    assert torch.allclose(model(X), 6 * before)
    first.close()
    assert torch.allclose(model(X), 3 * before)
    with intercept(times(5)):
        second.close()
        assert torch.allclose(model(X), 5 * before)
    assert torch.equal(model(X), before)


def test_a_block_in_a_forgotten_generator_ends(model: Any) -> None:
    before, generator = model(X), opened(2)
    next(generator)
    del generator
    gc.collect()
    assert torch.equal(model(X), before)


def test_a_block_ends_though_another_thread_ends_it(model: Any) -> None:
    before, generator = model(X), opened(2)
    next(generator)
    thread = threading.Thread(target=generator.close)
    thread.start()
    thread.join()
    assert torch.equal(model(X), before)
    # Compiled code counts the blocks of its thread.
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), before)


def test_a_task_does_not_see_a_block_that_has_ended(model: Any) -> None:
    before = model(X)

    async def later() -> Tensor:
        await asyncio.sleep(0)
        return model(X)

    async def main() -> Tensor:
        with intercept(times(2)):
            task = asyncio.create_task(later())
        return await task

    assert torch.equal(asyncio.run(main()), before)


def test_tasks_do_not_see_each_others_blocks(model: Any) -> None:
    before = model(X)

    async def job(factor: int) -> None:
        for _ in range(3):
            with intercept(times(factor)):
                await asyncio.sleep(0)
                assert torch.allclose(model(X), factor * before)
            await asyncio.sleep(0)
            assert torch.equal(model(X), before)

    async def main() -> None:
        await asyncio.gather(*(job(factor) for factor in range(4)))

    asyncio.run(main())


def test_threads_that_overlap_do_not_see_each_others_blocks(model: Any) -> None:
    before, opened_both, wrong = model(X), threading.Barrier(3), list[int]()

    def work(factor: int) -> None:
        with intercept(times(factor)):
            opened_both.wait()
            if not torch.allclose(model(X), factor * before):
                wrong.append(factor)
        if not torch.equal(model(X), before):
            wrong.append(-factor)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_layer_that_was_kept_is_called_as_it_is(model: Any) -> None:
    kept: list[Any] = []

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        kept.append((layer, args))
        return layer(*args, **kwargs)

    with intercept(call):
        wanted = model(X)
    layer, args = kept[-1]
    assert torch.equal(layer(*args), wanted)


@pytest.mark.parametrize("how", [intercept, capture, patch])
def test_nothing_is_kept_alive(model: Any, how: Any) -> None:
    given: tuple[Any, ...] = {
        intercept: (times(2),),
        capture: (model, "linear"),
        patch: (model, {"linear": torch.neg}),
    }[how]

    def run() -> list[weakref.ref[Any]]:
        x = torch.randn(3, 4)
        with how(*given) as seen:
            y = model(x)
        return [weakref.ref(x), weakref.ref(y), *map(weakref.ref, seen.values() if seen is not None else ())]

    gc.disable()
    try:
        # At once, and not only when the garbage is collected.
        assert [reference() for reference in run() if reference() is not None] == []
    finally:
        gc.enable()


# Graphs in trees


def test_a_graph_in_a_tree_is_handed_on_once() -> None:
    inner = trace(sl.Chain(linear=sl.Linear(4, 4)), Input("x", shape=(None, 4)))
    tree = sl.Chain(graph=inner, plain=nn.Sequential(nn.Linear(4, 4)))

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return y + 1 if isinstance(layer, Graph) else y

    with intercept(call):
        eager = tree(X)
    assert torch.equal(eager, tree[1](inner(X) + 1))
    assert torch.equal(eager, rewire(tree, call, inputs=Input("x", shape=(None, 4)))(X))
    with capture(tree, "graph") as seen:
        tree(X)
    assert len(seen.calls("graph")) == 1


def test_a_graph_in_a_tree_reads_what_the_tree_and_blocks_give() -> None:
    shifted = sl.Chain(sl.Sum(sl.Identity(), sl.UseContext("side", "shift", default=0.0)))
    inner = trace(shifted, Input("x", shape=(None, 4)))
    tree = sl.Chain(inner, sl.ReLU())
    assert torch.equal(tree(X, context={"side": {"shift": 2.0}}), (X + 2).relu())
    for around in (tree, inner):
        with around.context(side={"shift": 2.0}):
            assert torch.equal(tree(X), (X + 2).relu())
