"""Nested masks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scalespaces.semigroups._semigroup import Semigroup


class Occlusions(Semigroup[int]):
    r"""Nested masks, :math:`L_s[f] = m_s f`: each hides what those before it hide, and more.

    Hiding twice is the same as hiding once, and the order does not matter: :math:`st = \max(s, t)`. An occlusion is
    self-adjoint, so here, as in a group, transforming the filter is equivariant too. ``masks`` are
    ``(number of masks, *X)``, true or 1 where the signal is visible.
    """

    def __init__(self, masks: Tensor) -> None:
        if masks.ndim < 2 or not ((masks == 0) | (masks == 1)).all():
            raise ValueError(f"masks are (number, *X) of zeros and ones, got {masks.dtype} of {tuple(masks.shape)}")
        self.masks = masks.bool()
        if (self.masks[1:] & ~self.masks[:-1]).any():
            raise ValueError("masks must be nested, each inside the one before, got one that shows more than it")

    def compose(self, s: int, t: int) -> int:
        """The mask that hides more."""
        return max(s, t)

    def act(self, s: int, f: Tensor) -> Tensor:
        """The signal where it is visible, and zero elsewhere, even in place of NaN."""
        if not 0 <= s < len(self.masks):
            raise ValueError(f"masks are numbered 0 to {len(self.masks) - 1}, got {s}")
        return torch.where(self._masks_for(f)[s], f, 0.0)

    def elements(self) -> Sequence[int]:
        """The numbers of the masks."""
        return range(len(self.masks))

    def full_orbit(self, f: Tensor, shape: Sequence[int]) -> Tensor:
        masks = self._masks_for(f)[(slice(None), *map(slice, shape))]
        return torch.where(masks, self.window(f, shape).unsqueeze(2), 0.0)

    def _masks_for(self, f: Tensor) -> Tensor:
        if f.shape[2:] != self.masks.shape[1:]:
            raise ValueError(f"signals must be (B, C, *{tuple(self.masks.shape[1:])}), got {tuple(f.shape)}")
        return self.masks.to(f.device)
