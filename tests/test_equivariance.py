"""Whole networks: an image is downscaled, lifted again, and every level agrees."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from reference import MATRICES
from torch import nn

import scalespaces
from scalespaces.data import photograph
from scalespaces.models._convnet import random_network
from scalespaces.nn import (
    CausalLift,
    Lift,
    ScaleAvgPool,
    ScaleBatchNorm,
    ScaleBlurPool,
    ScaleConv1d,
    ScaleConv2d,
    ScaleConv3d,
    ScaleMaxPool,
)
from scalespaces.testing import assert_equivariant, equivariance_error, translation_error
from scalespaces.testing._equivariance import _resize, cropped, extended

BOTH = {"both": ((2.0, 0.0), (0.0, 3.0))}
EXACT = [
    # sampling, base, padding of the lift, padding of the filters
    ("pyramid", 2.0, "reflect", "zeros"),
    ("pyramid", 2.0, "zeros", "reflect"),
    ("pyramid", 2**0.5, "reflect", "zeros"),
    ("pyramid", 2**0.5, "replicate", "circular"),
    ("pyramid", 3.0, "circular", "replicate"),
    ("dense", 2.0, "zeros", "zeros"),
    (2, 2.0, "zeros", "zeros"),
    (4, 2.0, "zeros", "zeros"),
]


def network(sampling, base, lift_padding, padding_mode, *, scale_padding, num_levels=6, pool=None, width=6):
    """A lift, three layers with k = 2 filters and ReLU, one 2x2 pooling."""

    def conv(i, o):
        return ScaleConv2d(i, o, (2, 3, 3), padding_mode=padding_mode, scale_padding=scale_padding)

    lift = Lift(num_levels, base, sampling=sampling, padding_mode=lift_padding)
    first = [conv(3, width), nn.ReLU(), pool or ScaleAvgPool(2)]
    return nn.Sequential(lift, *first, conv(width, width), ScaleBatchNorm(width), nn.ReLU(), conv(width, width))


@pytest.mark.parametrize("size", [(127, 131), (128, 160)], ids=["prime", "even"])
@pytest.mark.parametrize("case", EXACT, ids=str)
def test_every_level_with_valid_scale_padding(case, size):
    levels, shifts = (5, [1]) if case[1] == 3 else (6, [1, 2])
    model = network(*case, scale_padding="valid", num_levels=levels)
    assert_equivariant(model, torch.rand(1, 3, *size), shifts=shifts)
    image = torch.rand(1, 3, *size, dtype=torch.float64)
    assert_equivariant(model.double(), image, tolerance=1e-12, shifts=shifts)


@pytest.mark.parametrize("scale_padding", ["zeros", "replicate"])
@pytest.mark.parametrize("case", [case for case in EXACT if case[1] != 3], ids=str)
def test_every_level_before_the_boundary(case, scale_padding):
    model = network(*case, scale_padding=scale_padding, num_levels=5)
    assert_equivariant(model, torch.rand(1, 3, 127, 131), shifts=[1])


@pytest.mark.parametrize(
    ("case", "pool"),
    [(case, pool) for case in (EXACT[0], EXACT[2], EXACT[5]) for pool in (ScaleMaxPool(2), ScaleAvgPool(3, 2, 1))]
    # Blur pooling repeats the border, which dense sampling respects at sizes 1 mod c^(S-1) only.
    + [(case, pool) for case in (EXACT[0], EXACT[2]) for pool in (ScaleBlurPool(), ScaleMaxPool(3, 2))],
    ids=str,
)
def test_every_pooling(case, pool):
    model = network(*case, scale_padding="valid", pool=pool, num_levels=5).double()
    assert_equivariant(model, torch.rand(1, 3, 61, 64, dtype=torch.float64), tolerance=1e-12)


@pytest.mark.parametrize(("padding", "size"), [("reflect", 65), ("replicate", 65), ("circular", 64)])
def test_dense_other_paddings_at_their_sizes(padding, size):
    options: Any = {"padding_mode": padding, "scale_padding": "valid"}
    layers = [ScaleConv2d(3, 4, (2, 3, 3), **options), nn.ReLU(), ScaleConv2d(4, 4, (2, 3, 3), **options)]
    model = nn.Sequential(Lift(5, sampling="dense", padding_mode=padding), *layers).double()
    image = torch.rand(1, 3, size, size, dtype=torch.float64)
    assert_equivariant(model, image, tolerance=1e-12)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(model, image[..., :-3, :-3], tolerance=1e-12)


@pytest.mark.parametrize(("conv", "size"), [(ScaleConv1d, (97,)), (ScaleConv3d, (17, 19, 16))])
@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
def test_other_dimensions(conv, size, sampling):
    kernel = (2, *[3] * len(size))
    first, last = conv(1, 3, kernel, scale_padding="valid"), conv(3, 3, kernel, scale_padding="valid")
    lift = Lift(4, sampling=sampling, padding_mode="zeros", dims=len(size))
    model = nn.Sequential(lift, first, nn.ReLU(), ScaleAvgPool(2), last).double()
    assert_equivariant(model, torch.rand(1, 1, *size, dtype=torch.float64), tolerance=1e-12)


@pytest.mark.parametrize(
    "layer", [{"stride": 2}, {"dilation": 2}, {"padding": "valid"}, {"padding": 0, "stride": 2}], ids=str
)
@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
def test_strides_dilations_and_unpadded_filters(sampling, layer):
    first = ScaleConv2d(1, 3, (2, 3, 3), scale_padding="valid", **layer)
    layers = [first, nn.ReLU(), ScaleConv2d(3, 3, (2, 3, 3), scale_padding="valid")]
    model = nn.Sequential(Lift(4, sampling=sampling, padding_mode="zeros"), *layers).double()
    assert_equivariant(model, torch.rand(1, 1, 61, 64, dtype=torch.float64), tolerance=1e-12)


def test_branches_whose_shift_grows_with_the_scale():
    """A strided filter beside a pooling: their grids differ by a quarter of a sample at every level, which is exact."""
    conv = ScaleConv2d(1, 1, (2, 3, 3), stride=2, scale_padding="valid").double()
    for sampling in ("pyramid", "dense"):  # where the dilated windows of dense levels leave more, it is cropped
        lift = Lift(4, sampling=sampling, padding_mode="zeros").double()

        def branches(image, lift=lift):
            x = lift(image)
            return conv(x) + ScaleAvgPool(2)(x.keep(3))

        assert_equivariant(branches, torch.rand(1, 1, 64, 48).double(), tolerance=1e-12)


def test_plain_pooling_is_not_equivariant_in_dense_sampling_but_is_on_a_pyramid():
    image = torch.rand(1, 3, 64, 64, dtype=torch.float64)
    pyramid, dense = (
        network(*case, scale_padding="valid", pool=ScaleAvgPool(2, window="plain"), num_levels=5).double()
        for case in (EXACT[0], EXACT[5])
    )
    assert_equivariant(pyramid, image, tolerance=1e-12)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(dense, image, tolerance=1e-3)


@pytest.mark.parametrize(("sampling", "base"), [("dense", 2**0.5), ("dense", 1.5), (3, 2.0)])
def test_modes_that_are_approximate(sampling, base):
    """Non-integer bases in dense sampling, odd oversampling: not exact, and bounded."""
    image = photograph(193).mean(1, keepdim=True).double()
    options: Any = {"padding_mode": "reflect", "scale_padding": "valid"}
    layers = [ScaleConv2d(1, 4, (2, 3, 3), **options), nn.ReLU(), ScaleConv2d(4, 4, (2, 3, 3), **options)]
    model = nn.Sequential(Lift(6, base, sampling=sampling), *layers).double()
    errors = equivariance_error(model, image, shifts=[1]).errors
    assert 1e-6 < np.nanmax(errors) < 0.05


@pytest.mark.parametrize("layers", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_the_papers_figure(layers):
    """Direct lift, reflect padding, 8 levels: below 0.01 on average until the boundary, then a blow-up.

    The photograph is reflected to 513 x 513, since reflection is the same at all scales at sizes 1 mod 2^7 only.
    """
    network = random_network(layers, channels=16, num_levels=8, method="direct", sampling="dense")
    table = equivariance_error(network, extended(photograph(), 2**7), downscaling="direct")
    assert table.boundary == 8 - layers
    assert table.before().mean() < 0.01
    assert min(table.errors[table.past() & ~table.past(9 - layers)]) > 0.1


def test_downscalings_differ_as_they_should():
    image = photograph(256)
    model = network(*EXACT[0], scale_padding="valid")
    exact, direct, pillow = (
        np.nanmean(equivariance_error(model, image, downscaling=d, shifts=[1, 2]).errors)
        for d in ("cascade", "direct", "pillow")
    )
    assert exact < 1e-6
    assert exact < direct < 0.1
    assert direct < pillow < 0.5


def test_sizes():
    """Images are fitted to a period, and Pillow's downscaling keeps registration."""
    image = torch.rand(1, 1, 40, 33)
    assert extended(image, 8).shape[2:] == (41, 33)
    assert extended(image, 8, rest=0).shape[2:] == (40, 40)
    torch.testing.assert_close(extended(image, 8)[..., 40, :], image[..., 38, :])
    torch.testing.assert_close(cropped(image, 8, 39), image[..., 3:36, :])
    ramp = torch.arange(65.0).expand(1, 1, 65, 65)
    small = _resize(ramp, 4.0)
    assert small.shape == (1, 1, 17, 17)
    torch.testing.assert_close(small[..., 3:-3], ramp[..., ::4, ::4][..., 3:-3], atol=1e-3, rtol=0)


