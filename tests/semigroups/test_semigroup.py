"""The semigroup correlation and its instances: the laws, and what they become for each."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from algebra import CLOSE, rand
from hypothesis import given
from hypothesis import strategies as st
from reference import paper_lift, refusals
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import semigroups as sg
from scalespaces.functional import scale_conv
from scalespaces.theory import ScaleTranslation


def nested_masks(number: int, *shape: int) -> torch.Tensor:
    depth = torch.rand(*shape)
    return torch.stack([depth >= i / number for i in range(number)])


# name: the semigroup, the shape of a signal (B, C, *X), the window of a filter; all of them satisfy their law exactly
INSTANCES: dict[str, tuple[sg.Semigroup[Any], tuple[int, ...], tuple[int, ...]]] = {
    "translations of Z": (sg.Translations((7,), padding_mode="circular"), (2, 3, 7), (3,)),
    "translations of Z^2": (sg.Translations((5, 4), padding_mode="circular"), (2, 3, 5, 4), (3, 2)),
    "translations of Z^3": (sg.Translations((3, 4, 3), padding_mode="circular"), (1, 2, 3, 4, 3), (2, 2, 2)),
    "translations of N^2": (sg.Translations((5, 4)), (2, 3, 5, 4), (3, 2)),
    "p4": (sg.P4((5, 5), padding_mode="circular"), (2, 2, 5, 5), (3, 3)),
    "p4m": (sg.P4M((4, 4), padding_mode="circular"), (2, 2, 4, 4), (3, 2)),
    "scale, 1-D": (sg.ScaleTranslations((16,), 3), (2, 2, 16), (3,)),
    "scale, 2-D": (sg.ScaleTranslations((8, 12), 2), (1, 2, 8, 12), (3, 3)),
    "scale, base 3": (sg.ScaleTranslations((27,), 3, base=3, zero_scale=0.5), (1, 2, 27), (3,)),
    "causal shifts": (sg.CausalShifts(9), (2, 3, 9), (4,)),
    "occlusions": (sg.Occlusions(nested_masks(5, 6, 7)), (2, 3, 6, 7), (6, 7)),
    "light": (sg.Lighting((1.0, 0.5, 3.0), (0.0, -0.25)), (2, 3, 5, 6), (2, 3)),
    "light per pixel": (sg.Lighting((1.0, 2.0), (0.0, 1.0), over="channels"), (2, 3, 5, 4), (4, 2)),
}
SIGNALS_ON_S = ["translations of Z", "translations of Z^2", "p4", "p4m", "scale, 1-D", "causal shifts", "occlusions"]


def spread(semigroup: sg.Semigroup[Any], number: int) -> list[Any]:
    """Elements of every kind: of all symmetries, levels, lights."""
    elements = list(semigroup.elements())
    return [elements[i] for i in np.linspace(0, len(elements) - 1, number).astype(int)]


instances = pytest.mark.parametrize("name", INSTANCES)


def pick(data: st.DataObject, semigroup: sg.Semigroup[Any], name: str) -> Any:
    return data.draw(st.sampled_from(list(semigroup.elements())), label=name)


def small(semigroup: sg.Semigroup[Any], s: Any, t: Any) -> bool:
    """Whether a signal of the tests' size survives both: twice downscaled, it must still have pixels."""
    if isinstance(semigroup, sg.ScaleTranslations):
        return all(n % semigroup.base ** (s[0] + t[0]) == 0 for n in semigroup.shape)
    return True


@instances
@given(data=st.data())
def test_composition_is_associative(name, data):
    semigroup, _, _ = INSTANCES[name]
    s, t, r = (pick(data, semigroup, e) for e in "str")
    left = semigroup.compose(semigroup.compose(s, t), r)
    right = semigroup.compose(s, semigroup.compose(t, r))
    assert left == right or np.allclose(left, right, rtol=1e-12)


@instances
@given(data=st.data())
def test_the_action_composes(name, data):
    semigroup, shape, _ = INSTANCES[name]
    s, t = pick(data, semigroup, "s"), pick(data, semigroup, "t")
    if small(semigroup, s, t):
        f = rand(*shape)
        twice = semigroup.act(s, semigroup.act(t, f))
        assert_close(twice, semigroup.act(semigroup.compose(s, t), f), **CLOSE)


