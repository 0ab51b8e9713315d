"""Causal kernels: against SciPy's recursive filters, and the moments they promise."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats

from scalespaces.theory import blur_variance, causal_kernel
from scalespaces.theory._causal import check_causal_base, check_causal_padding

variances = st.floats(0.01, 40)
stages = st.integers(1, 8)


def delay(t, k):
    """K mu, with mu the mean of the geometric distribution whose variance mu^2 + mu is t / K."""
    return k * (math.sqrt(0.25 + t / k) - 0.5)


def moments(taps):
    n = np.arange(len(taps))
    mean = taps @ n
    return mean, taps @ (n - mean) ** 2


@given(variances, stages)
def test_is_a_cascade_of_recursive_filters(t, k):
    """Stage: y(n) = (1 - r) x(n) + r y(n - 1), with the r whose geometric distribution has variance t / K."""
    taps = causal_kernel(t, k)
    r = next(root.real for root in np.roots([t / k, -(1 + 2 * t / k), t / k]) if root.real < 1)  # r / (1 - r)^2 = t / K
    out = np.eye(1, len(taps) + 50)[0]
    for _ in range(k):
        out = np.asarray(signal.lfilter([1 - r], [1, -r], out))
    assert abs(stats.geom(1 - r).var() - t / k) < 1e-9 * (1 + t)
    np.testing.assert_allclose(taps * out[: len(taps)].sum(), out[: len(taps)], rtol=1e-9, atol=1e-15)
    assert out[len(taps) :].sum() <= 1e-8 < out[len(taps) - 1 :].sum() + 1e-14 or len(taps) == 1


@given(variances, stages, st.sampled_from([1e-4, 1e-8, 1e-12]))
def test_moments_to_the_tail(t, k, tail):
    taps = causal_kernel(t, k, tail=tail)
    mean, variance = moments(taps)
    n = len(taps) + 5 * math.sqrt(t) + 5
    assert (taps > 0).all()
    assert abs(taps.sum() - 1) < 1e-14
    assert abs(mean - delay(t, k)) <= 2 * n * tail + 1e-12 * n
    assert abs(variance - t) <= 4 * n**2 * tail + 1e-12 * n**2


@given(variances, variances, stages)
def test_variances_and_delays_add(s, t, k):
    both = np.convolve(causal_kernel(s, k, tail=1e-13), causal_kernel(t, k, tail=1e-13))
    mean, variance = moments(both)
    assert abs(variance - (s + t)) < 1e-7 * (1 + s + t)
    assert abs(mean - delay(s, k) - delay(t, k)) < 1e-8 * (1 + s + t)


@given(st.floats(0.05, 2), st.integers(2, 4), st.integers(1, 4))
def test_steps_between_levels_add_up_to_the_variance_of_the_level(s0, base, level):
    """A step acts on samples c^j apart, so its variance counts c^2j times."""
    step = blur_variance(base, s0)
    assert math.isclose(sum(base ** (2 * j) * step for j in range(level)), s0 * (base ** (2 * level) - 1))


def test_many_stages_come_closer_to_a_gaussian_and_delay_more():
    skews, delays = [], []
    for k in (1, 2, 4, 8, 16):
        taps = causal_kernel(20.0, k, tail=1e-12)
        mean, variance = moments(taps)
        skews.append(taps @ (np.arange(len(taps)) - mean) ** 3 / variance**1.5)
        delays.append(mean)
    assert skews == sorted(skews, reverse=True)
    assert delays == sorted(delays)


def test_no_blur_and_extreme_blurs():
    assert causal_kernel(0.0).tolist() == [1.0]
    assert abs(moments(causal_kernel(1e-9))[1] - 1e-9) < 1e-8
    wide = causal_kernel(2e5, 300)  # its first tap is below the smallest float
    assert np.isfinite(wide).all()
    assert abs(moments(wide)[1] / 2e5 - 1) < 1e-4


def test_arguments():
    wrong: Any
    for wrong in (-1.0, math.nan, "1", True):
        with pytest.raises(ValueError, match="t must be"):
            causal_kernel(wrong)
    for wrong in (0, 2.0, True):
        with pytest.raises(ValueError, match="stages must be an integer >= 1"):
            causal_kernel(1.0, wrong)
    for wrong in (0, 1, -1e-8):
        with pytest.raises(ValueError, match="tail must be"):
            causal_kernel(1.0, tail=wrong)
    for wrong in (1, 1.5, 2.5, [[2, 0], [0, 2]], math.inf):
        with pytest.raises(ValueError, match="base must be a finite number that is whole and >= 2"):
            check_causal_base(wrong)
    for wrong in ("reflect", "circular"):
        with pytest.raises(ValueError, match=r"samples of the future before the record; .* zeros or replicate"):
            check_causal_padding(wrong)
    wrong = "constant"
    with pytest.raises(ValueError, match="padding_mode is one of zeros, replicate, got 'constant'"):
        check_causal_padding(wrong)
    assert [check_causal_base(3), check_causal_padding("zeros")] == [3.0, "zeros"]
