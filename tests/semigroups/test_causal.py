"""Causal scale-spaces: the equations as loops, causality to the bit, equivariance, and a record that grows."""

from typing import Any

import numpy as np
import pytest
import torch
from algebra import rand, times
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import refusals
from scipy import signal as scipy_signal
from torch.testing import assert_close

from scalespaces import ScaleSpace, feature_pyramid, lift, resample, scale_shift
from scalespaces.functional import avg_pool, blur_pool, max_pool, scale_conv, scale_pool
from scalespaces.semigroups import causal_downscale, causal_lift
from scalespaces.theory import blur_variance, causal_kernel

SAMPLINGS = st.sampled_from(["pyramid", "dense"])
PADDINGS = st.sampled_from(["zeros", "replicate"])
SCALE_PADDINGS = st.sampled_from(["zeros", "replicate", "valid"])
LENGTHS, BASES = st.integers(1, 70), st.integers(2, 3)
TO_2, TO_3, TO_4 = (st.integers(1, n) for n in (2, 3, 4))


# --- the equations as loops: time is an integer t <= 0, a level a function of it --------------------------------------


def history(level, step, before):
    """A level as a function of time: a sample is held until the next one, ``before`` tells what came before."""
    n = len(level)

    def f(t):
        i = n - 1 + t // step
        return level[i] if i >= 0 else before(level)

    return f


BEFORE = {"zeros": lambda level: 0.0, "replicate": lambda level: level[0]}


def naive_lift(f, num_levels, c, s0, stages, sampling, mode):
    """f_{k+1}(t) = sum_n h(n) f_k(t - c^k n), at multiples of the level's step from 0 back while the record lasts."""
    h = causal_kernel(s0 * (c**2 - 1), stages)
    levels, step = [list(f)], 1
    for k in range(num_levels - 1):
        before = history(levels[-1], step, BEFORE[mode])
        apart, first = c**k, -step * (len(levels[-1]) - 1)
        step = step * (c if sampling == "pyramid" else 1)
        at = [t for t in range(0, first - 1, -1) if t % step == 0]
        levels.append([sum(h[n] * before(t - apart * n) for n in range(len(h))) for t in reversed(at)])
    return levels


def naive_conv(levels, steps, c, weight, bias, *, stride, dilation, before, mode, scale_padding):
    """[psi * f]_k(t) = sum_l sum_{y <= 0} psi_l(y) f_{k+l}(t + c^k d y), for the t that the padding lets in."""
    _, _, depth, taps = weight.shape
    outputs = []
    for k in range(len(levels) - (depth - 1 if scale_padding == "valid" else 0)):
        step, n = steps[k], levels[k].shape[2]
        first = -step * (n - 1)
        span, room = c**k * dilation * (taps - 1), c**k * before
        at = [t for t in range(0, first - 1, -1) if t % (step * stride) == 0 and t - span >= first - room][::-1]
        out = np.zeros((levels[k].shape[0], weight.shape[0], len(at))) + bias.reshape(1, -1, 1)
        for el in range(depth):
            source = min(k + el, len(levels) - 1) if scale_padding == "replicate" else k + el
            if source >= len(levels):
                continue
            for b, o, i in np.ndindex(out.shape[0], weight.shape[0], weight.shape[1]):
                f = history(levels[source][b, i], steps[source], lambda level: 0.0)
                on_grid = [f(first + step * j) for j in range(n)]  # of level k, and padded there
                g = history(on_grid, step, BEFORE[mode])
                for j, t in enumerate(at):
                    for y in range(1 - taps, 1):
                        out[b, o, j] += weight[o, i, el, y + taps - 1] * g(t + c**k * dilation * y)
        outputs.append(out)
    return outputs


