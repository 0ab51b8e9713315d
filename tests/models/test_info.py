"""The tables: the supplement's shapes, and counts against formulas."""

import copy
import math

import pytest
import torch
from models.networks import RESNETS

from scalespaces import ScaleSpace
from scalespaces.models import create_model, summarize
from scalespaces.theory._kernels import get_kernel

BLOCKS = [(992, 3, 1), (496, 1, 2), (248, 2, 4), (248, 4, 4), (124, 4, 8), *[(124, 8, 8)] * 4]  # side, widths over N
DEEP = (0, 1, 3, 7, 8)


def met(depth, levels):
    """Pairs of an output level and a filter level that meets a level."""
    return sum(1 for k in range(levels) for el in range(depth) if k + el < levels)


def lift_multiply_adds(levels, pixels, channels=3):
    """The blurs of a dense, direct lift: two passes with kernels of 4 standard deviations."""
    taps = [len(get_kernel("discrete_gaussian")(0.25 * (4**k - 1), truncation=4.0)) for k in range(1, levels)]
    assert max(taps, default=33) == 33
    return 2 * channels * pixels * sum(taps)


@pytest.mark.parametrize(("name", "levels"), [("densenet", 1), ("s_densenet", 4)])
def test_the_densenets_table(name, levels):
    summary = summarize(create_model(name, preset="paper"), (3, 96, 96))
    shapes = [(layer.layer, layer.shape) for layer in summary.layers]
    depth = 3 if levels == 4 else 1
    assert [row for row in shapes if row[0].startswith(("dense", "transition", "linear"))] == [
        ("dense_12[1,3,3] x 3", (levels, 96, 96, 39)),
        (f"transition[{depth},3,3]", (levels, 48, 48, 19)),
        ("dense_24[1,3,3] x 3", (levels, 48, 48, 94)),
        (f"transition[{depth},3,3]", (levels, 24, 24, 47)),
        ("dense_48[1,3,3] x 3", (levels, 24, 24, 213)),
        ("linear", (1, 2)),
    ]
    assert [row[1] for row in shapes if row[0] == "long skip"] == [(levels, 48, 48, 22), (levels, 24, 24, 69)]
    assert ("scale-pool", (1, 213)) in shapes


@pytest.mark.parametrize("name", RESNETS)
def test_the_resnets_table(name):
    depth, levels, width = RESNETS[name]
    summary = summarize(create_model(name, preset="paper"), (3, 992, 992))
    rows = [layer for layer in summary.layers if "res[" in layer.layer]
    for n, (row, (side, _, factor)) in enumerate(zip(rows, BLOCKS, strict=True)):
        kind = "no-res" if n == 8 else "res"
        assert row.layer == f"{kind}[{depth if n in DEEP else 1},3,3]"
        assert row.shape == (levels, side, side, factor * width)
    assert [(layer.layer, layer.shape) for layer in summary.layers[-3:]] == [
        ("scale-pool", (1, 124, 124, 8 * width)),
        ("corr[1,1,1]", (1, 124, 124, 19)),
        ("bilinear upsample", (1, 992, 992, 19)),
    ]
    total = lift_multiply_adds(levels, 992**2) + (8 * width * 19) * 124**2
    for n, (side, before, after) in enumerate(BLOCKS):
        channels = 3 if n == 0 else before * width
        out = after * width
        total += 9 * side**2 * (levels * channels * out + met(depth if n in DEEP else 1, levels) * out**2)
    assert summary.multiply_adds == total


def test_a_pyramid_counts_the_samples_it_has_and_folds_filters_of_several_levels():
    """Folding pays in the first block: 25 taps for each coarse sample in place of 36, and the rows at the borders."""
    names = ("s_resnet_no_interaction", "s_resnet")
    summaries = [summarize(create_model(name), (3, 992, 992)).layers for name in names]
    single, deep = (next(layer for layer in layers if layer.layer.startswith("res")) for layers in summaries)
    samples = [n**2 for n in (992, 496, 248, 124)]
    own = 9 * sum(samples) * (3 * 16 + 16 * 16)
    assert single.multiply_adds == own
    outputs = 6  # two correlations, two normalizations, a ReLU, a sum
    assert math.isclose(single.activations_mib, outputs * sum(samples) * 16 * 4 / 2**20)
    plain, folded = (own + taps * sum(samples[1:]) * 16 * 16 for taps in (36, 25))
    assert folded < deep.multiply_adds < folded + 0.2 * (plain - folded)


@pytest.mark.parametrize("name", ["s_densenet", "p4m_densenet", "s_resnet"])
def test_activations_are_what_the_layers_return(name):
    """Count them on the computer's own memory: every tensor a module returns, once. The model is left alone."""
    model = create_model(name).eval()
    image, seen, before = torch.rand(1, 3, 64, 64), {}, copy.deepcopy(model.state_dict())

    def hook(module, args, output):
        for tensor in output.levels if isinstance(output, ScaleSpace) else [output]:
            seen[tensor.data_ptr(), tuple(tensor.shape)] = tensor

    hooks = [module.register_forward_hook(hook) for module in model.modules()]
    with torch.no_grad():
        model(image)
    for handle in hooks:
        handle.remove()
    seen.pop((image.data_ptr(), tuple(image.shape)), None)
    expected = sum(tensor.numel() * tensor.element_size() for tensor in seen.values()) / 2**20
    summary = summarize(model.train(), (3, 64, 64))
    assert math.isclose(summary.activations_mib, expected)
    assert summary.parameters == sum(p.numel() for p in model.parameters())
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("shape", [(3, 96), (3, 0, 96)])
def test_wrong_shapes(shape):
    with pytest.raises(ValueError, match="an input needs channels, height and width, got"):
        summarize(create_model("densenet"), shape)
