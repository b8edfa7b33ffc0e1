"""Where the entries of a call come from: blocks, entries set for the next call, the call itself."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import nn

import suture
from suture import Context
from suture import layers as sl


def reciprocal(number: float) -> float:
    return 1 / number


def reader(key: str = "x", **options: Any) -> sl.Chain:
    return sl.Chain(inner=sl.Chain(sl.UseContext("side", key, **options)))


class Plain(nn.Module):
    """A plain module that calls a tree, as somebody else's model would."""

    def __init__(self, tree: nn.Module) -> None:
        super().__init__()
        self.tree = tree

    def forward(self, x: Any = None) -> Any:
        return self.tree(x)


class TestPrecedence:
    def test_of_all_ways_the_nearest_wins(self) -> None:
        class Declares(sl.Chain):
            def init_context(self) -> dict[str, dict[str, Any]]:
                return {"side": {"x": "initial"}}

        model = Declares(sl.UseContext("side", "x"))
        assert model() == "initial"
        model.set_context("side", {"x": "set"})
        assert model() == "set"
        with model.context(side={"x": "outer"}):
            model.set_context("side", {"x": "set"})
            assert model() == "outer"
            with model.context(side={"x": "inner"}):
                assert model() == "inner"
                assert model(context={"side": {"x": "call"}}) == "call"
            assert model() == "outer"
        assert model() == "initial"

    def test_entries_of_several_ways_are_joined(self) -> None:
        model = sl.Parallel(*(sl.UseContext("side", key) for key in "abc"))
        model.set_context("side", {"a": 1})
        with model.context(side={"b": 2}):
            assert model(c=3) == (1, 2, 3)


class TestByKeyword:
    def test_a_keyword_finds_its_scope(self) -> None:
        assert reader()(x=1) == 1

    def test_a_keyword_read_in_two_scopes_is_refused(self) -> None:
        model = sl.Chain(sl.UseContext("one", "x"), sl.UseContext("two", "x"))
        with pytest.raises(TypeError, match="several scopes, one, two"):
            model(x=1)

    def test_a_keyword_that_nobody_reads_is_refused_with_what_is_read(self) -> None:
        with pytest.raises(TypeError, match=r"nothing in it reads that\. It reads: side\.x"):
            reader()(y=1)


class TestUnread:
    def test_by_call(self) -> None:
        with pytest.raises(ValueError, match=r"reads the context entry side\.y\. It reads: side\.x"):
            reader()(context={"side": {"x": 1, "y": 2}})

    def test_by_block(self) -> None:
        with pytest.raises(ValueError, match=r"side\.y"), reader().context(side={"y": 2}):
            pass

    def test_set_for_the_next_call(self) -> None:
        model = reader(default=0)
        model.set_context("side", {"y": 2})
        with pytest.raises(ValueError, match=r"side\.y"):
            model()
        assert model() == 0

    @pytest.mark.parametrize("context", [{"x": 1}, [1], 3, {"side": 1}])
    def test_what_is_no_context_is_refused(self, context: Any) -> None:
        with pytest.raises(TypeError, match="dictionary of scopes"):
            reader()(context=context)


