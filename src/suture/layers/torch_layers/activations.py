"""Activations: functions of each element, of any shape, which stays; then those that look along one dimension."""

from __future__ import annotations

import torch

from suture.layers.torch_layers.call import OfOneTensor

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


# Of each element: negative values are cut or bent


class ReLU(torch.nn.ReLU, OfOneTensor):
    """`max(x, 0)`.

    >>> ReLU()(torch.tensor([-2.0, 3.0]))
    tensor([0., 3.])
    """


class ReLU6(torch.nn.ReLU6, OfOneTensor):
    """`min(max(x, 0), 6)`.

    Source: MobileNets, https://arxiv.org/abs/1704.04861.

    >>> ReLU6()(torch.tensor([-2.0, 3.0, 8.0]))
    tensor([0., 3., 6.])
    """


class LeakyReLU(torch.nn.LeakyReLU, OfOneTensor):
    """`x` where positive, `negative_slope * x` elsewhere.

    >>> LeakyReLU(0.5)(torch.tensor([-2.0, 3.0]))
    tensor([-1.,  3.])
    """


class PReLU(torch.nn.PReLU, OfOneTensor):
    """`x` where positive, `weight * x` elsewhere; of one learned weight, or one for each channel: (B, C, ...).

    Source: https://arxiv.org/abs/1502.01852.

    >>> PReLU(init=0.5)(torch.tensor([-2.0, 3.0])).detach()
    tensor([-1.,  3.])
    """


class RReLU(torch.nn.RReLU, OfOneTensor):
    """`x` where positive, elsewhere `x` times a slope, drawn from `lower` to `upper` while training, else their mean.

    Source: https://arxiv.org/abs/1505.00853.

    >>> RReLU(0.25, 0.75).eval()(torch.tensor([-2.0, 3.0]))
    tensor([-1.,  3.])
    """


class ELU(torch.nn.ELU, OfOneTensor):
    """`x` where positive, `alpha * (exp(x) - 1)` elsewhere.

    Source: https://arxiv.org/abs/1511.07289.

    >>> ELU()(torch.tensor([-1.0, 3.0]))
    tensor([-0.6321,  3.0000])
    """


class SELU(torch.nn.SELU, OfOneTensor):
    """`ELU` with the two constants that bring activations towards zero mean and unit variance.

    Source: https://arxiv.org/abs/1706.02515.

    >>> SELU()(torch.tensor([-1.0, 1.0]))
    tensor([-1.1113,  1.0507])
    """


class CELU(torch.nn.CELU, OfOneTensor):
    """`x` where positive, `alpha * (exp(x / alpha) - 1)` elsewhere: smooth for every alpha.

    Source: https://arxiv.org/abs/1704.07483.

    >>> CELU(alpha=2.0)(torch.tensor([-2.0, 3.0]))
    tensor([-1.2642,  3.0000])
    """


class Threshold(torch.nn.Threshold, OfOneTensor):
    """`x` where it is greater than `threshold`, `value` elsewhere.

    >>> Threshold(1.0, value=-5.0)(torch.tensor([1.0, 3.0]))
    tensor([-5.,  3.])
    """


# Of each element: multiplied by a gate that is a function of itself


class SiLU(torch.nn.SiLU, OfOneTensor):
    """`x * sigmoid(x)`, also called swish.

    Source: https://arxiv.org/abs/1702.03118.

    >>> SiLU()(torch.tensor([-1.0, 1.0]))
    tensor([-0.2689,  0.7311])
    """


class GELU(torch.nn.GELU, OfOneTensor):
    """`x` times the normal distribution function, or with `approximate="tanh"` its approximation.

    Source: https://arxiv.org/abs/1606.08415.

    >>> GELU()(torch.tensor([-1.0, 1.0]))
    tensor([-0.1587,  0.8413])
    """


class Mish(torch.nn.Mish, OfOneTensor):
    """`x * tanh(softplus(x))`.

    Source: https://arxiv.org/abs/1908.08681.

    >>> Mish()(torch.tensor([-1.0, 1.0]))
    tensor([-0.3034,  0.8651])
    """


class Hardswish(torch.nn.Hardswish, OfOneTensor):
    """`x * hardsigmoid(x)`: `SiLU` in three straight pieces and a parabola.

    Source: MobileNetV3, https://arxiv.org/abs/1905.02244.

    >>> Hardswish()(torch.tensor([-3.0, 1.5, 3.0]))
    tensor([-0.0000, 1.1250, 3.0000])
    """


