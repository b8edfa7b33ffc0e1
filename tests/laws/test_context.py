"""Law 6: a context lives for one call or one block; nothing survives an exception or reaches another thread or task."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from torch import nn

from suture import layers as sl
from suture.layers.calls import open_block

NOTHING = "nothing"
KEYS = ("a", "b")


def fails(x: Any) -> Any:
    if x == "fail":
        raise ZeroDivisionError
    return x


class Defaults(sl.Parallel):
    """Reads both keys of a scope, of which `init_context` gives one."""

    def init_context(self) -> dict[str, dict[str, Any]]:
        return {"side": {"b": "initial"}}


def reader() -> sl.Parallel:
    return Defaults(*(sl.UseContext("side", key, default=NOTHING) for key in KEYS))


class Contexts(RuleBasedStateMachine):
    """One tree with a tree inside, called under blocks, pending entries and its own, beside what is said of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = sl.Chain(sl.Lambda(fails), reader())
        self.outer = sl.Chain(inner=self.inner, other=sl.Identity())
        self.around = nn.Sequential(self.outer)
        self.blocks: list[tuple[Any, dict[str, Any]]] = []
        self.pending: list[tuple[nn.Module, dict[str, Any]]] = []

    entries = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 99), min_size=1)
    modules = st.sampled_from(("inner", "outer", "around"))

    @rule(entries=entries, name=modules)
    def open(self, entries: dict[str, Any], name: str) -> None:
        block = open_block(getattr(self, name), side=entries)
        block.__enter__()
        self.blocks.append((block, entries))

    @precondition(lambda self: len(self.blocks) > 0)
    @rule(data=st.data(), failing=st.booleans())
    def close(self, data: st.DataObject, failing: bool) -> None:
        block, _ = self.blocks.pop(data.draw(st.integers(0, len(self.blocks) - 1)))
        if failing:
            assert not block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        else:
            block.__exit__(None, None, None)

    @rule(entries=entries, name=st.sampled_from(("inner", "outer")))
    def set(self, entries: dict[str, Any], name: str) -> None:
        module: sl.Composite = getattr(self, name)
        module.set_context("side", entries)
        self.pending.append((module, entries))

    @rule(entries=st.none() | entries, name=modules, failing=st.booleans())
    def call(self, entries: dict[str, Any] | None, name: str, failing: bool) -> None:
        given: dict[str, Any] = {"b": "initial"}
        for layer in (*(keys for _, keys in self.pending), *(keys for _, keys in self.blocks)):
            given |= layer
        own = entries if entries is not None and name != "around" else {}
        context = None if not own else {"side": dict(own)}
        module: Any = getattr(self, name)
        self.pending.clear()
        argument = "fail" if failing else 0
        if failing:
            with pytest.raises(ZeroDivisionError):
                module(argument) if context is None else module(argument, context=context)
            return
        result = module(argument) if context is None else module(argument, context=context)
        assert result == tuple((given | own).get(key, NOTHING) for key in KEYS)
        assert context is None or context == {"side": own}

    def teardown(self) -> None:
        while self.blocks:
            self.blocks.pop()[0].__exit__(None, None, None)
        self.outer.set_context("side", {"a": 0})
        self.outer(0)
        assert self.outer(0) == (NOTHING, "initial")


def test_blocks_pending_entries_and_calls_win_over_one_another_as_they_are_said_to() -> None:
    run_state_machine_as_test(Contexts, settings=settings(max_examples=150, stateful_step_count=12, deadline=None))


plans = st.lists(st.tuples(st.sampled_from(("block", "set", "call")), st.integers(0, 9)), min_size=1, max_size=6)


def follow(model: sl.Composite, plan: list[tuple[str, int]]) -> Iterator[tuple[Any, Any]]:
    """Does as planned, and yields what a call gave and what it should; others run between any two steps."""
    with ExitStack() as stack:
        blocks: dict[str, Any] = {}
        pending: dict[str, Any] = {}
        for step, value in plan:
            if step == "block":
                stack.enter_context(model.context(side={"a": value}))
                blocks = {"a": value}
            elif step == "set":
                model.set_context("side", {"b": value})
                pending = {"b": value}
            else:
                wanted = {"a": NOTHING, "b": "initial"} | pending | blocks
                pending = {}
                yield model(0), (wanted["a"], wanted["b"])
            yield None, None
        if pending:
            model(0)


@given(one=plans, other=plans)
@settings(max_examples=60, deadline=None)
def test_tasks_do_not_see_one_anothers_entries(one: list[tuple[str, int]], other: list[tuple[str, int]]) -> None:
    model = sl.Chain(reader())

    async def run(plan: list[tuple[str, int]]) -> None:
        for got, wanted in follow(model, plan):
            assert got == wanted
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(run(one), run(other))

    asyncio.run(both())
    assert model(0) == (NOTHING, "initial")


@given(one=plans, other=plans)
@settings(max_examples=30, deadline=None)
def test_threads_do_not_see_one_anothers_entries(one: list[tuple[str, int]], other: list[tuple[str, int]]) -> None:
    model = sl.Chain(reader())
    wrong: list[Any] = []
    barrier = threading.Barrier(2)

    def run(plan: list[tuple[str, int]]) -> None:
        barrier.wait()
        wrong.extend((got, wanted) for got, wanted in follow(model, plan) if got != wanted)

    threads = [threading.Thread(target=run, args=(plan,)) for plan in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert model(0) == (NOTHING, "initial")
