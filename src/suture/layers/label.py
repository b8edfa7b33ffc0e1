"""What a layer is called in a printed tree: its class and how it was configured, on a part of one line."""

from __future__ import annotations

import functools
import inspect
import re

from torch import nn

_BETWEEN_ARGUMENTS = re.compile(r",\s*(?![^()\[\]{}]*[)\]}])")
_FEATURES = re.compile(r"in_features=(\S+), out_features=(\S+?)(?=,|$)")
_SINGLE = re.compile(r"\((\d+),\)")


def label(layer: nn.Module) -> str:
    """The class of `layer` with what its `extra_repr` says, shortened; a flag or a choice at its default is left out.

    Example:
        >>> label(nn.Linear(64, 256)), label(nn.Linear(64, 256, bias=False))
        ('Linear(64 → 256)', 'Linear(64 → 256, bias=False)')
        >>> label(nn.RMSNorm(64, eps=1e-6))
        'RMSNorm(64, eps=1e-06)'
    """
    name = type(layer).__name__
    text = " ".join(layer.extra_repr().split())
    if not text:
        return name
    defaults = _defaults(type(layer))
    arguments = ", ".join(part for part in _BETWEEN_ARGUMENTS.split(text) if part not in defaults)
    arguments = _SINGLE.sub(r"\1", _FEATURES.sub(r"\1 → \2", arguments))
    return f"{name}({arguments})" if arguments else name


def amount(number: int) -> str:
    """A count for people.

    >>> amount(576), amount(331_776), amount(134_515_008)
    ('576', '331.8K', '134.5M')
    """
    if number < 1000:
        return str(number)
    value = number / 1000
    for unit in "KMB":
        # Compared after rounding, so that 999,960 is 1.0M and not 1000.0K.
        if round(value, 1) < 1000:
            return f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f}T"


@functools.lru_cache(maxsize=512)
def _defaults(kind: type[nn.Module]) -> frozenset[str]:
    """The flags and choices of a class at their defaults, as `extra_repr` writes them."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(f"{each.name}={each.default!r}" for each in parameters if isinstance(each.default, bool | str))
