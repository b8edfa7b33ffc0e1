"""A graph that takes its cache as an input and gives the next one as an output, driven like any other backbone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from suture.layers.context import Read
from suture.layers.symbolic import TakesContext

if TYPE_CHECKING:
    from suture.graph.graph import Graph


class FunctionalCache:
    """The tensors that a graph with a functional cache keeps between its calls: `state`, in the graph's structure.

    `length` of at most `capacity` tokens of each of `batch` rows are in it.
    """

    def __init__(self, batch: int, capacity: int, state: Any) -> None:
        self.batch = batch
        self.capacity = capacity
        self.length = 0
        self.state = state

    def copy(self) -> FunctionalCache:
        """A cache with the same state, which does not see what becomes of this one."""
        copied = FunctionalCache(self.batch, self.capacity, pytree.tree_map_only(Tensor, Tensor.clone, self.state))
        copied.length = self.length
        return copied


class CachedGraph(TakesContext):
    """A graph whose cache is an input and an output, as a backbone whose `cache` is one object, advanced in place.

    It is called with token ids (B, T) and those of its other inputs that are entries of the scope `"inputs"`.

    Raises `ValueError` for more tokens than the cache has room for, or another number of rows.
    """

    def __init__(
        self, graph: Graph, init: Callable[[int, int], Any], inputs: str, outputs: int | str, update_index: str | None
    ) -> None:
        super().__init__()
        names = [name for name in (inputs, update_index) if name is not None]
        unknown = [name for name in names if name not in graph.takes.by_name]
        if unknown:
            raise ValueError(f"The graph has no input {unknown[0]!r}. It takes: {', '.join(graph.takes.by_name)}.")
        self.graph = graph
        self.make_state = init
        self.input = inputs
        self.output = outputs
        self.update_index = update_index
        first, *others = [name for name in graph.takes.by_name if name not in names]
        self.first = first
        optional = [name for name in others if graph.takes.is_optional(name)]
        self.reads = {
            name: Read("inputs", name, default=None) if name in optional else Read("inputs", name) for name in others
        }
        self.reads["cache"] = Read("inputs", "cache", default=None)

    @property
    def context_inputs(self) -> tuple[Read, ...]:
        """The entries that it takes, beside token ids."""
        return tuple(self.reads.values())

    def init_cache(self, batch: int, length: int) -> FunctionalCache:
        """An empty cache for `batch` rows with room for `length` tokens."""
        return FunctionalCache(batch, length, self.make_state(batch, length))

    def forward(self, token_ids: Tensor, cache: FunctionalCache | None = None, **entries: Any) -> Any:
        batch, tokens = token_ids.shape
        cache = cache or self.init_cache(batch, tokens)
        if batch != cache.batch or cache.length + tokens > cache.capacity:
            raise ValueError(
                f"The cache has {cache.batch} rows, and {cache.length} of at most {cache.capacity} tokens in it. "
                f"Received: {batch} rows of {tokens} more. Make one for these: init_cache(batch=..., length=...)."
            )
        given: dict[str, Any] = {self.first: token_ids, self.input: cache.state, **entries}
        if self.update_index is not None:
            given[self.update_index] = torch.tensor(cache.length, device=token_ids.device)
        outputs = self.graph(**{name: value for name, value in given.items() if value is not None})
        state = outputs[self.output]
        rest = self._without_cache(outputs)
        cache.state, cache.length = state, cache.length + tokens
        return rest

    def _without_cache(self, outputs: Any) -> Any:
        if isinstance(self.output, str):
            rest = [value for key, value in outputs.items() if key != self.output]
        else:
            rest = [*outputs]
            del rest[self.output]
        return rest[0] if len(rest) == 1 else tuple(rest)