def test_translations_by_part_of_a_sample():
    pyramid = network("pyramid", 2.0, "reflect", "zeros", scale_padding="valid", pool=nn.Identity(), num_levels=5)
    table = translation_error(pyramid, photograph(160), translations=[1])
    assert np.nanmin(table.errors) > 1e-3
    table = translation_error(Lift(4, sampling="dense"), torch.rand(1, 1, 18, 18))  # too narrow for the last one
    assert np.isnan(table.errors[-1]).all()
    assert np.nanmax(table.errors[:, 0]) == 0


def test_error_is_the_papers_equation():
    image = torch.rand(1, 1, 32, 32, dtype=torch.float64)
    model = nn.Sequential(Lift.paper(4), ScaleConv2d(1, 2, (2, 3, 3))).double()
    table = equivariance_error(model, image, downscaling="direct")
    whole = model(image)
    for i, el in enumerate((1, 2, 3)):
        small = model(scalespaces.downscale(image, el, method="direct"))
        for k in range(4 - el):
            expected = whole.levels[k + el][..., :: 2**el, :: 2**el]
            error = (expected - small.levels[k]).norm() / expected.norm()
            assert table.errors[i, k] == pytest.approx(error.item())
    assert np.isnan(table.errors[2, 1])


def test_outputs_that_are_not_finite_or_without_counterpart_are_not_equivariant():
    def spoiled(image, k):
        x = scalespaces.lift(image, 4)
        level = x.levels[k].index_fill(3, torch.tensor([1]), float("nan"))
        return x.replace((*x.levels[:k], level, *x.levels[k + 1 :]))

    def short(image):  # by one sample wherever the image is large
        x = scalespaces.lift(image, 3)
        return x if image.shape[-1] < 64 else x.replace(tuple(level[..., :-1] for level in x.levels))

    image = torch.rand(1, 1, 64, 64)
    for model in (short, *(partial(spoiled, k=k) for k in range(4))):
        with pytest.raises(AssertionError, match="by inf: values that are not finite, sizes"):
            assert_equivariant(model, image, shifts=[1])
    assert np.nanmax(equivariance_error(short, image, shifts=[1]).errors) == 0


