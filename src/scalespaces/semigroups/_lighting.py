"""Changes of light, and normalization."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scalespaces.semigroups._semigroup import Semigroup
from scalespaces.theory._arguments import check_choice

Light = tuple[float, float, bool]


class Lighting(Semigroup[Light]):
    r"""Changes of light, and the normalization that undoes them: :math:`L[f] = a f + b` or :math:`a N[f] + b`, a > 0.

    :math:`N[f] = (f - \text{mean}) / \text{deviation}` removes all earlier light, :math:`N[a f + b] = N[f]`, so that

    .. math:: (a, b, n)(a', b', n') = (a a', a b' + b, n')\ \text{without}\ n, \qquad (a, b, N)\,t = (a, b, N)

    A constant has no deviation; its normalization is zero.

    Args:
        gains, offsets: the values of a and of b; the elements are all pairs, without and with normalization.
        over: ``"space"`` normalizes each channel of an image, ``"channels"`` each pixel.
    """

    def __init__(self, gains: Sequence[float] = (1.0,), offsets: Sequence[float] = (0.0,), over: str = "space") -> None:
        if not gains or not offsets or min(gains) <= 0:
            raise ValueError(f"gains must be positive, and offsets not empty, got {gains} and {offsets}")
        self.gains, self.offsets = tuple(map(float, gains)), tuple(map(float, offsets))
        self.over = check_choice("over", over, ("space", "channels"))

    def compose(self, s: Light, t: Light) -> Light:
        """Light after light multiplies and adds; normalization ignores all light before it."""
        (a, b, normalize), (gain, offset, normalized) = s, t
        return s if normalize else (a * gain, a * offset + b, normalized)

    def act(self, s: Light, f: Tensor) -> Tensor:
        """The signal in that light."""
        gain, offset, normalize = s
        return gain * (self._normalize(f) if normalize else f) + offset

    def elements(self) -> Sequence[Light]:
        """All lights without normalization, then all with it."""
        return [(a, b, n) for n in (False, True) for a in self.gains for b in self.offsets]

    def orbit(self, f: Tensor, shape: Sequence[int], elements: Sequence[Light] | None = None) -> Tensor:
        raw, normal = self.window(f, shape), self.window(self._normalize(f), shape)  # one normalization for all
        lights = self.elements() if elements is None else elements
        return torch.stack([gain * (normal if normalize else raw) + offset for gain, offset, normalize in lights], 2)

    def _normalize(self, f: Tensor) -> Tensor:
        axes = [1] if self.over == "channels" else list(range(2, f.ndim))
        wide = f.float() if f.dtype in (torch.float16, torch.bfloat16) else f
        variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
        rounding = 16 * torch.finfo(wide.dtype).eps * wide.detach().abs().amax(axes, keepdim=True)
        varies = variance > rounding**2
        # The square root of zero has an infinite gradient, so take that of one where nothing varies.
        deviation = torch.where(varies, variance, 1.0).sqrt()
        return torch.where(varies, (wide - mean) / deviation, 0.0).to(f.dtype)
