"""Changing a model from outside: patterns and selections, adapters, groups of adapters."""

from __future__ import annotations