class TestSetContext:
    def test_it_holds_for_one_call(self) -> None:
        model = reader(default="default")
        model.set_context("side", {"x": 1})
        assert [model(), model()] == [1, "default"]

    def test_a_call_that_raises_consumes_it(self) -> None:
        model = sl.Chain(sl.Lambda(reciprocal), sl.UseContext("side", "x", default="default"))
        model.set_context("side", {"x": 1})
        with pytest.raises(ZeroDivisionError):
            model(0)
        assert model(1) == "default"

    def test_it_serves_a_call_of_a_part(self) -> None:
        model = reader(default="default")
        model.set_context("side", {"x": 1})
        assert model["inner"](None) == 1
        assert model() == "default"

    def test_another_model_does_not_consume_it(self) -> None:
        model, other = reader(default="default"), reader(default="default")
        model.set_context("side", {"x": 1})
        assert (other(), model()) == ("default", 1)

    def test_tasks_that_inherit_it_consume_it_once(self) -> None:
        model = reader(default="default")

        async def run() -> list[Any]:
            model.set_context("side", {"x": 1})
            return [await asyncio.create_task(asyncio.to_thread(model)), await asyncio.to_thread(model), model()]

        assert asyncio.run(run()) == [1, "default", "default"]

    def test_it_does_not_cross_a_plain_module_and_says_so(self) -> None:
        model = sl.Chain(Plain(reader(default="default")))
        model.set_context("side", {"x": 1})
        with pytest.raises(ValueError, match="only inside a plain module"):
            model()
        assert model() == "default"

    def test_a_model_that_is_gone_takes_its_entries_along(self) -> None:
        model = reader()
        tensor = torch.ones(1)
        model.set_context("side", {"x": tensor})
        del model
        assert reader(default="default")() == "default"


class TestBlocks:
    def test_a_block_reaches_trees_deep_inside_plain_modules(self) -> None:
        model = nn.Sequential(Plain(nn.Sequential(Plain(reader()))))
        with suture.context(model, side={"x": 5}):
            assert model(None) == 5

    def test_a_block_of_a_tree_reaches_through_plain_modules(self) -> None:
        model = sl.Chain(Plain(reader()))
        with model.context(side={"x": 5}):
            assert model() == 5

    def test_a_call_cannot_cross_a_plain_module_and_says_so(self) -> None:
        with pytest.raises(ValueError, match="only inside a plain module"):
            sl.Chain(Plain(reader()))(context={"side": {"x": 5}})
        with pytest.raises(ValueError, match="only inside a plain module"):
            sl.Chain(Plain(reader()))(x=5)

    def test_a_block_of_a_part_serves_a_call_of_the_whole(self) -> None:
        model = reader()
        part = model["inner"]
        assert isinstance(part, sl.Chain)
        with part.context(side={"x": 5}):
            assert model() == 5

    def test_a_block_of_another_model_does_not_reach(self) -> None:
        model, other = reader(default="default"), reader()
        with other.context(side={"x": 5}):
            assert model() == "default"

    def test_an_exception_inside_closes_every_block(self) -> None:
        model = reader(default="default")
        with pytest.raises(ZeroDivisionError), model.context(side={"x": 1}), model.context(side={"x": 2}):
            raise ZeroDivisionError
        assert model() == "default"

    def test_one_block_can_be_entered_inside_itself_again(self) -> None:
        model = reader(default="default")
        with model.context(side={"x": 1}):
            with model.context(side={"x": 1}):
                pass
            assert model() == 1

    def test_scopes_can_be_given_as_dictionaries(self) -> None:
        model = reader()
        with model.context({"side": {"x": 1}}):
            assert model() == 1


class TestOneCall:
    def test_calls_inside_share_what_was_set_for_the_next(self) -> None:
        model = reader(default="default")
        model.set_context("side", {"x": 1})
        with sl.one_call(model):
            assert [model(), model()] == [1, 1]
        assert model() == "default"


class TestThreadsAndTasks:
    def test_threads_do_not_see_each_others_entries(self) -> None:
        model = reader(default="default")
        both_open, seen = threading.Barrier(2), dict[int, Any]()

        def work(number: int) -> None:
            model.set_context("side", {"x": -number})
            with model.context(side={"x": number}):
                both_open.wait()
                seen[number] = [model() for _ in range(50)]
                both_open.wait()
            seen[-number] = model()

        threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == {1: [1] * 50, 2: [2] * 50, -1: "default", -2: "default"}

    def test_tasks_do_not_see_each_others_entries(self) -> None:
        model = reader(default="default")

        async def work(number: int) -> list[Any]:
            seen: list[Any] = []
            with model.context(side={"x": number}):
                for _ in range(5):
                    await asyncio.sleep(0)
                    seen.append(model())
            await asyncio.sleep(0)
            return [*seen, model()]

        async def run() -> list[list[Any]]:
            return await asyncio.gather(*(work(number) for number in range(3)))

        assert asyncio.run(run()) == [[number] * 5 + ["default"] for number in range(3)]

    def test_a_thread_that_was_started_in_a_block_has_its_entries_by_to_thread(self) -> None:
        model = reader(default="default")

        async def run() -> Any:
            with model.context(side={"x": 7}):
                return await asyncio.to_thread(model)

        assert asyncio.run(run()) == 7


