"""Correlation on the symmetries of the square against loops over everything, and its laws under all of them."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from algebra import EXACT, SAME, assert_same, rand
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import refusals
from torch import Tensor
from torch.testing import assert_close

from scalespaces import ScaleSpace, lift
from scalespaces import semigroups as sg
from scalespaces.functional import scale_conv
from scalespaces.semigroups._p4 import Group, expand_filters, order, products, transform_image

GROUPS: list[Group] = ["p4", "p4m"]
FIELDS, HIGH, WIDE = st.integers(1, 2), st.integers(3, 4), st.integers(3, 5)

# (row, column) -> (row, column): the picture turned counterclockwise reads from the right; mirrored first for the rest.
TURNS = [lambda r, c: (r, c), lambda r, c: (c, -r), lambda r, c: (-r, -c), lambda r, c: (-c, r)]
MIRRORS = [lambda r, c: (r, -c), lambda r, c: (c, r), lambda r, c: (-r, c), lambda r, c: (-c, -r)]
COORDINATES = [*TURNS, *MIRRORS]


def compose(g: int, h: int) -> int:
    """The element with matrix R_g R_h, by its values at two points."""
    for number, candidate in enumerate(COORDINATES):
        if all(candidate(*point) == COORDINATES[g](*COORDINATES[h](*point)) for point in ((1, 0), (1, 2))):
            return number
    raise AssertionError


def correlate_naively(x: Tensor, weight: Tensor, n: int, *, lifting: bool, padding: int) -> np.ndarray:
    """out(h, z) = sum over i, g, y of psi(g, y) f(hg, R_h y + z), y seen from the filter's center, zeros outside."""
    size = weight.shape[-1]
    center = Fraction(size - 1, 2)
    batch, _, height, width = x.shape
    f, psi = x.numpy(), weight.numpy()
    rows, columns = height + 2 * padding - size + 1, width + 2 * padding - size + 1
    out = np.zeros((batch, len(psi) * n, rows, columns))
    for b, o, h, r, c in itertools.product(range(batch), range(len(psi)), range(n), range(rows), range(columns)):
        for i, g, u, v in itertools.product(range(psi.shape[1]), range(1 if lifting else n), range(size), range(size)):
            y = COORDINATES[h](u - center, v - center)
            p, q = int(y[0] + r + center - padding), int(y[1] + c + center - padding)
            if 0 <= p < height and 0 <= q < width:
                channel = i if lifting else i * n + compose(h, g)
                out[b, o * n + h, r, c] += psi[(o, i, u, v) if lifting else (o, i, g, u, v)] * f[b, channel, p, q]
    return out


