"""Activation checkpointing: memory for time, as a composite."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.utils.checkpoint

from suture.layers.cache import Cache
from suture.layers.calls import in_open_blocks
from suture.layers.chain import Chain
from suture.layers.context import Context


class Checkpoint(Chain):
    """A chain that keeps none of its activations for backward, and computes them again there.

    It takes and returns what the chain would. Gradients are the same, bit for bit on a CPU: dropout draws the same
    random numbers again. It is torch's checkpointing without reentrance (`use_reentrant=False`), so gradients also
    reach its weights where no input requires one, as on a frozen base; and it may stand in another one.

    The layers inside run with a copy of the context. What they write, and what they derive, later layers see as if
    there were no `Checkpoint`. The second computation begins with the context and the open blocks as they were at the
    first, whatever was written, opened or closed since, and what it writes is dropped. While gradients are off, as in
    generation, it is a plain chain.

    Raises:
        ValueError: a cache is given and gradients are on: the second computation would extend the cache once more.

    Source: https://arxiv.org/abs/1604.06174; `torch.utils.checkpoint`.

    >>> from suture import layers as sl
    >>> x = torch.ones(2, 4, requires_grad=True)
    >>> model = sl.Chain(Checkpoint(sl.Linear(4, 64), sl.SiLU(), sl.Linear(64, 4)), sl.Linear(4, 1))
    >>> model(x).sum().backward()
    >>> x.grad.shape
    torch.Size([2, 4])
    """

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        context = Context() if context is None else context
        if not torch.is_grad_enabled():
            return super().forward(*args, context=context)
        self._refuse_cache(context)
        # A tree inside a plain module finds its context in the blocks alone.
        chain, before = in_open_blocks(super().forward), context.fork()

        def segment(*args: Any) -> tuple[Any, Context]:
            running = before.fork()
            return chain(*args, context=running), running

        result, after = cast(
            "tuple[Any, Context]", torch.utils.checkpoint.checkpoint(segment, *args, use_reentrant=False)
        )
        context.join(after)
        return result

    def _refuse_cache(self, context: Context) -> None:
        for read in self.context_inputs:
            if isinstance(context.get(read.scope, read.key, None), Cache):
                raise ValueError(
                    f"Checkpoint at {self.path!r} computes its layers again in backward, which would extend the cache "
                    f"{read.identity} once more. Call the model without the cache, or under torch.no_grad()."
                )
