"""The grid: a value that is checked once, moves as the samples do, and is remembered."""

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import GEOMETRY, QUINCUNX, refusals

from scalespaces import lift
from scalespaces.space import Grid, ScaleSpace
from scalespaces.space._grid import window_of

CAUSAL: dict[str, Any] = {"origins": ((0.0,),) * 3, "unit": (1.0,), "axes": (2,), "first_level": 0, "causal": True}


def grid(**changes: Any) -> Grid:
    arguments: dict[str, Any] = {**GEOMETRY, "axes": (2, 3), **changes}
    return Grid(**arguments)


class TestValue:
    def test_is_frozen_hashable_and_equal_by_value(self):
        a, b = grid(), grid()
        assert a == b
        assert {a: 1}[b] == 1
        with pytest.raises(FrozenInstanceError):
            a.steps = (1.0, 1.0, 1.0)  # pyright: ignore[reportAttributeAccessIssue]
        others = {"base": 3.0, "steps": (1.0,) * 3, "unit": (1.0, 1.0), "axes": (1, 2), "first_level": 0}
        for name, value in others.items():
            assert a != grid(**{name: value}) == a.replace(**{name: value})

    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_sizes_are_not_part_of_it(self, sampling):
        x, y = (lift(torch.rand(2, 3, *size), 3, sampling=sampling) for size in ((16, 16), (37, 9)))
        assert x.grid == y.grid
        assert x.grid != lift(torch.rand(2, 3, 16, 16), 2, sampling=sampling).grid


TURNED = grid(base=QUINCUNX, steps=(1.0,) * 3)

test_refusals = refusals(
    (lambda: grid(steps=(1.0, 2.0)), "each level needs a step and an origin"),
    (lambda: grid(steps=(1.0, 0.0, 2.0)), "steps must be positive"),
    (lambda: grid(axes=(2, 2)), "differ from each other"),
    (lambda: grid(axes=(2, 3, 4)), "one number for each of 3 axes"),
    (lambda: grid(unit=(1.0,)), "one number for each of 2 axes"),
    (lambda: grid(origins=((0.0, 0.0), (0.0, 0.0), (0.0,))), "one number for each of 2 axes"),
    *[(lambda n=n: grid().keep(n), "can keep 1 to 3") for n in (0, 4)],
    (lambda: ScaleSpace([torch.zeros(1, 1, 1)] * 2, axes=(3,)), "axes must be from 0 to 2"),
    (lambda: TURNED.permute((1, None)), "none can go alone"),
    (lambda: TURNED.slide(window_of((3, 3), (1, 2))), "one stride for all axes"),
)


taps = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)), min_size=2)


class TestMoves:
    @given(taps.map(lambda axes: axes[:2]), st.sampled_from([2.0, 3.0, 1.5]), st.booleans())
    def test_slide_puts_samples_at_the_centers_of_their_windows(self, axes, base, dilated):
        size, stride, padding, dilation = (list(numbers) for numbers in zip(*axes, strict=True))
        old, window = grid(base=base), window_of(size, stride, padding, dilation)
        new = old.slide(window, dilated=dilated)
        assert (new.base, new.steps, new.axes, new.first_level) == (old.base, old.steps, old.axes, old.first_level)
        for k, step in enumerate(old.steps):
            apart = base ** (k - 1) / step if dilated else 1.0
            for a, (n, s, p, d) in enumerate(axes):
                for i in range(3):
                    samples = i * s + apart * (d * np.arange(n) - p)
                    center = old.unit[a] * (old.origins[k][a] + step * samples.mean())
                    assert new.unit[a] * (new.origins[k][a] + step * i) == pytest.approx(center)
        if dilated:
            shift = tuple((p - d * (n - 1) / 2) / s for n, s, p, d in axes)
            back = new.refine(tuple(stride), shift)
            assert back.unit == pytest.approx(old.unit)
            np.testing.assert_allclose(back.origins, old.origins, atol=1e-12)

    def test_a_matrix_base_moves_by_its_powers(self):
        old = TURNED.replace(first_level=0)
        new = old.slide(window_of((3, 5)))
        for k in range(3):
            moved = np.linalg.matrix_power(np.array(QUINCUNX), k) @ [1, 2]
            np.testing.assert_allclose(np.array(new.origins[k]) - old.origins[k], moved)

    def test_the_others(self):
        x, causal = grid(), grid(**CAUSAL)
        assert causal.slide(window_of((3,), 2, "same", causal=True)) == causal.replace(unit=(2.0,))
        assert x.keep(3) is x
        assert x.keep(2) == grid(steps=(0.5, 1.0), origins=x.origins[:2])
        assert x.permute((3, 1)) == grid(axes=(3, 1))
        assert x.permute((None, 1)) == grid(axes=(1,), unit=(3.0,), origins=((0.5,), (1.0,), (2.0,)))
        assert x.flatten() == grid(axes=(), unit=(), origins=((), (), ()))
        assert x.average((True, False)) == grid(unit=(1.0, 3.0), origins=((0.0, 0.5), (0.0, 1.0), (0.0, 2.0)))
        assert x.shift([(2, 0)] * 3) == grid(origins=((1.25, 0.5), (2.5, 1.0), (5.0, 2.0)))
        assert x.align((1.0, 1.0), (0.0, 2.0)) == grid(steps=(1.0,) * 3, unit=(1.0, 1.0), origins=((0.0, 2.0),) * 3)

    def test_equal_arguments_give_the_same_object(self):
        window, shift = window_of((3, 3), 2, 1), ((2.0, 2.0), (0.5, 0.0))
        one, other = (
            [g.slide(window), g.refine(*shift), g.keep(2), g.permute((3, 2)), g.flatten(), g.spacings()]
            for g in (grid(), grid())
        )
        assert list(map(id, one)) == list(map(id, other))