def act_naively(x: Tensor, n: int, element: int) -> np.ndarray:
    """L_g[f](h, z) = f(gh, R_g z)."""
    f = x.numpy()
    batch, channels, height, width = f.shape
    rows, columns = (width, height) if element % 2 else (height, width)
    out = np.zeros((batch, channels, rows, columns))
    for field, h, r, c in itertools.product(range(channels // n), range(n), range(rows), range(columns)):
        z = COORDINATES[element](r - Fraction(rows - 1, 2), c - Fraction(columns - 1, 2))
        p, q = int(z[0] + Fraction(height - 1, 2)), int(z[1] + Fraction(width - 1, 2))
        source = compose(element, h) if n > 1 else 0
        out[:, field * n + h, r, c] = f[:, field * n + source, p, q]
    return out


class TestGroup:
    @pytest.mark.parametrize("element", range(8))
    @pytest.mark.parametrize("size", [(3, 3), (4, 4), (2, 5)])
    def test_action_on_images_and_fields(self, element, size):
        image = rand(2, 3, *size)
        assert_close(transform_image(image, element), torch.as_tensor(act_naively(image, 1, element)), **EXACT)
        for group in GROUPS if element < 4 else GROUPS[1:]:
            n = order(group)
            field = rand(1, 2 * n, *size)
            assert_close(
                sg.transform_field(field, element, group=group), torch.as_tensor(act_naively(field, n, element))
            )

    @given(st.sampled_from(GROUPS), st.integers(0, 7), st.integers(0, 7))
    def test_the_action_is_one(self, group, g, h):
        """L_g L_h = L_hg: f(h (g s)) first reads at g s."""
        n = order(group)
        g, h = g % n, h % n
        field = rand(1, n, 3, 4)
        twice = sg.transform_field(sg.transform_field(field, h, group=group), g, group=group)
        assert_close(twice, sg.transform_field(field, products(group)[h][g], group=group), **EXACT)


class TestCorrelation:
    @given(st.sampled_from(GROUPS), st.booleans(), st.integers(1, 3), st.integers(0, 2), FIELDS, FIELDS, HIGH, WIDE)
    def test_equals_the_loops(self, group, lifting, size, padding, inputs, outputs, height, width):
        n = order(group)
        x = rand(1, inputs * (1 if lifting else n), height, width)
        weight = rand(outputs, inputs, *(() if lifting else (n,)), size, size)
        got = sg.p4_conv(x, weight, group=group, lifting=lifting, padding=padding)
        expected = correlate_naively(x, weight, n, lifting=lifting, padding=padding)
        assert_close(got, torch.as_tensor(expected), **EXACT)

    @given(
        group=st.sampled_from(GROUPS),
        lifting=st.booleans(),
        size=st.sampled_from([1, 2, 3, 4, 5]),
        dilation=st.integers(1, 2),
        padding=st.integers(0, 3),
        mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
        groups=st.integers(1, 2),
        shape=st.sampled_from([(9, 9), (10, 10), (9, 12)]),
    )
    def test_commutes_with_every_symmetry(self, group, lifting, size, dilation, padding, mode, groups, shape):
        n = order(group)
        x = rand(2, 2 * (1 if lifting else n), *shape)
        weight = rand(4, 2 // groups, *(() if lifting else (n,)), size, size)
        settings: Any = {"group": group, "lifting": lifting, "groups": groups}
        settings |= {"padding": padding, "dilation": dilation, "padding_mode": mode}
        bias = rand(4)
        out = sg.p4_conv(x, weight, bias, **settings)
        for element in range(n):
            moved = transform_image(x, element) if lifting else sg.transform_field(x, element, group=group)
            assert_close(
                sg.p4_conv(moved, weight, bias, **settings), sg.transform_field(out, element, group=group), **EXACT
            )

    @given(st.integers(6, 13), st.integers(1, 4), st.integers(2, 3), st.integers(0, 2), st.integers(1, 2))
    def test_strides_keep_the_symmetry_when_the_last_window_ends_with_the_image(
        self, n, size, stride, padding, dilation
    ):
        rest = n + 2 * padding - dilation * (size - 1) - 1
        assume(rest >= 0)
        x, weight = rand(1, 8, n, n), rand(1, 1, 8, size, size)
        settings: Any = {"group": "p4m", "stride": stride, "padding": padding, "dilation": dilation}
        out = sg.p4_conv(x, weight, **settings)
        errors = []
        for g in range(8):
            turned = sg.p4_conv(sg.transform_field(x, g, group="p4m"), weight, **settings)
            errors.append(float((turned - sg.transform_field(out, g, group="p4m")).abs().max()))
        assert max(errors) < 1e-12 if rest % stride == 0 else max(errors) > 1e-3

    def test_even_filters_padded_to_the_same_size_do_not_commute(self):
        x, weight = rand(1, 4, 6, 6), rand(1, 1, 4, 2, 2)
        turned = sg.p4_conv(sg.transform_field(x, 1, group="p4"), weight, group="p4", padding="same")
        out = sg.transform_field(sg.p4_conv(x, weight, group="p4", padding="same"), 1, group="p4")
        assert (turned - out).abs().max() > 1e-3

    @pytest.mark.parametrize("lifting", [True, False])
    @pytest.mark.parametrize("group", GROUPS)
    def test_gradients(self, group, lifting):
        n = order(group)
        x = rand(1, 1 if lifting else n, 3, 3).requires_grad_()
        weight = rand(1, 1, *(() if lifting else (n,)), 3, 3).requires_grad_()
        bias = rand(1).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda *args: sg.p4_conv(*args, group=group, lifting=lifting), (x, weight, bias), fast_mode=True
        )


class TestOnLevels:
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    @pytest.mark.parametrize(("group", "lifting"), list(itertools.product(GROUPS, [True, False])))
    def test_is_the_scale_space_correlation_with_the_bank(self, sampling, group, lifting):
        """Whose levels are expanded one by one, and whose first elements are the filters themselves."""
        n, weight, bias = order(group), rand(3, 2, *(() if lifting else (order(group),)), 2, 3, 3), rand(3)
        levels = [expand_filters(weight[..., level, :, :], group, lifting=lifting) for level in range(2)]
        bank = torch.stack(levels, 2)
        assert_close(bank[::n], weight if lifting else weight.flatten(1, 2), **SAME)
        x = lift(rand(1, bank.shape[1], 9, 9), 3, sampling=sampling)
        got = sg.p4_conv(x, weight, bias, group=group, lifting=lifting, scale_padding="valid")
        assert_same(got, scale_conv(x, bank, bias.repeat_interleave(n), scale_padding="valid"))

    def test_a_tensor_is_a_space_of_one_level(self):
        x, weight = rand(1, 16, 9, 9), rand(3, 2, 8, 3, 3)
        on_levels = sg.p4_conv(ScaleSpace((x,)), weight, group="p4m", stride=2)
        assert_close(sg.p4_conv(x, weight, group="p4m", stride=2), on_levels.levels[0], **SAME)


class TestGroupPool:
    @pytest.mark.parametrize("mode", ["max", "mean"])
    @pytest.mark.parametrize("group", GROUPS)
    def test_against_loops_and_the_law(self, group, mode):
        n = order(group)
        x = rand(2, 3 * n, 4, 5)
        got = sg.group_pool(x, mode, group=group)
        for field in range(3):
            part = x[:, field * n : field * n + n]
            assert_close(got[:, field], part.amax(1) if mode == "max" else part.sum(1) / n, **EXACT)
        for element in range(n):
            pooled = sg.group_pool(sg.transform_field(x, element, group=group), mode, group=group)
            assert_close(pooled, transform_image(got, element), **EXACT)
        space = lift(x, 2, sampling="pyramid")
        levels = sg.group_pool(space, mode, group=group)
        assert levels.steps == space.steps
        assert_close(levels.levels[1], sg.group_pool(space.levels[1], mode, group=group), **SAME)


def correlate_on_a_torus(f, psi, n, size):
    """[psi * f](h, z) = sum_{g,y} psi(g, y) f(hg, R_h y + z); of an image, f is the same for every element."""
    out = np.zeros((psi.shape[0], size, n, n))
    for h, z0, z1 in itertools.product(range(size), range(n), range(n)):
        for o, i, g, y0, y1 in np.ndindex(*psi.shape):
            a, b = COORDINATES[h](y0, y1)
            out[o, h, z0, z1] += psi[o, i, g, y0, y1] * f[i, compose(h, g), (a + z0) % n, (b + z1) % n]
    return out


@pytest.mark.parametrize(("group", "size"), [(sg.P4, 4), (sg.P4M, 8)])
def test_square_symmetries_give_the_group_correlation(group, size):
    n = 4
    symmetries = group((n, n), padding_mode="circular")
    f, psi = rand(1, 2, n, n), rand(3, 2, 2, 3)
    out = sg.semigroup_correlation(f, psi, symmetries)
    lifted = correlate_on_a_torus(f[0].numpy()[:, None].repeat(size, 1), psi.numpy()[:, :, None], n, size)
    np.testing.assert_allclose(out[0].reshape(lifted.shape), lifted, atol=1e-12)
    psi = rand(2, 3, size, 2, 2)
    support = [(g, (y, x)) for g in range(size) for y in range(2) for x in range(2)]
    out = sg.semigroup_correlation(out, psi.flatten(2), sg.Lifted(symmetries, support))
    expected = correlate_on_a_torus(lifted, psi.numpy(), n, size)
    np.testing.assert_allclose(out[0].reshape(expected.shape), expected, atol=1e-12)


WRONG: Any = "p8"


test_refusals = refusals(
    (lambda: sg.transform_field(rand(1, 8, 3, 3), 0, group=WRONG), "group is one of p4, p4m, got 'p8'"),
    (lambda: sg.transform_field(rand(1, 8, 3, 3), 4, group="p4"), "numbered 0 to 3, got 4"),
    (lambda: sg.transform_field(rand(1, 6, 3, 3), 0, group="p4m"), r"fields \* 8, ...\), got shape \(1, 6, 3, 3\)"),
    (lambda: transform_image(rand(1, 8, 3, 3), -1), "numbered 0 to 7, got -1"),
    (lambda: sg.group_pool(rand(1, 8, 3, 3), "sum", group="p4"), "mode is one of max, mean"),
    (lambda: expand_filters(rand(1, 1, 4, 3, 2), "p4"), "only square filters can be turned, got one of 3 x 2"),
    (lambda: expand_filters(rand(1, 1, 3, 3), "p4"), r"are \(F_out, F_in, 4, \[k,\] h, w\), got shape"),
    (lambda: expand_filters(rand(1, 1, 8, 3, 3), "p4"), r"got shape \(1, 1, 8, 3, 3\); lifting=True is for"),
    (lambda: expand_filters(rand(1, 1, 4, 2, 3, 3), "p4", lifting=True), r"filters of p4 are \(F_out, F_in, \[k"),
    (lambda: sg.p4_conv(rand(1, 4, 5, 5), rand(1, 1, 4, 2, 3, 3), group="p4"), "of 2 levels needs a ScaleSpace"),
    (lambda: sg.p4_conv(rand(1, 3, 5, 5), rand(1, 2, 4, 3, 3), group="p4"), "2 fields of 4 channels, 8 together"),
    (lambda: sg.p4_conv(rand(1, 8, 5, 5), rand(1, 2, 3, 3), group="p4", lifting=True), "2 plain channels, got 8"),
    (lambda: sg.p4_conv(rand(4, 5, 5), rand(1, 1, 4, 3, 3), group="p4"), "height, width"),
)
