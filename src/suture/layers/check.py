"""Whether a model's shapes fit together, found without memory and without arithmetic.

The model runs on torch's fake tensors, which have a shape, a dtype and a device and no values. Whatever does not fit
raises the error that the model itself would raise, at the first layer where it happens.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from suture.layers import printing
from suture.layers.branches import branches
from suture.layers.calls import leave_pending
from suture.layers.context import Context, Entries
from suture.layers.drawing import Drawing
from suture.layers.fakes import Fakes, OneDtype, left_alone, on_meta, quiet, tensors_in
from suture.layers.location import add_location, is_located
from suture.layers.notebook import html
from suture.layers.watch import Call, Watch


def check(model: nn.Module, *inputs: Any, context: Context | Entries | None = None, **entries: Any) -> Checked:
    """Runs `model` on shapes alone, and gives the shapes along its tree.

    The first mismatch raises the error of the layer where it is, which says the layer's path and what it was called
    with. So does a layer that is called with more or fewer arguments than it takes. The model, its inputs and its
    context stay as they were; no other thread should use the model meanwhile.

    Args:
        model: a composite or any module, on any device; one on the meta device needs no memory at all.
        inputs: what it is called with: tensors, also on the meta device, or shapes. A shape, such as `(2, 5, 64)`,
            stands for a tensor in the dtype and on the device of the model. What is on the meta device is taken to be
            where the rest is.
        context: as in a call of a composite.
        entries: as in a call; of a plain module its keyword arguments. Shapes are accepted here and in `context` too.

    Raises:
        Exception: What the model would raise.
        TypeError: A layer is called with a number of arguments that it does not take.

    >>> from suture import layers as sl
    >>> print(check(sl.Chain(up=sl.Linear(4, 8), act=sl.SiLU(), down=sl.Linear(8, 2)), (3, 4)))
    Chain           (3, 2) float32
    ├─ up: Linear(4 → 8)    (3, 8)
    ├─ act: SiLU            (3, 8)
    └─ down: Linear(8 → 2)  (3, 2)
    """
    given = context.given if isinstance(context, Context) else context or {}
    watch = Watch(model)
    fakes = Fakes(model, (inputs, entries, given))
    state = fakes.of_state(model)
    args, keywords = [fakes.of(each) for each in inputs], {key: fakes.of(value) for key, value in entries.items()}
    if context is not None:
        keywords["context"] = {
            scope: {k: fakes.of(value) for k, value in each.items()} for scope, each in given.items()
        }

    def run() -> Any:
        leave_pending()
        with fakes.mode, OneDtype(), torch.no_grad(), torch.compiler.set_stance("force_eager"), watch:
            return functional_call(model, state, tuple(args), keywords)

    with left_alone(watch.modules), quiet():
        try:
            # In a copy of the context variables, so that what is set for the next call stays for it.
            output = contextvars.copy_context().run(run)
        except Exception as error:
            _explain(error, model, watch.failing)
            raise
    return Checked(model, output, watch.calls)


class Checked:
    """What `check` found: printed, the tree with the shape that each layer returns.

    `output` is what the model returns, and `calls` are the calls of its layers in the order in which they began; the
    tensors in both are on the meta device.
    """

    def __init__(self, model: nn.Module, output: Any, calls: Sequence[Call]) -> None:
        self.output = on_meta(output)
        self.calls = tuple(replace(call, args=on_meta(call.args), output=on_meta(call.output)) for call in calls)
        dtype = next((tensor.dtype for tensor in tensors_in(output)), None)
        shapes: dict[int, list[str]] = {}
        for call in calls:
            shapes.setdefault(call.key, []).append(_shape(call.output, dtype))
        root = branches(model)
        for branch in root.below():
            branch.column = "; ".join(dict.fromkeys(shapes.get(branch.key, [])))
        root.column = _shape(output, None)
        self._drawing = printing.draw(root, gutter=False)

    def __str__(self) -> str:
        return str(self._drawing)

    __repr__ = __str__

    def __rich__(self) -> Drawing:
        return self._drawing

    def _repr_html_(self) -> str:
        return html(self._drawing)


def _shape(value: Any, usual: torch.dtype | None) -> str:
    """The shape of a result, and its dtype where that is not the usual one."""
    if isinstance(value, Tensor):
        dtype = "" if value.dtype == usual else f" {value.dtype}".replace("torch.", "")
        return f"{tuple(value.shape)}{dtype}"
    if isinstance(value, tuple | list):
        return ", ".join(_shape(each, usual) for each in cast("tuple[Any, ...]", value))
    return "None" if value is None else type(value).__name__


def _explain(error: Exception, model: nn.Module, failing: Call | None) -> None:
    """Says where the error happened, and what it means that a layer asked for a value."""
    if failing is not None and not is_located(error):
        add_location(error, model, failing.path, failing.layer, failing.args)
    if type(error).__module__ == "torch._subclasses.fake_tensor":
        error.add_note(
            "The layer looks at the values of a tensor, or returns a shape that depends on them. A check has shapes "
            "only and cannot go on from there; it says nothing about the layers that follow."
        )