@instances
@given(data=st.data())
def test_the_correlation_is_equivariant(name, data):
    """The paper's proof, equation "s-equivariance": [psi * L_t f](s) = [psi * f](st)."""
    semigroup, shape, window = INSTANCES[name]
    s, t = pick(data, semigroup, "s"), pick(data, semigroup, "t")
    f = rand(*shape)
    transformed = semigroup.act(t, f)
    if isinstance(semigroup, sg.ScaleTranslations):
        window = tuple(min(w, n // semigroup.base ** (s[0] + t[0])) for w, n in zip(window, shape[2:], strict=True))
        if not small(semigroup, s, t):
            return
    psi = rand(4, shape[1], *window)
    before = sg.semigroup_correlation(transformed, psi, semigroup, elements=[s])
    after = sg.semigroup_correlation(f, psi, semigroup, elements=[semigroup.compose(s, t)])
    assert_close(before, after, **CLOSE)
    assert before.shape == (shape[0], 4, 1)


@instances
def test_it_is_the_equation(name):
    """sum_i sum_x psi(x) L_s[f](x), one number at a time; and batched orbits are what the action says."""
    semigroup, shape, window = INSTANCES[name]
    f, psi = rand(*shape), rand(4, shape[1], *window)
    out = sg.semigroup_correlation(f, psi, semigroup)
    elements = semigroup.elements()
    assert out.shape == (shape[0], 4, len(elements))
    for s in spread(semigroup, 9):
        index = list(elements).index(s)
        if isinstance(semigroup, sg.ScaleTranslations):  # the coarser image is too small for the window: pad the signal
            moved = [np.arange(w) * semigroup.base ** s[0] + z for w, z in zip(window, s[1], strict=True)]
            moved = [m % n for m, n in zip(moved, shape[2:], strict=True)]
            transformed = semigroup.levels(f).levels[s[0]][(..., *np.ix_(*moved))]
        else:
            transformed = semigroup.window(semigroup.act(s, f), window)
        for b, o in itertools.product(range(shape[0]), range(4)):
            total = sum(
                float(psi[(o, i, *x)] * transformed[(b, i, *x)]) for i in range(shape[1]) for x in np.ndindex(*window)
            )
            assert out[b, o, index].item() == pytest.approx(total, rel=1e-10, abs=1e-10)


@given(data=st.data(), dims=st.integers(1, 3), padding=st.integers(0, 2))
def test_translations_give_the_convolution(data, dims, padding):
    size = data.draw(st.lists(st.integers(3, 6), min_size=dims, max_size=dims))
    kernel = data.draw(st.lists(st.integers(1, 3), min_size=dims, max_size=dims))
    f, psi = rand(2, 3, *size), rand(4, 3, *kernel)
    conv: Any = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    expected = conv(f, psi, padding=padding)
    out = sg.semigroup_correlation(f, psi, sg.Translations(expected.shape[2:], first=-padding))
    assert_close(out.reshape(expected.shape), expected, **CLOSE)


def test_translations_lifted_give_the_convolution_again():
    f, psi = rand(2, 3, 6, 5), rand(4, 3, 3, 3)
    shifts = sg.Translations((6, 5))
    taps = list(itertools.product((-1, 0, 1), repeat=2))
    out = sg.semigroup_correlation(f.flatten(2), psi.flatten(2), sg.Lifted(shifts, taps))
    assert_close(out.reshape(2, 4, 6, 5), F.conv2d(f, psi, padding=1), **CLOSE)


@pytest.mark.parametrize("method", ["direct", "cascade"])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@given(data=st.data(), levels=st.integers(1, 3), depth=st.integers(1, 3), base=st.integers(2, 3))
def test_scalings_give_the_scale_space_correlation(method, padding_mode, data, levels, depth, base):
    """On lifted signals, generically and by the fast path; and lifting is the lift."""
    dims = data.draw(st.integers(1, 2))
    shape = data.draw(st.lists(st.integers(4, 9), min_size=dims, max_size=dims))
    kernel = (depth, *data.draw(st.lists(st.integers(1, 3), min_size=dims, max_size=dims)))
    scalings = sg.ScaleTranslations(shape, levels, base, method=method, padding_mode=padding_mode)
    image, psi = rand(2, 2, *shape), rand(3, 2, *kernel)
    space = paper_lift(image, levels, base, method=method, padding_mode=padding_mode)
    lifted = sg.semigroup_lift(image, scalings)
    assert_close(lifted, space.stack().flatten(2), **CLOSE)
    expected = torch.stack(scale_conv(space, psi, padding_mode=padding_mode).levels, 2).flatten(2)
    action = scalings.lifted(kernel)
    generic = sg.semigroup_correlation(lifted, psi.flatten(2), sg.Lifted(scalings, action.support))
    assert_close(generic, expected, **CLOSE)
    assert_close(sg.semigroup_correlation(lifted, psi.flatten(2), action), expected, **CLOSE)


@pytest.mark.parametrize("name", ["translations of Z^2", "p4", "p4m", "scale, 1-D", "causal shifts"])
def test_lifting_with_a_filter_is_lifting_at_a_point_and_then_correlating(name):
    """Where S holds the shifts that carry 0 to every x: L_s[f](x) = f_lifted(x s)."""
    semigroup, shape, window = INSTANCES[name]
    f, psi = rand(*shape), rand(4, shape[1], *window)
    points = list(np.ndindex(*window))
    if name.startswith(("p4", "scale")):
        support: list[Any] = [(0, x) for x in points]
    else:
        support = points if name.startswith("trans") else [x for (x,) in points]
    lifted = sg.semigroup_lift(f, semigroup)
    again = sg.semigroup_correlation(lifted, psi.flatten(2), sg.Lifted(semigroup, support))
    assert_close(again, sg.semigroup_correlation(f, psi, semigroup), **CLOSE)


@given(length=st.integers(4, 12), kernel=st.integers(1, 4))
def test_causal_shifts_give_the_causal_convolution(length, kernel):
    f, psi = rand(2, 3, length), rand(4, 3, kernel)
    causal = F.conv1d(F.pad(f, (kernel - 1, 0)), psi.flip(-1))
    out = sg.semigroup_correlation(f, psi, sg.CausalShifts(length))
    assert_close(out, causal.flip(-1), **CLOSE)


@instances
@pytest.mark.parametrize("at", [0, 1, None])
def test_lifting_turns_the_action_into_a_shift(name, at):
    """The paper's equation "lifted equivariance", at a point and with x integrated out."""
    semigroup, shape, _ = INSTANCES[name]
    f, elements = rand(*shape), semigroup.elements()
    rng = np.random.default_rng(0)
    for i, j in rng.integers(len(elements), size=(8, 2)):
        s, t = elements[i], elements[j]
        if isinstance(semigroup, sg.ScaleTranslations) and (not small(semigroup, s, t) or s[0] + t[0] > 2):
            continue
        before = sg.semigroup_lift(semigroup.act(t, f), semigroup, at=at, elements=[s])
        after = sg.semigroup_lift(f, semigroup, at=at, elements=[semigroup.compose(s, t)])
        assert_close(before, after, **CLOSE)


def test_lifting_at_a_point_reads_the_transformed_signal_there():
    f = rand(1, 2, 5, 6)
    shifts = sg.Translations((5, 6))
    at = sg.semigroup_lift(f, shifts, at=(1, 2)).reshape(1, 2, 5, 6)
    assert_close(at[..., :4, :4], f[..., 1:, 2:])
    total = sg.semigroup_lift(f, sg.Translations((5, 6), padding_mode="circular"), at=None)
    assert_close(total, f.sum((2, 3))[..., None].expand(-1, -1, 30))
    with pytest.raises(ValueError, match="start at 0"):
        sg.semigroup_lift(f, shifts, at=-1)


@pytest.mark.parametrize("name", SIGNALS_ON_S)
@given(data=st.data())
def test_the_lifted_action_composes_and_its_correlation_is_equivariant(name, data):
    semigroup, _, _ = INSTANCES[name]
    elements = semigroup.elements()
    lifted = sg.Lifted(semigroup)
    s, t = pick(data, semigroup, "s"), pick(data, semigroup, "t")
    f = rand(1, 2, len(elements))
    composed = lifted.act(semigroup.compose(s, t), f)
    assert_close(lifted.act(s, lifted.act(t, f)), composed, **CLOSE)
    psi = rand(3, 2, len(elements))
    before = sg.semigroup_correlation(lifted.act(t, f), psi, lifted, elements=[s])
    after = sg.semigroup_correlation(f, psi, lifted, elements=[semigroup.compose(s, t)])
    assert_close(before, after, **CLOSE)


@pytest.mark.parametrize("name", SIGNALS_ON_S)
def test_pointwise_functions_commute_on_lifted_signals(name):
    """And orbits are what the action says."""
    semigroup, shape, _ = INSTANCES[name]
    lifted, elements = sg.Lifted(semigroup), semigroup.elements()
    f, orbit = sg.semigroup_lift(rand(*shape), semigroup), (len(lifted.support),)
    assert_close(lifted.orbit(f, orbit), sg.Semigroup.orbit(lifted, f, orbit), **CLOSE)
    for t, pointwise in itertools.product(spread(semigroup, 7), (torch.relu, torch.tanh, torch.sigmoid)):
        inside = torch.tensor([lifted.compose(s, t) in set(elements) for s in elements])
        after, before = pointwise(lifted.act(t, f)), lifted.act(t, pointwise(f))
        assert_close(after[..., inside], before[..., inside], **CLOSE)


def test_pointwise_functions_do_not_commute_with_a_blur():
    scalings, f = sg.ScaleTranslations((16,), 2), rand(1, 1, 16)
    halve = (1, (0,))
    difference = torch.relu(scalings.act(halve, f)) - scalings.act(halve, torch.relu(f))
    assert difference.abs().max() > 0.05


def filter_correlation(psi, f, semigroup, elements=None):
    """The other candidate, sum_x f(x) L_s[psi](x): the filter is transformed."""
    elements = semigroup.elements() if elements is None else elements
    return torch.stack([torch.einsum("bc...,oc...->bo", f, semigroup.act(s, psi)) for s in elements], 2)


def test_transforming_the_filter_is_the_same_in_a_group():
    """Up to the inverse: sum_x f(x) psi(x + s) = sum_x f(x - s) psi(x)."""
    shifts = sg.Translations((7,), padding_mode="circular")
    f, psi = rand(2, 3, 7), rand(4, 3, 7)
    inverse = [(-z,) for (z,) in shifts.elements()]
    expected = sg.semigroup_correlation(f, psi, shifts, elements=inverse)
    assert_close(filter_correlation(psi, f, shifts), expected, **CLOSE)


def assert_not_equivariant(psi, f, g, t, semigroup):
    """If [L_t f] were read off the output of f, equal outputs would stay equal; and for ours they do."""
    assert_close(*(filter_correlation(psi, signal, semigroup) for signal in (f, g)), **CLOSE)
    one, other = (filter_correlation(psi, semigroup.act(t, signal), semigroup) for signal in (f, g))
    assert (one - other).abs().max() > 0.1


def test_transforming_the_filter_is_not_equivariant_to_causal_shifts():
    """The delayed filter leaves the record: what is older than the filter is long is never seen."""
    psi, f = F.pad(rand(1, 1, 3), (7, 0)), rand(1, 1, 10)  # on the three newest samples
    g = f.clone()
    g[..., :7] += rand(7)
    assert_not_equivariant(psi, f, g, 2, sg.CausalShifts(10))


class CircularScalings(sg.ScaleTranslations):
    """The action with its image repeated to the size it had, so that every signal lives on one grid."""

    def act(self, s, f):
        small = super().act(s, f)
        return small.repeat(1, 1, *(n // m for n, m in zip(f.shape[2:], small.shape[2:], strict=True)))


def test_transforming_the_filter_is_not_equivariant_to_scalings():
    """A box sees no wave of period 2, nor does any smaller box see a longer one; but halved, the wave is a constant."""
    scalings = CircularScalings((16,), 3)
    psi = F.pad(torch.ones(1, 1, 8, dtype=torch.float64), (0, 8))
    wave = (-1.0) ** torch.arange(16, dtype=torch.float64).reshape(1, 1, 16)
    assert_not_equivariant(psi, wave, torch.zeros_like(wave), (1, (0,)), scalings)


def test_occlusions_are_the_exception():
    """Self-adjoint and commuting, they may transform the filter as well."""
    masks, shape, _ = INSTANCES["occlusions"]
    f, psi = rand(*shape), rand(4, *shape[1:])
    assert_close(filter_correlation(psi, f, masks), sg.semigroup_correlation(f, psi, masks), **CLOSE)


def test_occlusions_are_idempotent_and_commute():
    masks, shape, _ = INSTANCES["occlusions"]
    f = rand(*shape)
    for s, t in itertools.product(masks.elements(), repeat=2):
        assert torch.equal(masks.act(s, masks.act(s, f)), masks.act(s, f))
        assert torch.equal(masks.act(s, masks.act(t, f)), masks.act(t, masks.act(s, f)))
        assert masks.compose(s, t) == masks.compose(t, s)
    hidden = sg.Occlusions(torch.tensor([[1, 1, 1], [1, 0, 1]])).act(1, torch.tensor([[[1.0, torch.nan, 3.0]]]))
    assert hidden.tolist() == [[[1.0, 0.0, 3.0]]]


@instances
def test_gradients(name):
    semigroup, shape, window = INSTANCES[name]
    f, psi = rand(1, *shape[1:]).requires_grad_(), rand(1, shape[1], *window).requires_grad_()
    some = spread(semigroup, 6)
    places = [list(semigroup.elements()).index(s) for s in some]
    assert torch.autograd.gradcheck(lambda psi, f: sg.semigroup_correlation(f, psi, semigroup)[..., places], (psi, f))
    if not isinstance(semigroup, sg.ScaleTranslations):  # whose coarser images may be smaller than the window
        assert torch.autograd.gradcheck(lambda p, f: sg.semigroup_correlation(f, p, semigroup, elements=some), (psi, f))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@instances
def test_dtypes(name, dtype):
    semigroup, shape, window = INSTANCES[name]
    f, psi = rand(*shape), rand(4, shape[1], *window)
    out = sg.semigroup_correlation(f.to(dtype), psi.to(dtype), semigroup)
    assert out.dtype == dtype
    exact = sg.semigroup_correlation(f.to(dtype).double(), psi.to(dtype).double(), semigroup)
    assert (out.double() - exact).norm() < (1e-6 if dtype == torch.float32 else 2e-2) * exact.norm()


SIGNAL, FILTER, SHIFTS = rand(1, 1, 5), rand(1, 1, 3), sg.CausalShifts(3)

test_bad_input_is_named = refusals(
    (lambda: sg.semigroup_correlation(rand(1, 1), rand(1, 1), SHIFTS), "at least one spatial axis"),
    (lambda: sg.semigroup_correlation(SIGNAL, rand(1, 1, 2, 2), SHIFTS), "need filters"),
    (lambda: sg.semigroup_correlation(SIGNAL, rand(1, 2, 3), SHIFTS), "take 2 channels"),
    (lambda: sg.semigroup_correlation(SIGNAL, FILTER, sg.Translations((2, 2))), "2 spatial axes"),
    (lambda: sg.semigroup_correlation(SIGNAL, FILTER, sg.Lifted(sg.CausalShifts(4), [0, 1, 2])), "B, C, 4"),
    (lambda: sg.semigroup_correlation(FILTER, FILTER, sg.Lifted(SHIFTS, [0])), "filters need 1 elements"),
    (lambda: sg.Translations((4,), padding_mode="circular").act((1,), SIGNAL), "circular grid"),
    (lambda: sg.Translations((4, 4)).act((1,), rand(1, 1, 5, 5)), "an integer for each of 2 axes"),
    (lambda: sg.semigroup_correlation(SIGNAL, rand(1, 1, 9), SHIFTS, elements=[0]), "must fit into the signal"),
    (lambda: sg.semigroup_correlation(SIGNAL, FILTER, SHIFTS, elements=[]), "got none"),
    (lambda: sg.semigroup_correlation(SIGNAL, FILTER.float(), SHIFTS), "must have one type"),
    (lambda: sg.semigroup_correlation(rand(1, 1, 5, 5), rand(1, 1, 3, 3), SHIFTS), "a record is"),
    (lambda: sg.semigroup_lift(rand(5), SHIFTS), "a signal is a floating-point tensor"),
    (lambda: sg.ScaleTranslations((6,), 2, padding_mode="reflect").lifted((1, 3)), "scale_conv has the other"),
    (lambda: sg.P4((4, 4)).act((-1, (0, 0)), rand(1, 1, 4, 4)), "numbered 0 to 3"),
    (lambda: sg.Occlusions(torch.ones(2, 4)).act(-1, rand(1, 1, 4)), "numbered 0 to 1"),
    (lambda: sg.Occlusions(torch.ones(2, 4)).act(0, SIGNAL), "signals must be"),
    (lambda: sg.ScaleTranslations((6,), 3).act((2, (0,)), rand(1, 1, 6)), "must divide the size"),
    (lambda: sg.ScaleTranslations((6,), 3).lifted((2, 3, 3)), "axes of taps"),
    (lambda: sg.CausalShifts(4).act(-1, SIGNAL), "a causal shift must be an integer >= 0"),
    (lambda: sg.P4((4, 5)), "square"),
    (lambda: sg.Occlusions(torch.tensor([[1, 0], [0, 1]])), "nested"),
    (lambda: sg.Occlusions(rand(3, 2)), "zeros and ones"),
    (lambda: sg.Lighting((0.0,)), "positive"),
    (lambda: sg.Lighting(over="time"), "over is one of"),
    (lambda: sg.AffineContractions([np.eye(2)], []), "at least one"),
    (lambda: sg.AffineContractions([np.diag([2.0, 0.5])], [(0, 0)]), "covariance|shrink|singular"),
    (lambda: sg.AffineContractions([np.eye(2)], [(0, 0)]).act(ScaleTranslation(1.0, [0, 0]), FILTER), "axes"),
)
