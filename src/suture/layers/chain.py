"""The composites: how branches are called and what becomes of their results.

Call rule: a tuple result is spread over the next child's arguments, anything else is one argument. Keyword arguments
are not passed between children.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from suture.layers.composite import Composite
from suture.layers.context import Context
from suture.layers.location import describe, locate

_NEAR = 64
"""How many blocks of a stack are looked at for one that is like another layer."""


class Chain(Composite):
    """Calls its children one after another: the first with the arguments, each other with what the one before returned.

    An empty chain returns its input, of several arguments their tuple.

    >>> model = Chain(nn.Linear(4, 8), nn.ReLU(), output=nn.Linear(8, 2))
    >>> model(torch.zeros(3, 4)).shape, list(model.state_dict())[-1]
    (torch.Size([3, 2]), 'output.bias')
    """

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        context = Context() if context is None else context
        if context.interceptor is not None:
            return self._run_slots(args, context)
        result: Any = args[0] if len(args) == 1 else args
        slot = None
        try:
            for slot in self.node.slots:
                if slot.plain:
                    result = slot.call(*args)
                elif slot.layer is None:
                    continue
                else:
                    result = slot.invoke(args, context)
                args = result if isinstance(result, tuple) else (result,)  # pyright: ignore[reportUnknownVariableType]
        except Exception as error:
            if slot is not None:
                locate(error, self, slot, args)
            raise
        return result  # pyright: ignore[reportUnknownVariableType]

    def _run_slots(self, args: tuple[Any, ...], context: Context) -> Any:
        """The same while something stands in for the calls: slower, and out of the way of those that are fast."""
        result: Any = args[0] if len(args) == 1 else args
        for slot in self.node.filled():
            result = self.call_slot(slot, args, context)
            args = result if isinstance(result, tuple) else (result,)  # pyright: ignore[reportUnknownVariableType]
        return result  # pyright: ignore[reportUnknownVariableType]


class Stack(Chain):
    """A chain of like blocks, named 0, 1, 2, ...; what it receives and returns is what they do.

    A like block that is inserted later takes the next number that was never used, any other layer the name of its
    class.

    >>> [place.path for place in Stack(nn.ReLU(), nn.ReLU()).places()]
    ['0', '1']
    """

    def name_for(self, layer: nn.Module) -> str:
        number = self.node.next_number()
        # As in a bounded neighbourhood, so that an edit does not cost the size of the stack.
        if number and not any(isinstance(layer, type(block)) for block in islice(self._blocks(), _NEAR)):
            return super().name_for(layer)
        return str(number)

    def _blocks(self) -> Iterable[nn.Module]:
        return (slot.layer for slot in self.node.filled() if slot.layer is not None and slot.name.isdecimal())


class Parallel(Composite):
    """Calls every child with the same arguments and returns the tuple of their results.

    >>> Parallel(nn.Identity(), nn.ReLU())(torch.tensor([-1.0]))
    (tensor([-1.]), tensor([0.]))
    """

    def forward(self, *args: Any, context: Context | None = None) -> tuple[Any, ...]:
        return tuple(self.run_branches(args, context))


class Distribute(Composite):
    """Calls each child with one of the arguments, in order, and returns the tuple of their results.

    Raises `TypeError` when there are not as many arguments as children.

    >>> Distribute(nn.Identity(), nn.ReLU())(torch.tensor([-1.0]), torch.tensor([-2.0]))
    (tensor([-1.]), tensor([0.]))
    """

    def forward(self, *args: Any, context: Context | None = None) -> tuple[Any, ...]:
        context = Context() if context is None else context
        slots = [slot for slot in self.node.slots if slot.layer is not None]
        if len(slots) != len(args):
            raise TypeError(
                f"Distribute at {self.path!r} gives one argument to each of its {len(slots)} children. "
                f"Received {len(args)} arguments."
            )
        return tuple(self.call_slot(slot, (arg,), context) for slot, arg in zip(slots, args, strict=True))


class Sum(Composite):
    """The sum of what its children return, each called with the same arguments: shapes broadcast.

    Raises `TypeError` when it has no children, or one of them returns several results.

    >>> Sum(nn.Identity(), nn.Identity())(torch.tensor([1.0]))
    tensor([2.])
    """

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        return combine(self, operator.add, self.run_branches(args, context))


class Product(Composite):
    """The product, element by element, of what its children return, each called with the same arguments.

    Shapes broadcast. Raises `TypeError` when it has no children, or one of them returns several results.

    >>> Product(nn.Identity(), nn.Identity())(torch.tensor([3.0]))
    tensor([9.])
    """

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        return combine(self, operator.mul, self.run_branches(args, context))


class Residual(Chain):
    """`x + Chain(...)(x)`; of several arguments all are passed and the first is added.

    (...) to the same shape. Raises `TypeError` when it is called without arguments, or the chain returns several
    results.

    Source: https://arxiv.org/abs/1512.03385.

    >>> Residual(nn.ReLU())(torch.tensor([2.0]))
    tensor([4.])
    """

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        if not args:
            raise TypeError(f"Residual at {self.path!r} adds its input. It was called without one.")
        return combine(self, operator.add, [args[0], super().forward(*args, context=context)])


class Concatenate(Composite):
    """The results of its children, each called with the same arguments, joined along `dim`.

    (..., D1), (..., D2), ... give (..., D1 + D2 + ...). Torch raises `RuntimeError` where other dimensions differ.

    >>> Concatenate(nn.Identity(), nn.Identity(), dim=0)(torch.tensor([1.0]))
    tensor([1., 1.])
    """

    def __init__(self, *layers: Any, dim: int = -1, **named: nn.Module) -> None:
        super().__init__(*layers, **named)
        self.dim = dim

    def forward(self, *args: Any, context: Context | None = None) -> Tensor:
        return torch.cat(self.run_branches(args, context), dim=self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Passthrough(Chain):
    """Calls its children for what they write to the context, and returns its input, whatever they return.

    >>> Passthrough(nn.ReLU())(torch.tensor([-1.0]))
    tensor([-1.])
    """

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        super().forward(*args, context=context)
        return args[0] if len(args) == 1 else args


class SetContext(Composite):
    """Writes its input to the entry `key` of the scope `context`, for later readers in the same call, and returns it.

    >>> from suture.layers import UseContext
    >>> Chain(SetContext("side", "x"), nn.ReLU(), UseContext("side", "x"))(torch.tensor([-1.0]))
    tensor([-1.])
    """

    def __init__(self, context: str, key: str) -> None:
        super().__init__()
        self.writes = ((context, key),)

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        result = args[0] if len(args) == 1 else args
        if context is not None:
            context.set(*self.writes[0], result)
        return result

    def extra_repr(self) -> str:
        scope, key = self.writes[0]
        return f"{scope}.{key}"


def combine(composite: Composite, operation: Callable[[Any, Any], Any], results: list[Any]) -> Any:
    """Folds the results of branches. Raises `TypeError` for none, or for a branch that returned several."""
    if not results:
        raise TypeError(
            f"{type(composite).__name__} at {composite.path!r} has no children, so there is nothing to combine."
        )
    for result in results:
        if isinstance(result, tuple):
            returned = cast("tuple[Any, ...]", result)
            raise TypeError(
                f"{type(composite).__name__} at {composite.path!r} combines one result of each branch. "
                f"A branch returned {len(returned)}: {', '.join(map(describe, returned))}."
            )
    return reduce(operation, results)
