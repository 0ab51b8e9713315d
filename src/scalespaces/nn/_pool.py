"""Pooling, trust and resampling as layers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scalespaces._choices import SCALE_MODES, WINDOWS
from scalespaces.functional import avg_pool, blur_pool, global_pool, max_pool, resample, scale_pool, trust
from scalespaces.functional._pool import GLOBAL_MODES
from scalespaces.functional._resample import on_image
from scalespaces.functional._trust import SIZE, STATISTICS, level_statistics
from scalespaces.nn._base import Device, Dtype, Layer
from scalespaces.nn._norm import ScaleBatchNorm
from scalespaces.space import ScaleSpace
from scalespaces.space._numbers import Ints, as_plain
from scalespaces.theory._arguments import check_choice, check_integer


class _WindowPool(Layer):
    def __init__(
        self, kernel_size: Ints = 2, stride: Ints | None = None, padding: Ints = 0, window: str = "dilated"
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding = as_plain(kernel_size), as_plain(padding)
        self.stride = self.kernel_size if stride is None else as_plain(stride)
        self.window = check_choice("window", window, WINDOWS)


class ScaleAvgPool(_WindowPool):
    """Average over windows of space, in any number of axes; see :func:`scalespaces.functional.avg_pool`."""

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Pool."""
        return avg_pool(input, self.kernel_size, self.stride, self.padding, window=self.window)


class ScaleMaxPool(_WindowPool):
    """Maximum over windows of space, in any number of axes; see :func:`scalespaces.functional.max_pool`."""

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Pool."""
        return max_pool(input, self.kernel_size, self.stride, self.padding, window=self.window)


class ScaleBlurPool(Layer):
    """Binomial blur and stride, in any number of axes; see :func:`scalespaces.functional.blur_pool`."""

    def __init__(self, kernel_size: Ints = 3, stride: Ints = 2, window: str = "dilated") -> None:
        super().__init__()
        self.kernel_size, self.stride = as_plain(kernel_size), as_plain(stride)
        self.window = check_choice("window", window, WINDOWS)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Pool."""
        return blur_pool(input, self.kernel_size, self.stride, window=self.window)


class GlobalPool(Layer):
    """``"mean"`` or ``"max"`` over all of space, level by level."""

    def __init__(self, mode: str = "mean") -> None:
        super().__init__()
        self.mode = check_choice("mode", mode, GLOBAL_MODES)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Pool."""
        return global_pool(input, self.mode)


class Trust(Layer):
    r"""Combine levels by how far each can be trusted; see :func:`scalespaces.functional.trust`.

    .. math:: p(y) = \sum_k w_k\, \mathrm{softmax}(T r_k^{-\beta} z_k)(y), \qquad w = \mathrm{softmax}_k\, g(\phi_k)

    :math:`g` is a perceptron of ``hidden`` units, *the same for every level*, of eight statistics :math:`\phi_k` of the
    level's scores :math:`z_k` and features: how large and how decided the scores are, and how large, sparse and spread
    the features. The temperature follows the size :math:`r_k` of the features (their root mean square), because a
    network is too sure of views that excite it more than those it was trained on. Nothing depends on a level's number,
    so trust commutes with scale. New, it trusts all levels alike: :math:`T = 1, \beta = 0, g = 0`. It is trained with
    the network, or fitted afterwards by :func:`scalespaces.models.calibrate`.

    Shape:
        - Input: S levels of scores, (B, classes) or (B, classes, \*spatial), and S levels of features
        - Output: log-probabilities, (B, classes) or (B, classes, \*spatial)

    Example:
        >>> scores = scalespaces.ScaleSpace(torch.randn(3, 2, 10).unbind())
        >>> features = scalespaces.ScaleSpace(torch.randn(3, 2, 64).unbind())
        >>> Trust().weights(scores, features).tolist()[0]
        [0.3333333432674408, 0.3333333432674408, 0.3333333432674408]
    """

    def __init__(self, hidden: int = 16, device: Device = None, dtype: Dtype = None) -> None:
        super().__init__()
        self.hidden = check_integer("hidden", hidden, 1)
        place = {"device": device, "dtype": dtype}
        self.norm = ScaleBatchNorm(STATISTICS, affine=False, **place)
        self.first, self.second = nn.Linear(STATISTICS, hidden, **place), nn.Linear(hidden, 1, **place)
        self.temperature = nn.Parameter(torch.ones((), **place))
        self.exponent = nn.Parameter(torch.zeros((), **place))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Trust all levels alike."""
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def score(self, statistics: Tensor) -> Tensor:
        """The perceptron, on standardized statistics at the last axis."""
        return self.second(torch.tanh(self.first(statistics)))

    def confidence(self, statistics: ScaleSpace) -> ScaleSpace:
        r""":math:`g(\phi_k)`, levels of one channel."""
        return self.norm(statistics).map(lambda level: self.score(level.movedim(1, -1)).movedim(-1, 1))

    def factor(self, size: Tensor) -> Tensor:
        r""":math:`T r^{-\beta}`, by which scores are multiplied where the features have that size."""
        return self.temperature * size**-self.exponent

    def forward(
        self, scores: ScaleSpace, features: ScaleSpace, size: Sequence[int] | None = None, return_scale: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Combine; on the grid of level 0, or at ``size`` pixels of the image."""
        statistics = on_image(level_statistics(scores, features), size)
        factors = statistics.map(lambda level: self.factor(level[:, SIZE : SIZE + 1]))
        return trust(on_image(scores, size) * factors, self.confidence(statistics), return_scale=return_scale)

    def weights(self, scores: ScaleSpace, features: ScaleSpace, size: Sequence[int] | None = None) -> Tensor:
        r"""How far each level is trusted, (B, S) or (B, S, \*spatial): they add up to one over levels."""
        confidence = self.confidence(on_image(level_statistics(scores, features), size))
        return torch.cat(confidence.levels, 1).softmax(1)


class ScalePool(Layer):
    """Combine levels on the grid of level 0; arguments as in :func:`scalespaces.functional.scale_pool`.

    ``ScalePool("trust")`` is called with the levels' scores and features; its parameters are a :class:`Trust`.
    """

    trust: Trust | None

    def __init__(self, mode: str = "mean", return_scale: bool = False) -> None:
        super().__init__()
        self.mode, self.return_scale = check_choice("mode", mode, SCALE_MODES), return_scale
        self.trust = Trust() if mode == "trust" else None

    def forward(self, input: ScaleSpace, features: ScaleSpace | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Pool."""
        if self.trust is None:
            return scale_pool(input, self.mode, return_scale=self.return_scale)
        if features is None:
            raise TypeError('ScalePool("trust") takes the features of levels, too: pool(scores, features)')
        return self.trust(input, features, return_scale=self.return_scale)


class Resample(Layer):
    """Bring all levels to one grid, of level 0 or of ``size`` pixels; see :func:`~scalespaces.functional.resample`."""

    def __init__(self, size: Ints | None = None) -> None:
        super().__init__()
        self.size = as_plain(size)

    def forward(self, input: ScaleSpace) -> ScaleSpace:
        """Resample."""
        return resample(input, self.size)
