"""Cases compare what is alike; tables and JSON hold what was measured of them."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

from benchmarks import _case, cost
from benchmarks._case import FORMATS, Case, Contender, Settings, measure, tensors, training_step
from benchmarks.cost import SUITES

QUICK = Settings(runs=1, quick=True)
BUILT = Settings(device="meta")  # the full sizes, which take no time to build there


def test_networks_and_their_limits():
    resnet, densenet = SUITES["models"](BUILT)
    assert "N = 16, 256 x 256, batch 4" in resnet.title
    assert "96 x 96, batch 32" in densenet.title
    limits = {c.name: (c.limit and round(c.limit, 2), c.folded and round(c.folded, 2)) for c in resnet.contenders}
    assert (limits["pyramid, k = 1"], limits["pyramid, k = 2"]) == ((1.33, 1.33), (1.75, 1.62))
    assert limits["dense, k = 1"][0] == limits["paper, k = 1"][0] == 4.0
    assert limits["dense, k = 2"][0] == limits["paper, k = 2"][0] == 4.95
    deep = densenet["pyramid, k = 3"]
    assert (deep.limit, deep.folded) == pytest.approx((1.53, 1.46), abs=5e-3)
    assert [resnet[f"dense, k = {k}"].rival for k in (1, 2)] == ["paper, k = 1", "paper, k = 2"]
    assert all("64 x 64" in case.title for case in SUITES["models"](dataclasses.replace(BUILT, side=64)))


def test_prepared_and_compiled_networks_are_compared_with_the_same_plain_one():
    one, *_ = SUITES["inference"](dataclasses.replace(QUICK, compile=True))
    assert ("64 x 64, batch 1" in one.title, one.phases) == (True, ("forward",))
    ours = ["pyramid, k = 1", "pyramid, k = 1, prepared", "pyramid, k = 2", "pyramid, k = 2, prepared"]
    assert [c.name for c in one.contenders] == ["plain", *ours, *(f"{n}, compiled" for n in ("plain", *ours[::2]))]
    with torch.no_grad():
        expected, prepared = (one[name].work(*one[name].inputs) for name in ours[:2])
    assert_close(prepared, expected, rtol=1e-4, atol=1e-4)
    few, *_ = SUITES["inference"](QUICK)
    assert [c.name for c in few.contenders] == ["plain", *ours]


def test_only_phases_of_a_case_and_only_processor_time_are_measured(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setitem(_case.CLOCKS, "cpu", lambda: next(ticks))
    case = Case("suite", "title", [Contender("layer", nn.Linear(3, 2), (torch.rand(1, 3),))], ("forward",))
    (found,) = measure(case, dataclasses.replace(QUICK, clock="cpu")).contenders
    assert found.seconds == {"forward": [1.0]}
    assert found.counts["kernels"] == 1


@pytest.mark.parametrize("format", ["channels_last", "contiguous"])
def test_contenders_see_what_settings_say(format):
    settings = dataclasses.replace(QUICK, format=format, dtype=torch.float64)
    for case in (*SUITES["layers"](settings), *SUITES["models"](settings)):
        for c in case.contenders:
            wanted, _ = FORMATS["contiguous" if c.name.endswith("contiguous") else format]
            for tensor in (*c.work.parameters(), *(t for x in c.inputs for t in tensors(x))):
                assert tensor.dtype == torch.float64
                assert tensor.ndim != 4 or tensor.is_contiguous(memory_format=wanted)
                if tensor.ndim == 5 and format == "channels_last" and not isinstance(tensor, nn.Parameter):
                    assert tensor.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.extra("cv2")
def test_opencv_lifts_as_we_do_and_gets_its_threads_back():
    cv2 = pytest.importorskip("cv2")

    before = cv2.getNumThreads()
    for case in SUITES["lift"](QUICK):
        assert cv2.getNumThreads() == torch.get_num_threads()
        results = {c.name: c.work(*c.inputs) for c in case.contenders}
        ours = [level[0].movedim(0, -1).numpy() for level in results["ours"].levels]
        theirs = next(results[name] for name in results if name.startswith("OpenCV sepFilter2D"))
        for level, other in zip(ours[-len(theirs) :], theirs, strict=True):
            np.testing.assert_allclose(level, other, atol=1e-5)
        if "OpenCV pyrDown" in results:  # other taps, the same grids
            assert [level.shape for level in results["OpenCV pyrDown"]] == [level.shape for level in ours]
    assert cv2.getNumThreads() == before


def test_plain_h5py_reads_the_same_patches(monkeypatch):
    batches = []
    keep = lambda *args, **kwargs: batches.append([*DataLoader(*args, **kwargs)]) or ()  # noqa: E731
    monkeypatch.setattr(cost, "DataLoader", keep)
    reading, parts = ([(c.name, c.work()) for c in case.contenders] for case in SUITES["data"](QUICK))
    assert [name for name, _ in reading] == ["plain: h5py", "ours: PCam"]
    theirs, ours, _ = batches
    assert len(ours) == 4
    assert_close(theirs, ours)
    assert dict(parts)["ours: augmentation"].shape == (4, 3, 96, 96)


def test_layers_compute_alike():
    for case in SUITES["layers"](dataclasses.replace(QUICK, dtype=torch.float64)):
        for ours in (c for c in case.contenders if c.rival):
            x = ours.inputs[0]
            assert_close(case[str(ours.rival)].work(x.stack()), ours.work(x).stack())


def test_a_training_step_leaves_no_gradients():
    layer, x = nn.Linear(3, 2), torch.rand(4, 3, requires_grad=True)
    seen = []
    layer.register_full_backward_hook(lambda *_: seen.append(layer.training))
    training_step(Contender("layer", layer.eval(), (x,)))()
    assert (seen, x.grad, layer.weight.grad) == ([True], None, None)
    calls = []  # functions are timed, and nothing else is measured of them
    case = Case("suite", "title", [Contender("f", lambda: calls.append(torch.is_grad_enabled()))])
    (found,) = measure(case, QUICK).contenders
    assert calls == [True, True]
    assert (list(found.seconds), found.memory, found.counts) == (["forward"], {}, {})


@pytest.mark.slow
def test_networks_are_measured():
    for case in SUITES["models"](QUICK):
        for c in measure(case, QUICK).contenders:
            assert set(c.seconds) == set(c.memory) == {"forward", "training"}
            assert c.memory["training"] > c.memory["forward"] > 0
            assert c.counts["kernels"] > c.counts["copies"]
            assert c.counts["synchronizations"] == 0
        assert case["plain"].counts["kernels"] < 100


def example() -> Case:
    def measured(name: str, forward: list[float], training: list[float], mib: int, **more: Any) -> Contender:
        memory = {"forward": 2**20, "training": mib * 2**20}
        return Contender(name, None, seconds={"forward": forward, "training": training}, memory=memory, **more)

    counts = {"kernels": 7, "copies": 2, "synchronizations": 0}
    contenders = [
        measured("plain", [1.0, 2.0, 4.0], [2.0, 2.0, 2.0], 1),
        measured("dense", [3.0, 8.0, 8.0], [4.0, 6.0, 10.0], 3, limit=4.0, rival="paper", counts=counts),
        measured("paper", [6.0, 16.0, 16.0], [8.0, 6.0, 10.0], 6, limit=4.0, folded=3.5),
    ]
    return Case("layers", "a layer", contenders)


def test_the_table_has_medians_over_rounds():
    lines = str(example()).splitlines()
    assert lines[0] == "layers: a layer"
    head = "limit  forward, ms  ratio  quartiles  training, ms  ratio  quartiles  MiB  ratio  kernels  copies  waits"
    assert (lines[1].split(), set(lines[2])) == (head.split(), {"-"})
    assert " ".join(lines[3].split()) == "plain 2000 1.00 2000 1.00 1.0 1.00"
    assert " ".join(lines[4].split()) == "dense 4.00 8000 3.00 [2.50, 3.50] 6000 3.00 [2.50, 4.00] 3.0 3.00 7 2 0"
    assert "4.00 (3.50)" in lines[5]
    assert lines[4].index("3.00") + 4 == lines[1].index("ratio") + 5  # numbers end where their head ends
    assert lines[6] == "dense against paper, forward: 2.00 times as fast, 1.00 of the memory"
    assert lines[7] == "dense against paper, training: 1.00 times as fast, 0.50 of the memory"
