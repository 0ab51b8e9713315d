"""What the lift does with tensors of all kinds: precision, layout, transforms, gradients, graphs, refusals."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from reference import QUINCUNX, assert_levels, image, paper_lift, refusals

from scalespaces import downscale, lift
from scalespaces.nn import Lift


def rows(n: int, base: float, method: Any = "direct") -> list[np.ndarray]:
    """Each level of a pyramid of signals as a matrix: row i holds what its sample i takes from every pixel."""
    x = paper_lift(torch.eye(n, dtype=torch.float64)[:, None], 3, base, method=method, sampling="pyramid")
    return [level[:, 0].numpy().T for level in x.levels]


class TestTensors:
    @pytest.mark.parametrize("shape", [(11,), (6, 7), (4, 5, 6)])
    @pytest.mark.parametrize("method", ["direct", "cascade"])
    @pytest.mark.parametrize("base", [2.0, 1.5])
    def test_any_number_of_axes_is_one_axis_after_another(self, shape, method, base):
        f = image(*shape)
        expected = [f.numpy()] * 3
        for axis, n in enumerate(shape, 2):
            matrices = rows(n, base, method)
            expected = [
                np.moveaxis(np.tensordot(matrix, level, (1, axis)), 0, axis)
                for matrix, level in zip(matrices, expected, strict=True)
            ]
        assert_levels(paper_lift(f, 3, base, method=method, sampling="pyramid"), expected)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    def test_half_precision_is_rounded_once(self, base, dtype):
        """One rounding is half a unit in the last place; single precision adds next to nothing."""
        f = image(12, 150).to(dtype)
        unit = torch.finfo(dtype).eps / 2
        exact = paper_lift(f.double(), 4, base)
        for x in (paper_lift(f, 4, base), Lift.paper(4, base).to(dtype)(f)):
            for got, expected in zip(x.levels, exact.levels, strict=True):
                assert got.dtype == dtype
                error = (got.double() - expected).abs()
                assert (error <= unit * expected.abs() + torch.finfo(dtype).tiny * unit + 1e-6).all()

    @pytest.mark.parametrize("base", [2.0, 1.5])
    def test_single_precision_which_autocast_leaves_alone(self, base):
        """Blurring in bfloat16 would break exactness, and level 0, the image itself, would be of another type."""
        f, settings = image(16, 9), {"sampling": "pyramid", "method": "cascade"}
        single = paper_lift(f.float(), 4, base, **settings)
        assert_levels(single, paper_lift(f, 4, base, **settings), atol=1e-6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = paper_lift(f.float(), 4, base, **settings)
        assert x.dtype == single.dtype == torch.float32
        assert_levels(x, single, rtol=0, atol=0)

    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    @pytest.mark.parametrize("sampling", ["dense", "pyramid"])
    def test_memory_format_stays_and_does_not_matter(self, base, sampling):
        if base == QUINCUNX:
            sampling = "dense"
        f = torch.rand(2, 3, 12, 140, dtype=torch.float64)
        twin = f.contiguous(memory_format=torch.channels_last)
        strided = torch.rand(2, 3, 24, 9, dtype=torch.float64)[:, :, ::2]
        for a, b in ((f, twin), (strided.clone(), strided)):
            x, y = (paper_lift(g, 3, base, sampling=sampling) for g in (a, b))
            assert_levels(x, y, atol=1e-13)
            for layout in (torch.contiguous_format, torch.channels_last):
                for g, lifted in ((a, x), (b, y)):
                    if base != QUINCUNX and g.is_contiguous(memory_format=layout):
                        assert all(level.is_contiguous(memory_format=layout) for level in lifted.levels)

    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    @pytest.mark.parametrize("shape", [(8, 9), (3, 140)])
    def test_vmap(self, base, shape):
        f = torch.rand(3, 2, 2, *shape, dtype=torch.float64)
        for axis in (0, 2):
            got = torch.vmap(lambda f: paper_lift(f, 3, base).levels, axis)(f)
            for levels, one in zip(zip(*got, strict=True), f.unbind(axis), strict=True):
                assert_levels(levels, paper_lift(one, 3, base))

    @pytest.mark.parametrize("base", [2.0, 1.5, QUINCUNX])
    @pytest.mark.parametrize("method", ["direct", "cascade"])
    @pytest.mark.parametrize("mode", ["zeros", "reflect"])
    def test_gradient(self, base, method, mode):
        sampling = "dense" if base == QUINCUNX else "pyramid"
        f = torch.rand(1, 1, 4, 3, dtype=torch.float64, requires_grad=True)

        def levels(f):
            return paper_lift(f, 3, base, method=method, sampling=sampling, padding_mode=mode).levels

        assert torch.autograd.gradcheck(levels, f)

    def test_an_image_without_gradient_keeps_nothing(self):
        f, kept = image(5, 150), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            paper_lift(f)
            assert kept == []
            paper_lift(f.requires_grad_())
        assert all(saved.numel() < 150 * 150 for saved in kept)

    def test_bases_in_any_guise_and_an_empty_batch(self):
        x = paper_lift(torch.zeros(0, 3, 8, 8), 3, sampling="pyramid")
        assert x.shapes == ((0, 3, 8, 8), (0, 3, 4, 4), (0, 3, 2, 2))
        for base in (2, np.float64(2), np.int64(2), [[2.0, 0.0], [0.0, 2.0]], np.diag([2, 2])):
            assert paper_lift(image(6, 6), 2, base).base in (2.0, ((2.0, 0.0), (0.0, 2.0)))


SAMPLED = [(2.0, "dense"), (2.0, "pyramid"), (2**0.5, "pyramid")]
STRICT = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="before 2.13, strict exports take neither free sizes nor constants of ours",
)


class TestGraphs:
    """Short and long axes take different ways, and free sizes a third."""

    @pytest.mark.parametrize(
        ("base", "sampling", "free", "strict"),
        [
            *[(*kind, "batch", False) for kind in SAMPLED],
            *[(*kind, "sizes", False) for kind in SAMPLED[:2]],
            pytest.param(*SAMPLED[1], "sizes", True, marks=STRICT),
        ],
    )
    def test_export(self, base, sampling, free, strict):
        model, f = Lift(3, base, sampling=sampling), torch.rand(2, 3, 40, 150)
        height, width = (torch.export.Dim(name, min=32, max=512) for name in "hw")
        shapes: Any = ({0: torch.export.Dim("b", min=1, max=9)} if free == "batch" else {2: height, 3: width},)
        exported = torch.export.export(model, (f,), dynamic_shapes=shapes, strict=strict).module()
        others = [(5, 40, 150)] if free == "batch" else [(2, 130, 33), (2, 200, 201)]
        for image_ in (f, *(torch.rand(b, 3, h, w) for b, h, w in others)):
            assert_levels(exported(image_), model(image_), 1e-5, 1e-6)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")  # torch's exporter has several about itself
    @pytest.mark.parametrize(("base", "sampling"), SAMPLED)
    @pytest.mark.parametrize("mode", ["reflect", "zeros"])
    def test_onnx(self, base, sampling, mode, tmp_path):
        pytest.importorskip("onnxscript")
        runtime: Any = pytest.importorskip("onnxruntime")
        model, f = Lift(3, base, sampling=sampling, padding_mode=mode).eval(), torch.rand(1, 3, 40, 301)
        path = tmp_path / "lift.onnx"
        torch.onnx.export(model, (f,), path, dynamo=True, external_data=False, verbose=False)
        assert path.stat().st_size < 400_000
        session = runtime.InferenceSession(path)
        got = session.run(None, {session.get_inputs()[0].name: f.numpy()})
        assert_levels(got, model(f).levels[-len(got) :], 1e-5, 1e-6)

    @pytest.mark.slow
    @pytest.mark.parametrize(("base", "sampling"), SAMPLED)
    @pytest.mark.parametrize("dynamic", [None, True])
    def test_compile(self, base, sampling, dynamic):
        """At the second size torch makes sizes symbols, if it may; with ``dynamic=True`` at once."""
        torch.compiler.reset()
        model = Lift(3, base, sampling=sampling)
        compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
        for shape in ((2, 3, 40, 150), (2, 3, 140, 36), (2, 3, 17, 64)):
            f, twin = (torch.rand(shape).requires_grad_() for _ in range(2))
            twin.data.copy_(f.data)
            got, expected = compiled(f).levels, model(twin).levels
            assert_levels(got, expected, 1e-5, 1e-6)
            for levels in (got, expected):
                torch.stack([(level**3).sum() for level in levels[1:]]).sum().backward()
            assert_levels([f.grad], [twin.grad], 1e-5, 1e-6)


WRONG: dict[str, tuple[Any, ...]] = {
    "base": (1.0, 0.5, math.nan, math.inf),
    "zero_scale": (math.nan, -0.25, math.inf),
    "num_levels": (-1, 2.5),
    "sampling": (0.5, math.nan, math.inf, "sparse"),
    "padding_mode": ("mirror",),
    "first_level": (1, -4),
    "truncation": (0.0, math.nan),
}


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            *[({name: value}, name) for name, values in WRONG.items() for value in values],
            ({"base": ((1.0, 0.0), (0.0, 0.5))}, "expand"),
            ({"base": ((1.0, 1.0),)}, "square"),
            ({"num_levels": 0}, "num_levels must be an integer >= 1, got 0"),
            ({"kernel": "gaussian"}, "did you mean"),
            ({"kernel": "binomial"}, "binomial"),
            ({"method": "both"}, "method is one of cascade, direct"),
            ({"base": QUINCUNX}, "matrix base"),
            ({"base": QUINCUNX, "sampling": "dense", "first_level": -1}, "matrix base"),
            ({"base": QUINCUNX, "sampling": "dense", "kernel": "binomial"}, "matrix base"),
        ],
    )
    def test_what_to_do_instead(self, settings, message):
        """The layer says so before it sees an image."""
        for call in (Lift, partial(lift, torch.zeros(1, 1, 8, 8))):
            with pytest.raises(ValueError, match=message):
                call(**settings)

    @pytest.mark.parametrize(("name", "right", "wrong"), [("num_levels", 4, 4.0), ("sampling", 1, True)])
    def test_a_refusal_does_not_depend_on_what_was_lifted_before(self, name, right, wrong):
        lift(torch.zeros(1, 1, 8, 8), **{name: right})
        with pytest.raises(ValueError, match=name):
            lift(torch.zeros(1, 1, 8, 8), **{name: wrong})


ARRAY: Any = np.zeros((1, 1, 8))
STEPS: list[Any] = [-1, 1.0, "1"]
INTEGERS = torch.zeros(1, 1, 8, 8, dtype=torch.int64)

test_refusals = refusals(
    (lambda: lift(INTEGERS), r"floating-point numbers, got torch\.int64; .*image\.float"),
    (lambda: lift(torch.zeros(1, 1, 8, 0)), "at least one sample along every axis"),
    (lambda: lift(torch.zeros(1, 1, 2, 2, 2, 2)), r"expected images .*, got shape"),
    (lambda: lift(ARRAY), "got ndarray"),
    *[(lambda n=n: downscale(torch.zeros(1, 1, 8, 8), n), "n must be an integer >= 0") for n in STEPS],
)
