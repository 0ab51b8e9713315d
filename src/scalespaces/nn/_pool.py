"""Pooling and resampling as layers."""

from torch import Tensor

from scalespaces.functional import avg_pool, blur_pool, global_pool, max_pool, resample, scale_pool
from scalespaces.functional._pool import GLOBAL_MODES, SCALE_MODES, WINDOWS
from scalespaces.nn._base import Layer
from scalespaces.nn._trust import Trust
from scalespaces.space import ScaleSpace
from scalespaces.space._numbers import Ints, as_plain
from scalespaces.theory._arguments import check_choice


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
