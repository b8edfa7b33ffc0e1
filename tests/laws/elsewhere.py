"""Doing something in another thread or in a task, with what hypothesis draws here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Queue
from typing import Any, TypeVar

from tests.laws.trees import Draw

T = TypeVar("T")
Done = Callable[[Any], T]


def in_thread(do: Callable[[Any], T], draw: Draw | None) -> T:
    """Draws can be made in the thread of the test only, so the other one asks for them."""
    wanted: Queue[Any] = Queue()
    drawn: Queue[Any] = Queue()
    outcome: list[Any] = []

    def ask(strategy: Any) -> Any:
        wanted.put(strategy)
        return drawn.get()

    def work() -> None:
        try:
            outcome.append(do(ask))
        except BaseException as error:
            outcome.append(error)
            failed.append(error)
        wanted.put(None)

    failed: list[BaseException] = []
    thread = threading.Thread(target=work)
    thread.start()
    while (strategy := wanted.get()) is not None:
        assert draw is not None
        drawn.put(draw(strategy))
    thread.join()
    if failed:
        raise failed[0]
    return outcome[0]


def in_task(do: Callable[[Any], T], draw: Draw | None) -> T:
    async def work() -> T:
        await asyncio.sleep(0)
        return do(draw)

    async def both() -> T:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return await task

    return asyncio.run(both())


WHERE: dict[str, Callable[[Callable[[Any], Any], Draw | None], Any]] = {"thread": in_thread, "task": in_task}
