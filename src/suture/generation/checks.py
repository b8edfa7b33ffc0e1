"""Refusals of values that make no sense, in sentences that hold the value."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import SupportsIndex


def ensure_integer(name: str, value: object, least: int) -> int:
    """`value` as an int. Raises `TypeError` where it is not a whole number, `ValueError` where it is below `least`."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be a whole number of at least {least}, but is {value!r}.")
    if (whole := operator.index(value)) < least:
        raise ValueError(f"{name} must be at least {least}, but is {whole}.")
    return whole


def ensure_real(name: str, value: object, least: float, most: float = math.inf) -> float:
    """`value` as a float. Raises `TypeError` where it is no number, `ValueError` outside `least` to `most` or NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, but is {value!r}.")
    number = float(value)
    if not (math.isfinite(number) and least <= number <= most):
        limits = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise ValueError(f"{name} must be a finite number, {limits}, but is {number}.")
    return number