# Of each element: between bounds, or flattened


class Sigmoid(torch.nn.Sigmoid, OfOneTensor):
    """`1 / (1 + exp(-x))`, from 0 to 1.

    >>> Sigmoid()(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.7311])
    """


class Hardsigmoid(torch.nn.Hardsigmoid, OfOneTensor):
    """`x / 6 + 1 / 2` between 0 and 1: the sigmoid in three straight pieces.

    >>> Hardsigmoid()(torch.tensor([-3.0, 0.0, 9.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """


class LogSigmoid(torch.nn.LogSigmoid, OfOneTensor):
    """`log(sigmoid(x))`, exact also where the sigmoid would be 0.

    >>> LogSigmoid()(torch.tensor([0.0, -200.0]))
    tensor([  -0.6931, -200.0000])
    """


class Tanh(torch.nn.Tanh, OfOneTensor):
    """The hyperbolic tangent, from -1 to 1.

    >>> Tanh()(torch.tensor([-1.0, 1.0]))
    tensor([-0.7616,  0.7616])
    """


class Hardtanh(torch.nn.Hardtanh, OfOneTensor):
    """`x` between `min_val` and `max_val`, these two outside.

    >>> Hardtanh()(torch.tensor([-2.0, 0.5]))
    tensor([-1.0000,  0.5000])
    """


class Tanhshrink(torch.nn.Tanhshrink, OfOneTensor):
    """`x - tanh(x)`.

    >>> Tanhshrink()(torch.tensor([-1.0, 1.0]))
    tensor([-0.2384,  0.2384])
    """


class Softsign(torch.nn.Softsign, OfOneTensor):
    """`x / (1 + abs(x))`, from -1 to 1.

    >>> Softsign()(torch.tensor([-1.0, 3.0]))
    tensor([-0.5000,  0.7500])
    """


class Softplus(torch.nn.Softplus, OfOneTensor):
    """`log(1 + exp(beta * x)) / beta`, a smooth ReLU.

    >>> Softplus()(torch.tensor([0.0, 100.0]))
    tensor([  0.6931, 100.0000])
    """


class Softshrink(torch.nn.Softshrink, OfOneTensor):
    """`x` moved towards zero by `lambd`, zero where it is nearer than that.

    >>> Softshrink(1.0)(torch.tensor([-3.0, 0.5]))
    tensor([-2.,  0.])
    """


class Hardshrink(torch.nn.Hardshrink, OfOneTensor):
    """`x`, zero where it is nearer to zero than `lambd`.

    >>> Hardshrink(1.0)(torch.tensor([-3.0, 0.5]))
    tensor([-3.,  0.])
    """


# Along one dimension


class Softmax(torch.nn.Softmax, OfOneTensor):
    """Exponentials that add up to one along `dim`: any shape.

    >>> Softmax(dim=-1)(torch.tensor([0.0, 0.0, 1.0]))
    tensor([0.2119, 0.2119, 0.5761])
    """


class Softmin(torch.nn.Softmin, OfOneTensor):
    """`Softmax` of `-x`: any shape.

    >>> Softmin(dim=-1)(torch.tensor([0.0, 0.0, -1.0]))
    tensor([0.2119, 0.2119, 0.5761])
    """


class LogSoftmax(torch.nn.LogSoftmax, OfOneTensor):
    """The logarithm of `Softmax`, exact also where that would be 0: any shape.

    >>> LogSoftmax(dim=-1)(torch.tensor([0.0, 200.0]))
    tensor([-200.,    0.])
    """


class Softmax2d(torch.nn.Softmax2d, OfOneTensor):
    """`Softmax` over the channels at each place: (B, C, H, W).

    >>> Softmax2d()(torch.zeros(1, 4, 1, 1)).flatten()
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """


class GLU(torch.nn.GLU, OfOneTensor):
    """The first half of `dim` times the sigmoid of the second half: (..., 2 * D) to (..., D).

    Raises torch's `RuntimeError` where `dim` is odd. With the sigmoid as a branch of its own: `sl.GatedFeedForward`.

    Source: https://arxiv.org/abs/1612.08083.

    >>> GLU()(torch.tensor([3.0, 4.0, 0.0, 0.0]))
    tensor([1.5000, 2.0000])
    """
