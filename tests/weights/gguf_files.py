"""Small GGUF files, written by the `gguf` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter, quants

Array = np.ndarray[Any, np.dtype[Any]]
F32 = GGMLQuantizationType.F32

QUANTIZED = [
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q5_0,
    GGMLQuantizationType.Q5_1,
    GGMLQuantizationType.Q8_0,
]
"""The types that the `gguf` package can write."""

READ_ONLY = [
    GGMLQuantizationType.Q2_K,
    GGMLQuantizationType.Q3_K,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q5_K,
    GGMLQuantizationType.Q6_K,
    GGMLQuantizationType.IQ4_NL,
    GGMLQuantizationType.IQ4_XS,
]
"""Types that the `gguf` package reads but does not write: tests fill their blocks with any bytes."""


def write_gguf(
    path: Path,
    tensors: Mapping[str, tuple[Array, GGMLQuantizationType]],
    metadata: Mapping[str, object] | None = None,
    architecture: str = "llama",
    endianess: GGUFEndian = GGUFEndian.LITTLE,
) -> Path:
    """A file with `tensors`: an array of float32 and the type to store it as, or bytes already in that type."""
    writer = GGUFWriter(path, architecture, endianess=endianess)
    for key, value in (metadata or {}).items():
        add_value(writer, key, value)
    for name, (values, kind) in tensors.items():
        stored = values if values.dtype == np.uint8 else quants.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: GGUFWriter, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, cast("list[object]", value))
        case _:
            raise TypeError(type(value))


def read_back(values: Array, kind: GGMLQuantizationType) -> Array:
    """What a reader gets for an array that was stored as `kind`."""
    stored = values if values.dtype == np.uint8 else quants.quantize(values, kind)
    return quants.dequantize(stored, kind)
