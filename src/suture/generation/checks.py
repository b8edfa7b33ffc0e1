"""Refusals of values that make no sense, in sentences that hold the value."""

from __future__ import annotations

import math


def ensure_integer(name: str, value: object, least: int) -> int:
    """`value` as an int. Raises `TypeError` where it is not a whole number, `ValueError` where it is below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of at least {least}, but is {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, but is {value}.")
    return value


def ensure_real(name: str, value: object, least: float, most: float = math.inf) -> float:
    """`value` as a float. Raises `TypeError` where it is no number, `ValueError` outside `least` to `most` or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, but is {value!r}.")
    if not (math.isfinite(value) and least <= value <= most):
        limits = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise ValueError(f"{name} must be a finite number, {limits}, but is {value}.")
    return float(value)
