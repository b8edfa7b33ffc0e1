"""Adapters that can be merged: computed into the layer that they adapt, so that the model is as fast as without them.

Merging is surgery too. The target is swapped for a new layer that does what both did, and the adapter leaves the
wiring. The target itself waits with that edit, and unmerging puts it back: the same object, the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import nn

from suture.layers.composite import Composite
from suture.layers.edit import swap, undo_swaps
from suture.layers.ownership import wired_sites
from suture.layers.recording import EditError, on_rollback, recording
from suture.layers.swap import Swap
from suture.surgery.adapter import Adapter
from suture.surgery.group import AdapterGroup

if TYPE_CHECKING:
    from suture.layers.node import Slot

T = TypeVar("T", bound=nn.Module)
M_co = TypeVar("M_co", bound="MergeableAdapter[Any]", covariant=True)


class MergeableAdapter(Adapter[T]):
    """An adapter of a leaf that can be computed into it. Derive from it and write `merged`.

    Several may stand around one leaf, and be injected, merged, unmerged and ejected in every order.

    Example:
        >>> import torch
        >>> from suture import layers as sl
        >>> class Louder(sl.Sum, MergeableAdapter[nn.Bilinear]):
        ...     def __init__(self, target: nn.Bilinear) -> None:
        ...         with self.setup_adapter(target):
        ...             super().__init__(target, one=sl.Lambda(lambda x, y: 1.0))
        ...     def merged(self, layer: nn.Bilinear) -> nn.Bilinear:
        ...         louder = nn.Bilinear(layer.in1_features, layer.in2_features, layer.out_features)
        ...         louder.weight, louder.bias = layer.weight, nn.Parameter(layer.bias.detach() + 1)
        ...         return louder
        >>> model = sl.Chain(mix=sl.Bilinear(2, 2, 1))
        >>> louder, bare = Louder(model["mix"]).inject(model), model["mix"]
        >>> louder.merge()
        >>> type(model[0]).__name__, list(model.state_dict())
        ('Bilinear', ['mix.weight', 'mix.bias'])
        >>> louder.eject()
        >>> model[0] is bare
        True
    """

    if TYPE_CHECKING:
        _merge: list[Swap]

    def merged(self, layer: T) -> T:
        """A new layer that does what this adapter around `layer` does. The author writes it; `layer` stays as it is."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is merged: it has no merged(layer).")

    @property
    def is_merged(self) -> bool:
        """Whether it is computed into its target now."""
        swaps: list[Swap] = self.__dict__.get("_merge", [])
        return any(change.live for change in swaps)

    def merge(self) -> None:
        """Computes it into its target and takes it out of the wiring; what it needs to come back, it keeps.

        Raises:
            EditError: it is merged already or not injected, it was edited since, or something stands between it and its
                target.
        """
        if not self.is_injected or self.is_merged:
            state = "is merged already" if self.is_injected else "is not injected"
            raise EditError(f"{type(self).__name__} {self.adapter_name!r} {state}, so it cannot be merged.")
        self._refuse_edited()
        with recording(author=self) as record:
            composite, slot = self._target_place()
            swap(composite, slot, self.merged(cast("T", slot.layer)))
            wrap = self._wrap()
            swap(wrap.composite, wrap.slot, wrap.holes[0].slot.layer)
            self._set_merge(list(record.swaps))

    def unmerge(self) -> None:
        """Puts the target back as it was, and itself around it.

        Raises:
            EditError: it is not merged, or another edit is in the way, which is named.
        """
        if not self.is_merged:
            raise EditError(f"{type(self).__name__} {self.adapter_name!r} is not merged, so it cannot be unmerged.")
        later = self._merged_later()
        with recording(author=self):
            for adapter in (*reversed(later), self):
                undo_swaps(adapter._merge)
                adapter._set_merge([])
            for adapter in later:
                adapter.merge()

    def merge_anew(self) -> None:
        """Merges it with the weights that it has now, if it is merged."""
        if self.is_merged:
            with recording():
                self.unmerge()
                self.merge()

    def eject(self) -> None:
        if self.is_merged:
            self.unmerge()
        super().eject()

    def take_as_target(self, layer: nn.Module) -> None:
        """Accepts a layer of the target's class and shapes, such as one into which another adapter was merged."""
        target = self.target
        if type(layer) is not type(target) or _shapes(layer) != _shapes(target):
            super().take_as_target(layer)
        around = cast("Composite", self)
        slots = around.node.slots_of(target)
        with recording() as record:
            for slot in list(slots):
                record.fill(around, slot, layer, slot.name, None)
                record.own(around, slot.name, layer)
            on_rollback(self.__dict__.__setitem__, "_adapted", (target,))
            self.__dict__["_adapted"] = (layer,)

    def _wrap(self) -> Swap:
        """The edit that put this adapter around its target."""
        adapter, swaps = cast("nn.Module", self), self._injected or []
        wrap = next((change for change in swaps if change.live and change.new is adapter), None)
        if wrap is None or len(wrap.holes) != 1:
            raise EditError(
                f"{type(self).__name__} cannot be merged: it does not call its target at just one place of its own."
            )
        if wrap.slot.layer is not adapter:
            raise EditError(
                f"{type(self).__name__} cannot be merged: a {type(wrap.slot.layer).__name__} stands in its place."
            )
        return wrap

    def _refuse_edited(self) -> None:
        hole = self._wrap().holes[0].slot
        sites = wired_sites(cast("nn.Module", self), frozenset({id(hole.layer)}))
        inside = {id(slot.layer) for _, slot in sites if slot is not hole}
        if inside | {id(self)} != {id(layer) for layer in self.brought}:
            raise EditError(
                f"{type(self).__name__} {self.adapter_name!r} at {cast('Composite', self).path!r} cannot be merged: it "
                f"was edited since it went in, and what was put in or taken out would be lost. Undo those edits first."
            )

    def _target_place(self) -> tuple[Composite, Slot]:
        """Where the leaf is called, inside this adapter and others that can be merged."""
        hole = self._wrap().holes[0]
        layer = hole.slot.layer
        if isinstance(layer, MergeableAdapter):
            return cast("MergeableAdapter[Any]", layer)._target_place()
        if layer is None or isinstance(layer, Composite):
            what = f"the {type(layer).__name__} at {layer.path!r}" if isinstance(layer, Composite) else "nothing"
            raise EditError(
                f"{type(self).__name__} {self.adapter_name!r} cannot be merged into its target: {what} stands where "
                f"that stood. Take it out first."
            )
        return hole.composite, hole.slot

    def _merged_later(self) -> list[MergeableAdapter[Any]]:
        """The adapters that were merged into the same leaf after this one."""
        authors = dict.fromkeys(change.author for change in self._merge[0].slot.swaps)
        others = [cast("MergeableAdapter[Any]", author) for author in authors if isinstance(author, MergeableAdapter)]
        numbers = {other: other._merge[0].number for other in others if other.is_merged}
        return sorted((other for other in numbers if numbers[other] > numbers[self]), key=numbers.__getitem__)

    def _set_merge(self, swaps: list[Swap]) -> None:
        on_rollback(self.__dict__.__setitem__, "_merge", self.__dict__.get("_merge", []))
        self.__dict__["_merge"] = swaps


class MergeableGroup(AdapterGroup[M_co]):
    """Adapters that are merged and unmerged together as well."""

    @property
    def is_merged(self) -> bool:
        """Whether all are merged."""
        return bool(self.adapters) and all(adapter.is_merged for adapter in self.adapters)

    def merge(self) -> None:
        """Computes all into the layers that they adapt; all or none. Raises `EditError` as each would."""
        with recording():
            for adapter in self.adapters:
                adapter.merge()

    def unmerge(self) -> None:
        """Puts all the layers back as they were; all or none. Raises `EditError` as each would."""
        with recording():
            for adapter in reversed(self.adapters):
                adapter.unmerge()


def _shapes(layer: nn.Module) -> dict[str, Any]:
    return {name: parameter.shape for name, parameter in layer.named_parameters()}
