"""Batch normalization against torch's and against the formula."""

import copy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ScaleSpace, scale_shift
from scalespaces.functional import scale_batch_norm
from scalespaces.functional._fast import _choice
from scalespaces.functional._moments import batch_moments
from scalespaces.nn import P4BatchNorm, ScaleBatchNorm

CHANNELS = 3


def random_space(*shape: int, batch: int = 4, sampling: str = "pyramid", dtype: torch.dtype = torch.float64) -> Any:
    """Noise of another size and mean in each channel, on the grids of a lift to three levels."""
    steps = (1, 2, 4) if sampling == "pyramid" else (1, 1, 1)
    size = torch.arange(1, 1 + CHANNELS, dtype=dtype).reshape(-1, *[1] * len(shape))
    grids = [[(n - 1) // step + 1 for n in shape] for step in steps]
    return ScaleSpace(tuple(torch.randn(batch, CHANNELS, *grid, dtype=dtype) * size + 2 for grid in grids), 2.0, steps)


def moments_naively(x: ScaleSpace) -> tuple[Tensor, Tensor]:
    """Mean and E[x^2] of each level, averaged over levels with equal weight."""
    axes = [0, *range(2, x.dims + 2)]
    mean = torch.stack([f.mean(axes) for f in x.levels]).mean(0)
    return mean, torch.stack([(f**2).mean(axes) for f in x.levels]).mean(0) - mean**2


def normalize_naively(x: ScaleSpace, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> tuple[Tensor, ...]:
    mean, var, w, b = (t.reshape(-1, *[1] * x.dims) for t in (*moments_naively(x), weight, bias))
    return tuple((f - mean) / (var + eps).sqrt() * w + b for f in x.levels)


def modules(dtype: torch.dtype = torch.float64, **settings: Any) -> tuple[ScaleBatchNorm, nn.BatchNorm2d]:
    """Ours and torch's, with the same parameters."""
    ours = ScaleBatchNorm(CHANNELS, dtype=dtype, **settings)
    theirs = nn.BatchNorm2d(CHANNELS, dtype=dtype, **settings)
    if ours.affine:
        with torch.no_grad():
            ours.weight.uniform_(0.5, 2)
            ours.bias.uniform_(-1, 1)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


class TestAgainstTorch:
    """Dense levels are one large image: torch's batch norm on the stack flattened to (B, C, S * H, W)."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("affine", [True, False])
    @pytest.mark.parametrize("momentum", [0.1, 0.7, 0.0, None])
    @pytest.mark.parametrize("track_running_stats", [True, False])
    def test_training_and_evaluation(self, dtype, affine, momentum, track_running_stats):
        settings = {"affine": affine, "momentum": momentum, "track_running_stats": track_running_stats}
        ours, theirs = modules(dtype, **settings)
        tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
        for training in (True, True, True, False):
            ours.train(training)
            theirs.train(training)
            x = random_space(5, 4, sampling="dense", dtype=dtype)
            got, expected = ours(x), theirs(x.stack().flatten(2, 3))
            assert got.dtype == dtype
            assert (got.steps, got.origins, got.base) == (x.steps, x.origins, x.base)
            assert_close(got.stack().flatten(2, 3), expected, **tolerance)
            for name, value in theirs.state_dict().items():
                assert_close(ours.state_dict()[name], value, **tolerance)

    @given(st.integers(0, 3), st.sampled_from([1, 2, 3, 5]), st.integers(2, 3), st.integers(1, 3))
    def test_any_number_of_axes(self, dims, n, batch, num_levels):
        t = torch.randn(batch, CHANNELS, num_levels, *[n] * dims, dtype=torch.float64)
        running = torch.zeros(CHANNELS, dtype=torch.float64), torch.ones(CHANNELS, dtype=torch.float64)
        twin = tuple(r.clone() for r in running)
        got = scale_batch_norm(ScaleSpace.unstack(t), *running, training=True)
        assert_close(got.stack().flatten(2), F.batch_norm(t.flatten(2), *twin, training=True))
        assert_close(running, twin)


class TestEqualWeights:
    @pytest.mark.parametrize("shape", [(9,), (7, 6), (5, 4, 3)])
    def test_moments(self, shape):
        """A level of four samples weighs as much as one of a thousand."""
        x = random_space(*shape)
        assert_close(batch_moments(x.levels)[:2], moments_naively(x))
        mean, var, _ = batch_moments((torch.zeros(1, 1, 1000), torch.ones(1, 1, 4)))
        assert (mean.item(), var.item()) == (0.5, 0.25)
        far = random_space(9, 9, dtype=torch.float32).map(lambda f: f * 1e-3 + 1e3)  # the variance does not cancel
        assert_close(batch_moments(far.levels)[1].double(), moments_naively(far.double())[1], rtol=1e-2, atol=0)

    def test_output_gradients_and_running_statistics(self):
        """The unbiased factor counts all samples of all levels."""
        x = random_space(7, 6)
        weight, bias = (torch.rand(CHANNELS, dtype=torch.float64, requires_grad=True) for _ in range(2))
        leaves = (*(f.requires_grad_() for f in x.levels), weight, bias)
        got = scale_batch_norm(x, None, None, weight, bias, training=True).levels
        expected = normalize_naively(x, weight, bias)
        assert_close(got, expected)
        back = [torch.randn_like(f) for f in got]
        mine, theirs = (torch.autograd.grad(out, leaves, back) for out in (got, expected))
        assert_close(mine, theirs, rtol=1e-6, atol=1e-8)
        layer = ScaleBatchNorm(CHANNELS, momentum=0.3, dtype=torch.float64)
        layer(x)
        mean, var = moments_naively(x)
        count = sum(f.numel() // CHANNELS for f in x.levels)
        assert_close(layer.running_mean, 0.3 * mean)
        assert_close(layer.running_var, 0.7 + 0.3 * var * count / (count - 1))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("weights", [torch.float32, "half"])
    def test_half_precision_is_reduced_in_single(self, dtype, weights):
        x = random_space(9, 9, dtype=torch.float32).to(dtype).map(torch.Tensor.requires_grad_)
        layer = ScaleBatchNorm(CHANNELS, dtype=dtype if weights == "half" else weights)
        out = layer(x)
        torch.stack([level.float().pow(3).sum() for level in out.levels]).sum().backward()
        assert layer.weight.grad is not None
        assert layer.running_mean is not None
        assert (out.dtype, layer.weight.grad.dtype) == (dtype, layer.running_mean.dtype)
        expected = normalize_naively(x.float(), layer.weight, layer.bias)
        assert_close([f.float() for f in out.levels], list(expected), atol=0.03, rtol=0.03)


class TestKernels:
    """PyTorch's own kernels against the formula, which compilers and transforms take."""

    @staticmethod
    def run(x: ScaleSpace, leaves: list[Any], fast: bool, **settings: Any) -> tuple:
        running = torch.stack([torch.zeros_like(leaves[0]), torch.ones_like(leaves[0])]).detach()
        with patch.object(_choice, "is_transformed", lambda: not fast):
            out = scale_batch_norm(x, *running, *leaves[:2], training=True, **settings)
        torch.manual_seed(0)
        back = [torch.randn_like(level) for level in out.levels]
        return out.levels, running, torch.autograd.grad(out.levels, leaves, back)

    @given(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.sampled_from([1, 3]), st.booleans())
    def test_are_the_formula(self, dims, batch, channels_last, elements, single):
        dtype, limit = (torch.float32, 1e-5) if single else (torch.float64, 1e-12)
        x = random_space(*[17, 12, 5][:dims], batch=batch, dtype=dtype)
        if channels_last and dims == 2:
            x = x.map(lambda f: f.contiguous(memory_format=torch.channels_last))
        leaves = [torch.rand(CHANNELS // elements, dtype=x.dtype, requires_grad=True) for _ in range(2)]
        leaves += [level.requires_grad_() for level in x.levels]
        (*got, gradients), (*expected, exact) = (self.run(x, leaves, fast, elements=elements) for fast in (True, False))
        assert_close(got, expected, rtol=limit, atol=limit)
        if not single:
            assert_close(gradients, exact, rtol=limit, atol=limit)
        for mine, theirs in zip(gradients, exact, strict=True):
            assert (mine - theirs).norm() <= limit * max(theirs.norm(), 1.0)

    def test_levels_of_different_types(self):
        x = random_space(5, 5)
        mixed = ScaleSpace((x.levels[0].float(), *x.levels[1:]), 2.0, x.steps)
        out, expected = (scale_batch_norm(levels, None, None, training=True) for levels in (mixed, x))
        assert_close([f.double() for f in out.levels], list(expected.levels), atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("elements", [1, 3])
    def test_gradients_and_theirs(self, elements):
        x = random_space(3, batch=2)
        weight, bias = (torch.rand(CHANNELS // elements, dtype=x.dtype, requires_grad=True) for _ in range(2))
        inputs = (weight, bias, *(f.requires_grad_() for f in x.levels))

        def normalize(weight: Tensor, bias: Tensor, *levels: Tensor) -> tuple[Tensor, ...]:
            return scale_batch_norm(x.replace(levels), None, None, weight, bias, True, elements=elements).levels

        assert torch.autograd.gradcheck(normalize, inputs)
        assert torch.autograd.gradgradcheck(normalize, inputs)

    def test_keep_the_levels_alone(self):
        """Nothing the size of a level is kept for the gradient, but the levels themselves."""
        x = random_space(16, 16, dtype=torch.float32).to(torch.bfloat16).map(torch.Tensor.requires_grad_)
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            scale_batch_norm(x, None, None, torch.ones(CHANNELS, requires_grad=True), training=True)
        assert {t.data_ptr() for t in kept if t.numel() > CHANNELS} == {level.data_ptr() for level in x.levels}

    def test_transforms_and_many_gradients_at_once(self):
        x = random_space(5)

        def some(*levels: Tensor) -> Tensor:
            return scale_batch_norm(x.replace(levels), None, None, training=True).levels[0].flatten()[:4]

        slow, fast = (torch.autograd.functional.jacobian(some, x.levels, vectorize=v) for v in (False, True))
        assert_close(fast, slow)

        def total(first: Tensor) -> Tensor:
            return scale_batch_norm(x.replace((first, *x.levels[1:])), None, None).levels[1].pow(3).sum()

        first = x.levels[0].clone().requires_grad_()
        (expected,) = torch.autograd.grad(total(first), first)
        assert_close(torch.func.grad(total)(x.levels[0]), expected)
        tangent = torch.randn_like(expected)
        assert_close(torch.func.jvp(total, (x.levels[0],), (tangent,))[1], (expected * tangent).sum())


class TestEvaluation:
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_commutes_with_scale(self, sampling):
        layer = modules()[0]
        layer(random_space(8, 8))
        layer.eval()
        before = copy.deepcopy(layer.state_dict())
        x = random_space(9, 9, sampling=sampling)
        for n in (1, 2):
            assert_close(layer(scale_shift(x, n)).levels, scale_shift(layer(x), n).levels)
        assert_close(dict(layer.state_dict()), dict(before))


class TestEmptyBatch:
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"track_running_stats": False}, {"sync": True}])
    @pytest.mark.parametrize("kind", [ScaleBatchNorm, P4BatchNorm])
    def test_is_torchs(self, training, settings, kind):
        """Nothing comes out, gradients are zeros, and the running statistics stay."""
        plain = nn.BatchNorm2d(4, **{key: value for key, value in settings.items() if key != "sync"}).train(training)
        layer = kind(4, **settings).train(training)
        levels = tuple(torch.zeros(0, 4 * layer.elements, n, n, requires_grad=True) for n in (4, 2))
        out = layer(ScaleSpace(levels, steps=(1, 2)))
        assert out.shapes == tuple(tuple(level.shape) for level in levels)
        torch.stack([level.sum() for level in out.levels]).sum().backward()
        plain(torch.zeros(0, 4, 4, 4)).sum().backward()
        assert_close(layer.state_dict(), plain.state_dict())
        assert_close([p.grad for p in layer.parameters()], [p.grad for p in plain.parameters()])
        assert all(level.grad is not None and level.grad.shape == level.shape for level in levels)


def test_refuses_what_it_cannot_normalize():
    x, fields = random_space(4, 4), ScaleSpace((torch.rand(2, 6, 3, 3),))
    layer: Any = ScaleBatchNorm(CHANNELS)
    for call, message in (
        (lambda: ScaleBatchNorm(4)(x), "running_mean is for 4 channels, got levels of 3"),
        (lambda: scale_batch_norm(x, None, None, torch.ones(2)), "weight is for 2 channels, got levels of 3"),
        (lambda: scale_batch_norm(fields, None, None, elements=4), "channels come in fields of 4, got levels of 6"),
        (lambda: scale_batch_norm(fields, None, None, torch.ones(6), elements=2), "weight is for 12 channels, got lev"),
        (lambda: ScaleBatchNorm(3)(ScaleSpace((torch.ones(1, 3, 1, 1),))), "more than one value per channel"),
        (lambda: layer(torch.ones(1, CHANNELS, 4, 4)), "expected a ScaleSpace"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    assert layer.num_batches_tracked == 0


class TestFields:
    """Consecutive channels that share their statistics: as if they were more samples of one channel."""

    @pytest.mark.parametrize(("training", "affine"), [(True, True), (True, False), (False, True), (False, False)])
    @given(elements=st.sampled_from([2, 4, 8]), sizes=st.sampled_from([(8, 4, 2), (5, 5, 5)]), fields=st.integers(1, 3))
    @settings(max_examples=10)
    def test_normalization_and_running_statistics(self, training, affine, elements, sizes, fields):
        levels = [torch.randn(3, fields * elements, n, n, dtype=torch.float64) * n + 1 for n in sizes]
        wide = [f.reshape(3, fields, elements * f.shape[2], f.shape[3]) for f in levels]
        weight, bias = torch.rand(2, fields, dtype=torch.float64) if affine else (None, None)
        running = torch.rand(2, fields, dtype=torch.float64)
        twin, steps = running.clone(), [sizes[0] / n for n in sizes]
        x, y = (ScaleSpace(tuple(f), steps=tuple(steps)) for f in (levels, wide))
        got = scale_batch_norm(x, running[0], running[1], weight, bias, training, elements=elements)
        expected = scale_batch_norm(y, twin[0], twin[1], weight, bias, training)
        assert_close(got.levels, tuple(g.reshape(f.shape) for f, g in zip(levels, expected.levels, strict=True)))
        assert_close(running, twin)
