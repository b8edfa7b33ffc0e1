from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from suture import layers as sl


def test_it_is_torchs_interpolation() -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 3, 8, 12)
    layer = sl.Interpolate(size=(5, 7), mode="bilinear", antialias=True)
    assert torch.equal(layer(image), F.interpolate(image, (5, 7), mode="bilinear", antialias=True))
    assert not torch.equal(layer(image), sl.Interpolate(size=(5, 7), mode="bilinear")(image))
    assert sl.Interpolate(scale_factor=1.5)(image).shape == (2, 3, 12, 18)


def test_a_size_or_a_factor_is_needed() -> None:
    with pytest.raises(ValueError, match="takes a size or a scale_factor; received size=None, scale_factor=None"):
        sl.Interpolate()
    with pytest.raises(ValueError, match=r"received size=2, scale_factor=2\.0"):
        sl.Interpolate(size=2, scale_factor=2.0)