class TestCompiled:
    def test_entries_of_a_call_compile(self) -> None:
        model = sl.Chain(sl.Sum(sl.Linear(2, 2), sl.UseContext("side", "x")))
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        given: dict[str, Any] = {"side": {"x": torch.ones(2)}}
        x = torch.randn(1, 2)
        torch.testing.assert_close(compiled(x, context=given), model(x, context=given))

    def test_an_open_block_inside_a_compiled_function_is_an_error(self) -> None:
        model = sl.Chain(sl.Sum(sl.Linear(2, 2), sl.UseContext("side", "x", default=0)))
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        with model.context(side={"x": torch.ones(2)}), pytest.raises(Exception, match="context block is open"):
            compiled(torch.randn(1, 2))

    def test_entries_set_for_the_next_call_are_an_error_inside_a_compiled_function(self) -> None:
        model = sl.Chain(sl.UseContext("side", "x", default=torch.zeros(2)))
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        model.set_context("side", {"x": torch.ones(2)})
        with pytest.raises(Exception, match="set for the next call"):
            compiled(torch.randn(2))
        assert torch.equal(model(torch.randn(2)), torch.ones(2))
        assert torch.equal(compiled(torch.randn(2)), torch.zeros(2))

    def test_a_missing_entry_inside_a_compiled_function_is_named(self) -> None:
        compiled = torch.compile(sl.Chain(sl.UseContext("side", "x")), fullgraph=True, backend="eager")
        with pytest.raises(Exception, match="MissingContextError"):
            compiled(torch.randn(2))

    def test_a_compiled_model_merges_blocks_outside(self) -> None:
        model = sl.Chain(sl.Sum(sl.Linear(2, 2), sl.UseContext("side", "x")))
        x, entry = torch.randn(1, 2), torch.ones(2)
        expected = model(x, x=entry)
        model.compile(fullgraph=True, backend="eager")
        with model.context(side={"x": entry}):
            torch.testing.assert_close(model(x), expected)


def test_nothing_is_kept_alive_by_a_call_that_failed() -> None:
    import gc

    model = sl.Chain(sl.UseContext("side", "x"), nn.Linear(3, 3))
    tensor = torch.ones(2)
    alive = weakref.ref(tensor)
    with pytest.raises(RuntimeError):
        model(context={"side": {"x": tensor}})
    del tensor
    gc.collect()
    assert alive() is None


def test_a_context_that_is_passed_on_by_hand_is_the_same_call() -> None:
    class ByHand(sl.Chain):
        def forward(self, *args: Any, context: Context | None = None) -> Any:
            inner: Any = self["inner"]
            return inner(*args, context=context)

    assert ByHand(inner=sl.Chain(sl.UseContext("side", "x")))(context={"side": {"x": 3}}) == 3


def test_blocks_may_end_in_any_order() -> None:
    model = reader(default=0)

    def suspended() -> Generator[None]:
        with model.context(side={"x": 1}):
            yield

    generator = suspended()
    next(generator)
    with model.context(side={"x": 2}):
        generator.close()
        assert model(None) == 2
    assert model(None) == 0


def test_what_was_set_for_a_call_is_not_kept_alive_after_it() -> None:
    model, entry = sl.Chain(sl.UseContext("side", "x")), torch.ones(2)
    model.set_context("side", {"x": entry})
    model(None)
    alive = weakref.ref(entry)
    del entry
    assert alive() is None
