"""Rotary position embedding as configurations write it down, read and written.

transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 `rope_parameters` and reads both. GGUF has keys of
its own, and files of Llama 3.1 and later hold the effect of their scaling as a tensor instead.
"""

from __future__ import annotations

import torch

from suture.layers.rotary import LinearScaling, Llama3Scaling, RotaryScaling
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.fields import Fields

DEFAULT_BASE = 10_000.0
GLOBAL_BASE = 1_000_000.0
"""Of full attention, where sliding attention has a base of its own."""
GGUF_FACTORS = "rope_freqs.weight"


def read_rotary(fields: Fields, max_positions: int) -> tuple[float, RotaryScaling | None]:
    """The base and the scaling that a `config.json` says.

    Raises:
        CheckpointError: The scaling is of another kind than linear and llama3, or has fields that are not understood.

    >>> read_rotary(Fields({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, "here"), 64)
    (500.0, LinearScaling(factor=2.0))
    """
    base = fields.number("rope_theta", DEFAULT_BASE)
    settings = fields.nested("rope_parameters") or fields.nested("rope_scaling")
    fields.only("rope_scaling")
    fields.only("partial_rotary_factor", 1.0)
    return _read_settings(settings, base, max_positions)


def read_rotary_of_two_kinds(
    fields: Fields, max_positions: int
) -> tuple[tuple[float, RotaryScaling | None], tuple[float, RotaryScaling | None]]:
    """Base and scaling of full attention, then those of sliding attention, as a `config.json` of Gemma 3 says them.

    Raises:
        CheckpointError: As `read_rotary`.

    >>> old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    >>> read_rotary_of_two_kinds(Fields(old, "here"), 64)
    ((1000000.0, LinearScaling(factor=8.0)), (10000.0, None))
    >>> new = {"full_attention": {"rope_theta": 500.0}, "sliding_attention": {"rope_theta": 100.0}}
    >>> read_rotary_of_two_kinds(Fields({"rope_parameters": new}, "here"), 64)
    ((500.0, None), (100.0, None))
    """
    full_base = fields.number("rope_theta", GLOBAL_BASE)
    sliding_base = fields.number("rope_local_base_freq", DEFAULT_BASE)
    of_full, of_sliding = fields.nested("rope_scaling"), None
    if (settings := fields.nested("rope_parameters")) is not None:
        of_full = settings.nested("full_attention") or of_full
        of_sliding = settings.nested("sliding_attention")
        settings.finish()
    return (
        _read_settings(of_full, full_base, max_positions),
        _read_settings(of_sliding, sliding_base, max_positions),
    )


def _read_settings(settings: Fields | None, base: float, max_positions: int) -> tuple[float, RotaryScaling | None]:
    if settings is None:
        return base, None
    base = settings.number("rope_theta", base)
    settings.only("partial_rotary_factor", 1.0)
    kind = settings.text("rope_type", settings.text("type", "default"))
    settings.ignore(["type"])
    scaling: RotaryScaling | None = None
    if kind == "linear":
        scaling = LinearScaling(settings.number("factor"))
    elif kind == "llama3":
        scaling = Llama3Scaling(
            settings.number("factor"),
            settings.number("low_freq_factor"),
            settings.number("high_freq_factor"),
            settings.integer("original_max_position_embeddings", max_positions),
        )
    elif kind != "default":
        raise CheckpointError(
            f"{settings.where}: the rotary scaling {kind!r} is not understood; default, linear and llama3 are. "
            "The model would compute something else without it, so it is not loaded."
        )
    settings.finish()
    return base, scaling


def write_rotary(base: float, scaling: RotaryScaling | None) -> dict[str, object]:
    """The fields of `config.json` for a base and a scaling, as transformers 4 and 5 both read them.

    >>> write_rotary(500.0, LinearScaling(2.0))
    {'rope_theta': 500.0, 'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}}
    """
    settings: dict[str, object] | None
    if scaling is None:
        settings = None
    elif isinstance(scaling, LinearScaling):
        settings = {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, Llama3Scaling):
        settings = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        }
    else:
        raise CheckpointError(
            f"The rotary scaling {scaling!r} has no name in a transformers configuration, so the model cannot be "
            "saved as one. Those that have: LinearScaling and Llama3Scaling."
        )
    return {"rope_theta": base, "rope_scaling": settings}


def read_gguf_rotary(
    fields: Fields, checkpoint: Checkpoint, head_dim: int, max_positions: int
) -> tuple[float, RotaryScaling | None]:
    """The base and the scaling that a GGUF file says, `fields` being the keys of its architecture.

    Raises:
        CheckpointError: The scaling is not understood.
    """
    base = fields.number("rope.freq_base", DEFAULT_BASE)
    fields.only("rope.dimension_count", head_dim)
    fields.only("rope.scaling.attn_factor", 1.0)
    fields.ignore(["rope.scaling.finetuned"])
    kind = fields.text("rope.scaling.type", "none")
    old_factor = fields.number("rope.scale_linear", 1.0)
    factor = fields.number("rope.scaling.factor", old_factor)
    original = fields.integer("rope.scaling.original_context_length", max_positions)
    if GGUF_FACTORS in checkpoint.tensors:
        return base, _llama3_of_factors(checkpoint, base, head_dim)
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{fields.where}: the rotary scaling {kind!r} (from {original} positions) is not understood; none and "
            "linear are. The model would compute something else without it, so it is not loaded."
        )
    return base, LinearScaling(factor) if factor != 1.0 else None


def _llama3_of_factors(checkpoint: Checkpoint, base: float, head_dim: int) -> Llama3Scaling:
    """The settings whose effect a file stores as the number that divides each frequency.

    The converter keeps only the effect. Every Llama that has it was trained with the same three other settings, so the
    largest divisor tells the rest, and whether it does is checked.
    """
    stored = checkpoint.tensors[GGUF_FACTORS]
    divisors = torch.empty(stored.shape)
    stored.copy_to(divisors)
    scaling = Llama3Scaling(float(divisors.max()), 1.0, 4.0, 8192)
    frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if divisors.shape != frequencies.shape or not torch.allclose(
        frequencies / scaling(frequencies), divisors, rtol=1e-4
    ):
        raise CheckpointError(
            f"{checkpoint.path}: the rotary factors in {GGUF_FACTORS} are not those of Llama 3.1 or 3.2 "
            f"({scaling}), and no others are understood. Load a transformers folder of the model instead."
        )
    return scaling