def test_arguments_of_the_downscaling_are_completed_from_the_output_or_the_lift():
    assert_equivariant(lambda image: scalespaces.lift(image, 4, 1.5), torch.rand(1, 3, 64, 64))
    with pytest.raises(TypeError, match="the model must return a ScaleSpace"):
        equivariance_error(nn.Identity(), torch.rand(1, 3, 64, 64))
    model, image = nn.Sequential(Lift(3, zero_scale=0.5)), torch.rand(1, 1, 32, 32)
    assert_equivariant(model, image, padding_mode="reflect")
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(model, image, zero_scale=0.25)


@pytest.mark.parametrize("name", ["stretch", "both", "sheared", "quincunx"])
def test_anisotropic_and_affine_lifts(name):
    """Axes scaled apart: at every pixel. Turned or sheared, the borders turn too: where the image is zero near them."""
    lift = Lift(3, (MATRICES | BOTH)[name], sampling="dense", padding_mode="zeros", truncation=3)
    first, last = ScaleConv2d(1, 4, (2, 3, 3), bias=False, scale_padding="valid"), ScaleConv2d(4, 4, 3, bias=False)
    net = nn.Sequential(lift, first, nn.ReLU(), last).double()
    image = torch.zeros(1, 1, 130, 150, dtype=torch.float64)
    image[..., 58:72, 68:82] = torch.randn(14, 14, dtype=torch.float64)
    assert_equivariant(net, image if name in ("sheared", "quincunx") else torch.randn_like(image), tolerance=1e-12)


def test_causal_spaces_are_downscaled_causally():
    model = nn.Sequential(CausalLift(4, zero_scale=0.5, stages=3), ScaleConv1d(1, 4, (1, 5), stride=2)).double()
    signal = torch.randn(1, 1, 101, dtype=torch.float64)
    assert_equivariant(model, signal, tolerance=1e-12)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(model, signal, stages=4)
    with pytest.raises(ValueError, match="only the downscaling"):
        equivariance_error(model, signal, downscaling="direct")
    with pytest.raises(ValueError, match="counted back from its end"):
        translation_error(model, signal)
