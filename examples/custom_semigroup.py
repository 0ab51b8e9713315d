"""A semigroup of your own, and an equivariant layer built from it.

A sensor saturates: everything brighter than s is recorded as s. Saturation cannot be undone and two in a row act like
the lower one, so saturations are a semigroup and not a group.
"""

import torch

from scalespaces.nn import SemigroupConv
from scalespaces.semigroups import Semigroup


class Saturations(Semigroup[float]):
    """Recordings by sensors that saturate at different levels."""

    def compose(self, s, t):
        """First t, then s."""
        return min(s, t)

    def act(self, s, f):
        """The image as such a sensor records it."""
        return f.clamp(max=s)

    def elements(self):
        """Where to evaluate."""
        return [1.0, 0.8, 0.6, 0.4, 0.2]


def main() -> None:
    """Show that the layer is equivariant: for a saturated image its output is that for the image, shifted."""
    torch.manual_seed(0)
    layer = SemigroupConv(3, 2, Saturations(), kernel_size=(16, 16), dtype=torch.float64)
    image = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    saturations = layer.semigroup.elements()
    print("evaluated at          ", saturations)
    with torch.no_grad():
        whole, saturated = layer(image), layer(layer.semigroup.act(0.6, image))
    expected = whole[..., [saturations.index(layer.semigroup.compose(s, 0.6)) for s in saturations]]
    print("image                 ", [round(v, 3) for v in whole[0, 0].tolist()])
    print("image saturated at 0.6", [round(v, 3) for v in saturated[0, 0].tolist()])
    print("largest difference from [psi * f](s t):", (saturated - expected).abs().max().item())


if __name__ == "__main__":
    main()