@given(st.integers(1, 40), st.integers(1, 4), st.integers(2, 3), st.sampled_from([0.0, 0.25, 1.0]), SAMPLINGS, PADDINGS)
def test_the_lift_is_the_equation(length, num_levels, base, s0, sampling, mode):
    f = rand(2, 2, length)
    x = causal_lift(f, num_levels, base, zero_scale=s0, stages=3, sampling=sampling, padding_mode=mode)
    assert x.causal
    for b, i in np.ndindex(2, 2):
        expected = naive_lift(f[b, i].tolist(), num_levels, base, s0, 3, sampling, mode)
        for got, wanted in zip(x.levels, expected, strict=True):
            assert_close(got[b, i], torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)


@given(st.integers(1, 200), st.integers(2, 3))
def test_a_step_is_scipys_recursive_filter_read_back_from_the_newest(length, base):
    f, t = rand(1, 1, length), blur_variance(base, 0.25)
    mean = np.sqrt(0.25 + t / 4) - 0.5  # of each of the 4 stages, whose variance mean^2 + mean is t / 4
    out = f[0, 0].numpy()
    for _ in range(4):
        out = np.asarray(scipy_signal.lfilter([1 / (1 + mean)], [1, -mean / (1 + mean)], out))
    expected = torch.tensor(out[::-1][::base][::-1].copy())
    assert_close(causal_downscale(f, 1, base)[0, 0], expected, rtol=0, atol=2e-7)  # the tail that is cut off


@pytest.mark.parametrize(("base", "num_levels"), [(2, 5), (3, 4)])
def test_levels_have_the_variance_of_the_theory_and_the_delay(base, num_levels):
    impulse = torch.zeros(1, 1, 4000, dtype=torch.float64)
    impulse[..., 0] = 1
    x = causal_lift(impulse, num_levels, base, zero_scale=0.25, sampling="dense")
    n = torch.arange(4000, dtype=torch.float64)
    delay = 4 * (np.sqrt(0.25 + blur_variance(base, 0.25) / 4) - 0.5)
    for k, level in enumerate(x.levels):
        mean = (level[0, 0] * n).sum()
        assert abs(mean - delay * (base**k - 1) / (base - 1)) < 1e-5 * base**k
        assert abs((level[0, 0] * (n - mean) ** 2).sum() - 0.25 * (base ** (2 * k) - 1)) < 1e-4 * base ** (2 * k)


@settings(max_examples=100)
@given(st.integers(1, 26), TO_3, BASES, TO_2, TO_3, TO_3, TO_2, SAMPLINGS, PADDINGS, SCALE_PADDINGS, st.data())
def test_the_correlation_is_the_equation(
    length, num_levels, base, depth, taps, stride, dilation, sampling, mode, scale_padding, data
):
    x = causal_lift(rand(1, 2, length), num_levels, base, sampling=sampling)
    weight, bias = rand(2, 2, min(depth, num_levels), taps), rand(2)
    span = dilation * (taps - 1)
    padding = data.draw(st.sampled_from(["same", "valid", *range(span + 1)]), "padding")
    before = {"same": span, "valid": 0}.get(padding, padding)
    if any(n - 1 < x.spacing(k) * (span - before) for k, n in enumerate(level.shape[2] for level in x.levels)):
        padding, before = "same", span
    arguments: dict[str, Any] = {"stride": stride, "dilation": dilation, "scale_padding": scale_padding}
    out = scale_conv(x, weight, bias, padding=padding, padding_mode=mode, **arguments)
    levels, steps = [level.numpy() for level in x.levels], [int(step) for step in x.steps]
    expected = naive_conv(levels, steps, base, weight.numpy(), bias.numpy(), before=before, mode=mode, **arguments)
    assert (out.unit, out.causal) == ((stride,), True)
    assert_close(out.levels, tuple(map(torch.tensor, expected)), rtol=0, atol=1e-12)


POOLINGS = {
    "average": (avg_pool, lambda window: sum(window) / len(window), "zeros"),
    "largest": (max_pool, max, "none"),
    "blur": (blur_pool, lambda window: float(np.dot(window, BINOMIAL[len(window)])), "replicate"),
}
BINOMIAL = {1: [1.0], 2: [0.5, 0.5], 3: [0.25, 0.5, 0.25], 4: [0.125, 0.375, 0.375, 0.125]}


