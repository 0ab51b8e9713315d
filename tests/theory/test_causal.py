"""Causal kernels: against SciPy's recursive filters, and the moments they promise."""

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference import refusals
from scipy import signal, stats

from scalespaces.theory import causal_kernel
from scalespaces.theory._kernels import check_causal_base, check_causal_padding

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


def test_many_stages_come_closer_to_a_gaussian_and_delay_more():
    skews, delays = [], []
    for k in (1, 2, 4, 8, 16):
        taps = causal_kernel(20.0, k, tail=1e-12)
        mean, variance = moments(taps)
        skews.append(taps @ (np.arange(len(taps)) - mean) ** 3 / variance**1.5)
        delays.append(mean)
    assert skews == sorted(skews, reverse=True)
    assert delays == sorted(delays)
    wide = causal_kernel(2e5, 300)  # its first tap is below the smallest float
    assert abs(moments(wide)[1] / 2e5 - 1) < 1e-4
    assert causal_kernel(0.0).tolist() == [1.0]


MODES: list[Any] = ["reflect", "circular", "constant"]


test_refusals = refusals(
    (lambda: causal_kernel(-1.0), "t must be"),
    (lambda: causal_kernel(math.nan), "t must be"),
    (lambda: causal_kernel(1.0, 0), "stages must be an integer >= 1"),
    (lambda: causal_kernel(1.0, tail=1), "tail must be"),
    *[(lambda c=c: check_causal_base(c), "base must be .* whole and >= 2") for c in (1, 2.5, [[2, 0], [0, 2]])],
    *[(lambda m=m: check_causal_padding(m), "future .* zeros or replicate") for m in MODES[:2]],
    (lambda: check_causal_padding(MODES[2]), "padding_mode is one of zeros, replicate, got 'constant'"),
)
