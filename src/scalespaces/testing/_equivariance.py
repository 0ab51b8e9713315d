"""The three questions one can ask of a network: how far from equivariant, how far under translations, and is it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scalespaces.testing._compare import judge
from scalespaces.testing._moves import Downscaling, downscaled, translated, whole_moves
from scalespaces.testing._table import EquivarianceTable
from scalespaces.testing._watch import Model, Watched, is_flat

_NO_LIFT = "No nn.Lift ran, so levels whose filters reach past the last one were not found, and were compared. "


@torch.no_grad()
def equivariance_error(
    model: Model,
    image: Tensor,
    *,
    downscaling: Downscaling = "cascade",
    shifts: Sequence[int] | None = None,
    **lift_arguments: Any,
) -> EquivarianceTable:
    r"""The paper's equation "error" for a network :math:`\Phi` from images to scale-spaces.

    .. math:: L(c^{-\ell}, k) = \frac{\|\Phi[f](k+\ell, c^\ell \cdot) - \Phi[S_{c^{-\ell}}[f]](k, \cdot)\|_2}
                                     {\|\Phi[f](k+\ell, c^\ell \cdot)\|_2}

    The *image* is downscaled and lifted again. Every level is measured; ``left_out`` of the table names those that
    cannot be exact. Their filters reach past the last lifted level, or they see levels finer than the image
    (``first_level < 0``), which are interpolated. They are found if the model calls a lift that is a module,
    :class:`~scalespaces.nn.Lift` or :class:`~scalespaces.nn.CausalLift`, by hiding its levels one by one.

    Args:
        model: a network with a method ``scores(image)``, whose levels' scores are measured; or any function from
            ``(B, C, *spatial)`` to a ScaleSpace. Its modules run in evaluation mode.
        image: the image :math:`f`.
        downscaling: ``"cascade"`` is :math:`D^\ell`, the generator; ``"direct"`` the paper's
            :math:`S_{c^{-\ell}}`; ``"pillow"`` Pillow's antialiased bicubic resize, on the same grid; or a function
            of the image and :math:`\ell`.
        shifts: the :math:`\ell` of the rows. Default: all that leave a level and an image large enough for the network.
        **lift_arguments: base, zero_scale, kernel and padding_mode of the downscaling. Default: those of the model's
            lift, if it has one.

    Example:
        >>> image = torch.rand(1, 1, 64, 64, dtype=torch.float64)
        >>> equivariance_error(scalespaces.nn.Lift(3), image)
                   l |       k=0       k=1       k=2
        --------------------------------------------
                   1 |  0.00e+00  0.00e+00
                   2 |  0.00e+00
    """
    with Watched(model) as watched:
        return downscaled(watched, image, downscaling, shifts, lift_arguments)[0].table


@torch.no_grad()
def translation_error(
    model: Model,
    image: Tensor,
    *,
    translations: Sequence[int] | None = None,
    margin: float | None = 0.25,
    axis: int = -1,
) -> EquivarianceTable:
    r"""How far the network is from commuting with translations along an axis.

    Level :math:`k` of the moved image is compared with level :math:`k` of the image, read at the moved position: by
    linear interpolation where that lies between samples.

    Args:
        model: as in :func:`equivariance_error`; its levels must have positions, so no score vectors.
        image: the image, wide enough that windows of it can move.
        translations: in pixels. Default: powers of the base up to the last level's.
        margin: part of each side of a level that is left out because of the borders. If a level sees more of the image
            than that, borders are measured. None leaves out exactly the samples that see a border, which are found by
            changing the pixels along the borders.
        axis: the axis of the image along which it moves, counted from the last, -1.
    """
    with Watched(model) as watched:
        return translated(watched, image, translations, margin, axis).table


@torch.no_grad()
def assert_equivariant(
    model: Model,
    image: Tensor,
    *,
    tolerance: float | None = None,
    shifts: Sequence[int] | None = None,
    translations: bool | Sequence[int] = False,
    **lift_arguments: Any,
) -> None:
    r"""Fail unless the network commutes with downscaling: at every level, in every channel, at every sample.

    *Compared* are level :math:`k + \ell` of the image and level :math:`k` of the image downscaled by :math:`D^\ell`,
    borders included. The largest difference in a channel is divided by the channel's spread, a standard deviation over
    images: how much its values differ, at the same level and position, between the downscaled image and its negative
    turned round. A bias adds no spread, nor does a fixed pattern, so they hide no error. Score vectors
    ``(B, classes)`` are compared class by class.

    *Left out* are the levels that :func:`equivariance_error` leaves out.

    *Refused*, with a ValueError, are tests that prove nothing: no level is left to compare, or those that are have a
    single sample along an axis; the image is constant; no channel of the output depends on it, for instance because all
    ReLUs are dead (some may be constant, and must then agree); or rounding is larger than the tolerance, because a
    channel's values are many times larger than its spread. Then use float64.

    Scaling keeps the first pixel in its place, so a network that adds something to each sample by its index may commute
    with it. ``translations=True`` finds such networks.

    Args:
        model: as in :func:`equivariance_error`.
        image: the image. Noise is best: it has all frequencies.
        tolerance: the largest difference, relative to the channel's spread. Default: 1e-9 in float64, else 1e-4. A
            difference of 16 roundings of the channel's largest value is always allowed.
        shifts: as in :func:`equivariance_error`.
        translations: also move the image along each axis by these numbers of pixels, which must be whole samples of
            every level; True takes the smallest such number. Samples that see a border are left out. Score vectors
            have no positions, and are refused.
        **lift_arguments: as in :func:`equivariance_error`.

    Example:
        >>> net = torch.nn.Sequential(scalespaces.nn.Lift(4), scalespaces.nn.ScaleConv2d(3, 8, (2, 3, 3)))
        >>> assert_equivariant(net, torch.rand(1, 3, 64, 48))
    """
    with Watched(model) as watched:
        found, uneven, smaller = downscaled(watched, image, "cascade", shifts, lift_arguments)
        if is_flat(image) or (smaller is not None and is_flat(smaller)):
            raise ValueError(
                "an image that is constant, or becomes so when it is downscaled, shows nothing of a network, got shape "
                f"{tuple(image.shape)}; use noise (torch.rand) or a photograph, of more pixels"
            )
        if uneven:
            raise AssertionError(f"not equivariant: {uneven}; use the same layers at all levels.\n{found.table}")
        judge(found, tolerance, "" if watched.lifts else _NO_LIFT)
        if translations:
            for axis in range(2 - image.ndim, 0):
                moves = whole_moves(watched, image, None if translations is True else translations, axis)
                judge(translated(watched, image, moves, None, axis), tolerance)