@settings(max_examples=100)
@given(st.sampled_from([*POOLINGS]), st.integers(17, 40), TO_4, TO_3, st.booleans(), SAMPLINGS, st.data())
def test_poolings_end_at_the_present(name, length, taps, stride, dilated, sampling, data):
    pool, reduce, mode = POOLINGS[name]
    x = causal_lift(rand(1, 1, length), 3, sampling=sampling)
    before = taps - 1 if mode == "replicate" else data.draw(st.integers(0, taps - 1), "padding")
    paddings = [] if mode == "replicate" else [before]
    out = pool(x, taps, stride, *paddings, window="dilated" if dilated else "plain")
    for k, level in enumerate(x.levels):
        row, n = level[0, 0].tolist(), level.shape[2]
        apart = int(x.spacing(k)) if dilated else 1
        expected = []
        for i in range(n - 1, -1, -stride):
            places = [i - apart * j for j in reversed(range(taps))]
            if places[0] < -apart * before:
                break
            if mode == "none":
                values = [row[p] for p in places if p >= 0]
            else:
                values = [row[p] if p >= 0 else (0.0 if mode == "zeros" else row[0]) for p in places]
            expected.insert(0, reduce(values))
        assert_close(out.levels[k][0, 0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@given(LENGTHS, st.integers(1, 4), st.integers(2, 3), st.integers(1, 3), SAMPLINGS)
def test_resampled_levels_hold_past_values(length, num_levels, base, stride, sampling):
    x = max_pool(causal_lift(rand(1, 1, length), num_levels, base, sampling=sampling), 1, stride)
    for size in (None, length, length + 5):
        out = resample(x, size)
        assert out.stack().shape[-1] == (size or x.levels[0].shape[2])
        for k in range(num_levels):
            known, asked = times(x, k), times(out, k)
            for t, value in zip(asked, out.levels[k][0, 0].tolist(), strict=True):
                past = np.flatnonzero(known <= t)
                assert value == (x.levels[k][0, 0, past[-1]].item() if len(past) else 0.0)


@given(LENGTHS, st.integers(1, 4), st.integers(2, 3), PADDINGS)
def test_a_feature_pyramid_keeps_the_newest_samples(length, num_levels, base, mode):
    f = rand(1, 1, length)
    dense, pyramid = (causal_lift(f, num_levels, base, sampling=s, padding_mode=mode) for s in ("dense", "pyramid"))
    for k, level in enumerate(feature_pyramid(dense).values()):
        assert_close(level, dense.levels[k].flip(2)[..., :: base**k].flip(2), rtol=0, atol=0)
        assert level.shape == pyramid.levels[k].shape
        if mode == "zeros" or (length - 1) % base ** max(k - 1, 0) == 0:  # the levels before begin at the same time
            assert_close(level, pyramid.levels[k], rtol=0, atol=1e-12)


@given(LENGTHS, st.integers(2, 5), st.integers(2, 3), SAMPLINGS, PADDINGS, st.integers(1, 4))
def test_a_downscaled_record_is_a_shifted_space(length, num_levels, base, sampling, mode, n):
    n = min(n, num_levels - 1)
    if sampling == "dense" and mode == "replicate":
        length += -(length - 1) % base**n  # 1 modulo c^n
    f = rand(1, 2, length)
    options: Any = {"sampling": sampling, "padding_mode": mode}
    shifted = scale_shift(causal_lift(f, num_levels, base, **options), n)
    small = causal_lift(causal_downscale(f, n, base, padding_mode=mode), num_levels - n, base, **options)
    assert shifted.steps == small.steps
    assert_close(shifted.levels, small.levels, rtol=0, atol=1e-12)


@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 4), st.integers(1, 2), PADDINGS)
def test_what_came_out_stays_when_a_dense_record_grows(length, more, num_levels, depth, mode):
    weight = rand(3, 2, depth, 3)

    def outputs(f):
        x = causal_lift(f, num_levels, sampling="dense", padding_mode=mode)
        x = blur_pool(scale_conv(x, weight, padding_mode=mode, scale_padding="replicate").relu(), 3, 1)
        return torch.cat([*max_pool(x, 2, 1, 1).levels, *resample(x).levels], 1)

    f = rand(1, 2, length + more)
    assert_close(outputs(f)[..., :length], outputs(f[..., :length]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
def test_gradients(sampling):
    def outputs(f, weight):
        x = causal_lift(f, 3, sampling=sampling, padding_mode="replicate")
        x = scale_conv(x, weight, stride=2, padding_mode="replicate")
        return (*x.levels, *resample(avg_pool(x, 2, 1)).levels, *scale_shift(x).levels, *blur_pool(x).levels)

    inputs = rand(1, 2, 14).requires_grad_(), rand(2, 2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(outputs, inputs)


@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
def test_what_is_not_a_number_stays_in_its_future(sampling):
    f = rand(1, 1, 37)
    f[..., 20:] = torch.nan
    x = scale_conv(causal_lift(f, 3, sampling=sampling), rand(2, 1, 2, 3))
    pooled = torch.as_tensor(scale_pool(x))
    assert pooled[..., :20].isfinite().all()
    assert pooled[..., 20:].isnan().all()


def test_the_container_says_that_it_is_causal():
    x = causal_lift(torch.rand(1, 2, 9), 2)
    assert "base 2, causal, torch.float32" in repr(x)
    assert "causal" not in repr(lift(torch.rand(1, 2, 9), 2, dims=1))
    for y in (2 * x + x, x.relu(), x.keep(1), x.map(torch.exp), x.to(torch.float64), x.flatten(1), resample(x)):
        assert y.causal
    dense = causal_lift(torch.rand(1, 2, 9), 2, sampling="dense")
    assert repr(ScaleSpace.unstack(dense.stack(), causal=True)) == repr(dense)
    with pytest.raises(ValueError, match="one operand is causal, the other is not"):
        _ = x + ScaleSpace(x.levels, steps=x.steps)


SIGNAL, WRONG = torch.rand(1, 1, 8), [torch.rand(1, 8), torch.rand(1, 1, 8, 8), torch.rand(1, 1, 0), [1.0]]
MODES: list[Any] = ["reflect", "circular"]
NUMBERS: Any = {"base": 1.5, "num_levels": 0, "stages": 0, "zero_scale": -1.0}


test_refusals = refusals(
    *[(lambda f=f: causal_lift(f), r"a floating-point tensor \(B, C, time\) of at least one") for f in WRONG],
    *[(lambda n=n, v=v: causal_lift(SIGNAL, **{n: v}), f"{n} must be") for n, v in NUMBERS.items()],
    *[(lambda m=m: causal_lift(SIGNAL, padding_mode=m), f"'{m}' would put samples of the future") for m in MODES],
    (lambda: causal_lift(SIGNAL, sampling="sparse"), "sampling is one of pyramid, dense, got 'sparse'"),
    (lambda: causal_downscale(SIGNAL, -1), "n must be an integer >= 0"),
    (lambda: scale_conv(causal_lift(SIGNAL), SIGNAL[..., :3], padding_mode="reflect"), "samples of the future"),
    *[(lambda p=p: p(causal_lift(SIGNAL), 3, 1, 3), r"\(3,\) taps takes at most \(2,") for p in (avg_pool, max_pool)],
    (lambda: avg_pool(causal_lift(SIGNAL[..., :2], 2), 2), "too few for a window of"),
    (lambda: ScaleSpace((SIGNAL[None],), causal=True), r"signals \(B, C, time\), got spatial axes \(2, 3\)"),
    (lambda: ScaleSpace((SIGNAL, SIGNAL), base=1.5, causal=True), "base must be a finite number that is whole"),
    (lambda: ScaleSpace((SIGNAL,), origins=((-7.0,),), causal=True), r"must be at 0, got origins \(\(-7.0,\),\)"),
    (lambda: ScaleSpace((SIGNAL, SIGNAL), steps=(1, 4), causal=True), r"must lie on samples, got \[1.0, 0.5\]"),
)
