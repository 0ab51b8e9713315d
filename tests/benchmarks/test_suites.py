"""The suites have the cases they promise, measure them, and compare what is alike."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scalespaces.bench._case import Case, Contender, Settings, measure, measure_growth, tensors, training_step
from scalespaces.bench.suites import GROWTH, SUITES
from scalespaces.bench.suites import _data as data
from scalespaces.bench.suites import _layers as layers
from scalespaces.bench.suites import _models as models
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

QUICK = Settings(runs=1, quick=True)
BUILT = Settings(device="meta")  # the full sizes, which take no time to build there


def limits(case: Case) -> dict[str, Any]:
    numbers = {c.name: (c.limit, c.folded) for c in case.contenders}
    return {name: tuple(n and round(n, 2) for n in pair) for name, pair in numbers.items()}


def test_layers_and_their_limits():
    correlation, norm, pool, scale_pool = SUITES["layers"](BUILT)
    assert correlation.title == "3 x 3 correlation, 64 channels, 128 x 128, batch 4, 4 levels"
    assert limits(correlation) == {
        "plain": (None, None),
        "pyramid, k = 1": (1.33, 1.33),
        "pyramid, k = 2": (2.64, 2.24),
        "dense, k = 1": (4.0, None),
        "dense, k = 2": (7.0, None),
        "paper, k = 1": (4.0, None),
        "paper, k = 2": (7.0, None),
    }
    alike = {"plain": (None, None), "pyramid": (1.33, None), "dense": (4.0, None), "paper": (4.0, None)}
    assert limits(norm) == limits(pool) == alike
    assert [c.limit for c in scale_pool.contenders] == [None, 1.0, None, 1.0]
    for case in (correlation, norm, pool, scale_pool):
        assert all(tensor.requires_grad for c in case.contenders for x in c.inputs for tensor in tensors(x))
        assert isinstance(case.contenders[0].work, nn.Module)


def test_networks_and_their_limits():
    resnet, densenet = SUITES["models"](BUILT)
    assert "N = 16, 256 x 256, batch 4" in resnet.title
    assert "96 x 96, batch 32" in densenet.title
    found = limits(resnet)
    assert found["pyramid, k = 1"] == (1.33, 1.33)
    assert found["pyramid, k = 2"] == pytest.approx((1.74, 1.62), abs=0.015)
    assert found["dense, k = 1"] == found["paper, k = 1"] == (4.0, None)
    assert found["dense, k = 2"] == found["paper, k = 2"]
    assert limits(densenet)["pyramid, k = 3"][0] == pytest.approx(1.5, abs=0.05)
    assert {c.name: c.rival for c in resnet.contenders if c.rival} == {
        "dense, k = 1": "paper, k = 1",
        "dense, k = 2": "paper, k = 2",
    }
    assert [type(case.contenders[0].work).__module__ for case in (resnet, densenet)] == ["scalespaces.bench._plain"] * 2


@pytest.mark.parametrize("format", ["channels_last", "contiguous"])
def test_contenders_see_what_settings_say(format):
    settings = dataclasses.replace(QUICK, format=format, dtype="float64")
    formats = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    for case in (*SUITES["layers"](settings), *SUITES["models"](settings)):
        for c in case.contenders:
            work: Any = c.work
            wanted = formats["contiguous" if c.name.endswith("contiguous") else format]
            for tensor in (*work.parameters(), *(t for x in c.inputs for t in tensors(x))):
                assert tensor.dtype == torch.float64
                assert tensor.ndim != 4 or tensor.is_contiguous(memory_format=wanted)
                if tensor.ndim == 5 and format == "channels_last" and not isinstance(tensor, nn.Parameter):
                    assert tensor.is_contiguous(memory_format=torch.channels_last_3d)


# --- what is compared is alike ---------------------------------------------------------------------------------------


def test_opencv_lifts_as_we_do():
    pytest.importorskip("cv2")
    for case in SUITES["lift"](QUICK):
        results = {c.name: c.work(*c.inputs) for c in case.contenders}
        ours = [level[0].movedim(0, -1).numpy() for level in results["ours"].levels]
        names = [name for name in results if "sepFilter2D" in name and name.startswith("OpenCV")]
        theirs = results[names[0]]
        for level, other in zip(ours[-len(theirs) :], theirs, strict=True):
            np.testing.assert_allclose(level, other, atol=1e-5)
        if "OpenCV pyrDown" in results:  # other taps, the same grids
            assert [level.shape for level in results["OpenCV pyrDown"]] == [level.shape for level in ours]


def test_opencv_gets_its_threads_back():
    cv2 = pytest.importorskip("cv2")
    before = cv2.getNumThreads()
    for _ in SUITES["lift"](QUICK):
        assert cv2.getNumThreads() == torch.get_num_threads()
    assert cv2.getNumThreads() == before


def test_plain_h5py_reads_the_same_patches(monkeypatch):
    pytest.importorskip("h5py")
    batches = []
    monkeypatch.setattr(
        data, "DataLoader", lambda *args, **kwargs: batches.append([*DataLoader(*args, **kwargs)]) or ()
    )
    for case in SUITES["data"](QUICK):
        if "reading" in case.title:
            for c in case.contenders:
                c.work()
        else:
            assert case.contenders[0].name == "plain: DenseNet, training step"
            assert case.contenders[1].work().shape == (4, 3, 96, 96)
    theirs, ours = batches
    assert len(ours) == 4
    assert_close(theirs, ours)


def test_layers_compute_alike():
    correlation, norm, pool, scale_pool = SUITES["layers"](dataclasses.replace(QUICK, dtype="float64"))
    for case in (correlation, norm, pool):
        for ours in (c for c in case.contenders if c.rival):
            theirs = next(c for c in case.contenders if c.name == ours.rival)
            x = ours.inputs[0]
            assert_close(theirs.work(x.stack()), ours.work(x).stack())
    plain, pyramid, mean, dense = scale_pool.contenders
    assert plain.work(*plain.inputs).shape == pyramid.work(*pyramid.inputs).shape
    assert_close(mean.work(dense.inputs[0].stack()), dense.work(*dense.inputs))


# --- measuring -------------------------------------------------------------------------------------------------------


def test_a_training_step_leaves_gradients_of_what_it_computed():
    layer, x = nn.Linear(3, 2), torch.rand(4, 3, requires_grad=True)
    seen = []
    layer.register_full_backward_hook(lambda *_: seen.append(layer.training))
    training_step(Contender("layer", layer.eval(), (x,)))()
    assert seen == [True]
    assert x.grad is None
    assert layer.weight.grad is None
    with pytest.raises(TypeError, match="only modules are trained"):
        training_step(Contender("function", print))


def test_measuring_a_case_against_itself():
    def contender(name: str, **more: Any) -> Contender:
        return Contender(name, nn.Conv2d(2, 2, 3), (torch.rand(1, 2, 8, 8, requires_grad=True),), **more)

    case = Case("suite", "title", (contender("one"), contender("other", limit=1.0, rival="one")))
    result = measure(case, Settings(runs=2, quick=True))
    one, other = result.rows
    assert one.memory == other.memory
    assert one.counts == other.counts == {"kernels": 1, "copies": 0, "synchronizations": 0}
    assert {phase: len(times) for phase, times in one.seconds.items()} == {"forward": 2, "training": 2}
    assert result.memory_ratio(other, "training") == 1
    assert (other.baseline, other.limit, other.rival) == ("one", 1.0, "one")


def test_functions_are_timed_and_nothing_else():
    calls = []
    case = Case("suite", "title", (Contender("f", lambda: calls.append(torch.is_grad_enabled())),), training=False)
    (row,) = measure(case, QUICK).rows
    assert calls == [True, True]
    assert (list(row.seconds), row.memory, row.counts) == (["forward"], {}, None)


def test_networks_are_measured():
    for case in SUITES["models"](QUICK):
        result = measure(case, QUICK)
        for row in result.rows:
            assert set(row.seconds) == set(row.memory) == {"forward", "training"}
            assert row.memory["training"] > row.memory["forward"] > 0
            assert row.counts is not None
            assert row.counts["kernels"] > row.counts["copies"]
            assert row.counts["synchronizations"] == 0
        plain = result.row("plain")
        assert plain.counts is not None
        assert plain.counts["kernels"] < 100


def test_growth():
    for axes in GROWTH.values():
        for axis in axes(QUICK):
            assert len(axis.cases) == 2
            assert axis.name in ("image size", "levels", "channels")
    growth = measure_growth(next(iter(layers.axes(QUICK))), QUICK)
    assert growth.values == [16, 32]
    assert [curve.name for curve in growth.curves] == ["plain", "pyramid, k = 1", "dense, k = 1"]
    for curve in growth.curves:
        assert growth.exponents(curve)[1] == pytest.approx(2, abs=0.1)  # memory is deterministic
    full = {axis.name: list(axis.cases) for axis in layers.axes(Settings())}
    assert full == {
        "image size": [32, 64, 128, 256, 512],
        "levels": [*range(1, 9)],
        "channels": [8, 16, 32, 64, 128, 256],
    }
    assert {axis.name for axis in models.axes(Settings())} == set(full)


@pytest.mark.slow
def test_compiled_contenders_stand_beside_the_compiled_baseline():
    settings = dataclasses.replace(QUICK, compile=True)
    shape = layers.Shape(1, 2, 8, 2)
    result = measure(layers.correlation(settings, shape, (1,)), settings)
    names = ["plain", "pyramid, k = 1", "dense, k = 1", "paper, k = 1"]
    assert [row.name for row in result.rows] == names + [f"{name}, compiled" for name in names]
    assert result.row("plain, compiled").baseline == "plain"
    assert result.row("dense, k = 1, compiled").baseline == "plain, compiled"
    assert result.row("dense, k = 1, compiled").rival == "paper, k = 1, compiled"
    assert result.row("dense, k = 1, compiled").counts is None
    pooled = measure(layers.scale_pooling(settings, shape), settings)
    assert pooled.row("dense, compiled").baseline == "plain: mean over one tensor, compiled"
