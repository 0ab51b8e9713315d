"""The correlation over any semigroup as a layer, and the example of a semigroup of one's own."""

import ast
import copy
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algebra import CLOSE, rand
from torch import nn

from scalespaces import semigroups as sg
from scalespaces.nn import SemigroupConv

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_semigroup.py"


def network(semigroup: sg.Semigroup[Any], window: tuple[int, ...], support: list[Any]) -> nn.Sequential:
    last = SemigroupConv(4, 3, sg.Lifted(semigroup, support), [len(support)])
    return nn.Sequential(SemigroupConv(2, 4, semigroup, window), nn.BatchNorm1d(4), nn.ReLU(), last).double()


@pytest.mark.parametrize(
    ("semigroup", "shape", "window", "support", "t"),
    [
        (sg.P4M((5, 5), padding_mode="circular"), (5, 5), (3, 3), [(g, (0, 1)) for g in range(8)], (6, (1, 2))),
        (sg.CausalShifts(12), (12,), (3,), [0, 1, 2], 2),
        (sg.ScaleTranslations((16,), 4), (16,), (3,), [(0, (-1,)), (0, (0,)), (1, (0,)), (1, (1,))], (0, (5,))),
        (sg.ScaleTranslations((16,), 4), (16,), (3,), [(0, (-1,)), (0, (0,)), (1, (0,)), (1, (1,))], (1, (3,))),
    ],
)
def test_networks_are_equivariant(semigroup, shape, window, support, t):
    """net(L_t f)(s) = net(f)(st), wherever neither meets the end of the truncation."""
    net = network(semigroup, window, support).eval()
    f = rand(2, 2, *shape)
    place = {s: i for i, s in enumerate(semigroup.elements())}
    with torch.no_grad():
        whole, moved = net(f), net(semigroup.act(t, f))
    compared = 0
    for s in place:
        after = semigroup.compose(s, t)
        if after in place and all(semigroup.compose(y, r) in place for y in support for r in (s, after)):
            torch.testing.assert_close(moved[..., place[s]], whole[..., place[after]], **CLOSE)
            compared += 1
    assert compared > len(place) // 3


def test_it_is_a_module_like_any_other():
    layer = SemigroupConv(2, 3, sg.CausalShifts(5), [2])
    assert "CausalShifts" in repr(layer)
    other = copy.deepcopy(layer)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(1, 2, 5)
    assert torch.equal(layer(x), other(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("semigroup", "shape"),
    [
        (sg.Translations((4, 5)), (6, 6)),
        (sg.P4M((5, 5), padding_mode="circular"), (5, 5)),
        (sg.ScaleTranslations((8, 8), 2), (8, 8)),
        (sg.AffineContractions([np.eye(2) / 2], [(0, 0), (1, 1)]), (8, 8)),
        (sg.CausalShifts(6), (8,)),
        (sg.Occlusions(torch.ones(3, 6, 6)), (6, 6)),
        (sg.Lighting(), (6, 6)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_is_traced_without_breaks(semigroup, shape):
    net = network(semigroup, (3,) * len(shape), list(semigroup.elements())[:2]).eval()
    f = rand(1, 2, *shape)
    compiled: Any = torch.compile(net, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(f), net(f))


def test_bad_arguments_are_named():
    number: Any = 3
    with pytest.raises(ValueError, match="kernel_size has an integer for each axis"):
        SemigroupConv(1, 1, sg.CausalShifts(3), number)
    with pytest.raises(TypeError, match="derive yours from it"):
        SemigroupConv(1, 1, number, [3])


def test_the_example_of_ones_own_semigroup(capsys):
    """It runs, it is equivariant, and the semigroup is defined in under 20 lines."""
    tree = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    definition = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    assert definition.end_lineno is not None
    assert definition.end_lineno - definition.lineno + 1 < 20
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    last = capsys.readouterr().out.splitlines()[-1]
    assert float(last.split(":")[-1]) < 1e-12
