"""The lift as a layer: its arguments, in one order, and what it takes."""

import copy
import inspect
import itertools
import json
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from algebra import assert_same
from hypothesis import given
from hypothesis import strategies as st
from reference import QUINCUNX
from torch.testing import assert_close

from scalespaces import downscale, lift
from scalespaces.functional._lift import most_levels
from scalespaces.nn import Lift
from scalespaces.nn._lift import as_lift

PAPER: dict[str, Any] = {"sampling": "dense", "method": "direct"}


def test_function_and_layer_have_one_signature():
    function, layer = (dict(inspect.signature(f).parameters) for f in (lift, Lift))
    for parameters, name in ((function, "image"), (layer, "device"), (layer, "dtype")):
        parameters.pop(name)
    assert list(function) == list(layer)
    assert [p.default for p in function.values()] == [p.default for p in layer.values()]
    shared = inspect.signature(downscale).parameters.keys() & function.keys()
    assert {name: inspect.signature(downscale).parameters[name].default for name in shared} == {
        name: function[name].default for name in shared
    }


def test_the_papers_lift_is_one_thing():
    image = torch.rand(1, 1, 33, 33)
    assert_same(Lift.paper(3)(image), lift(image, 3, sampling="dense", method="direct"))
    assert Lift.paper(3, 3.0, zero_scale=1.0).config == Lift(3, 3.0, zero_scale=1.0, **PAPER).config
    assert repr(Lift.paper(3)) == "Lift(num_levels=3, base=2.0, sampling='dense', method='direct')"


@pytest.mark.parametrize("arguments", [{}, {"num_levels": np.int64(3), "first_level": np.int64(-1)}, {"base": 2}])
def test_the_config_is_json_and_builds_its_like(arguments):
    made = Lift(**arguments)
    again = Lift(**json.loads(json.dumps(made.config)))
    image = torch.rand(1, 1, 20, 20)
    assert again.config == made.config
    assert_same(again(image), made(image))


def test_networks_take_no_subclass_of_a_lift():
    """Their files could not build it again."""
    with pytest.raises(TypeError, match=r"takes a Lift, not its subclass Mine"):
        as_lift(type("Mine", (Lift,), {})(3), {})


@pytest.mark.parametrize(
    ("shape", "dims", "message"),
    [
        ((3, 64, 64), 2, r"got shape \(3, 64, 64\); add a batch axis with image\[None\], or pass dims=1"),
        ((64, 64), 2, r"expected images \(B, C, H, W\), got shape \(64, 64\)"),
        ((1, 3, 8, 8, 8), 2, r"pass dims=3 for volumes"),
        ((1, 3, 8, 8), 1, r"expected signals .* pass dims=2 for images"),
        ((3, 64), 1, r"expected signals \(B, C, time\), got shape \(3, 64\); add a batch axis"),
        ((1, 3, 8, 8), 4, r"dims, the number of spatial axes, is 1, 2 or 3, got 4"),
    ],
)
def test_what_is_no_batch_of_images_is_refused_with_the_remedy(shape, dims, message):
    image = torch.rand(shape)
    for call in (lambda: lift(image, dims=dims), lambda: Lift(dims=dims)(image), lambda: downscale(image, dims=dims)):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_base_matrix_has_a_row_for_each_axis():
    matrix = ((2.0, 0.0), (0.0, 2.0))
    for call in (Lift, lambda **options: lift(torch.rand(1, 1, 8), **options)):
        with pytest.raises(ValueError, match=r"a row for each of 1 axes, got 2; pass dims=2"):
            call(base=matrix, sampling="dense", dims=1)


@given(st.lists(st.integers(1, 70), min_size=2, max_size=2), st.sampled_from([2.0, 2**0.5, 3.0, 1.7]))
def test_room_for_levels_is_two_samples_on_a_pyramid(size, base):
    most = most_levels(tuple(size), base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space = lift(torch.rand(1, 1, *size), most + 1, base)
    for axis, n in enumerate(size):
        assert n == 1 or all(space.sizes(k)[axis] > 1 for k in range(most))
    assert any(n == 1 for n in space.sizes(most)) or max(size) == 1


def test_a_level_with_a_single_sample_is_warned_of():
    with pytest.warns(
        UserWarning, match=r"9 levels of base 2.0 are too many .* 128 x 96: .* single sample is left; use num_levels=7"
    ):
        Lift(9)(torch.rand(1, 3, 128, 96))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Lift(7)(torch.rand(1, 3, 128, 96))
        Lift(3, first_level=-1)(torch.rand(1, 3, 5, 5))
        Lift(1)(torch.rand(1, 3, 1, 1))


LIFTS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": PAPER,
    "three levels": {"num_levels": 3},
    "fractional": {"base": 1.5, "method": "direct", "zero_scale": 0.5},
    "oversampled": {"base": 3, "sampling": 2, "method": "direct", "padding_mode": "circular"},
    "finer": {"first_level": -1, "method": "direct"},
    "binomial": {**PAPER, "kernel": "binomial", "zero_scale": 0.5, "truncation": 3.0},
    "quincunx": {"base": QUINCUNX, "sampling": "dense", "padding_mode": "zeros"},
    "list of lists": {**PAPER, "base": [[2, 0], [0, 2]], "num_levels": 2},
}


@pytest.mark.parametrize("arguments", LIFTS.values(), ids=LIFTS)
class TestLift:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_the_function_however_it_came_here(self, arguments, dtype):
        """Kernels are cast from float64, not from the float32 they were before; or else the image decides."""
        f, layer = torch.rand(2, 3, 14, 11, dtype=dtype), Lift(**arguments)
        assert dict(layer.state_dict()) == {}
        twins = [layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), Lift(**arguments).half().to(dtype)]
        meta = Lift(**arguments).to("meta")
        assert all(buffer.is_meta for buffer in meta.buffers())
        for twin in (*twins, meta.to_empty(device="cpu")):
            assert_same(twin(f), lift(f, **arguments))
        assert all(buffer.dtype == dtype for buffer in twins[-1].buffers())

    def test_downscales_as_it_lifts(self, arguments):
        f, layer = torch.rand(1, 1, 14, 11), Lift(**arguments)
        action = {key: layer.config[key] for key in ("base", "zero_scale", "kernel", "truncation", "padding_mode")}
        for n, method in itertools.product((0, 1), ("cascade", "direct")):
            assert_close(layer.downscale(f, n, method=method), downscale(f, n, method=method, **action))


def test_writing_to_a_layers_buffer_changes_no_other_lift():
    """Plans are shared; buffers must not be."""
    f = torch.rand(1, 1, 9, 9, dtype=torch.float64)
    before = lift(f, zero_scale=0.31, **PAPER)
    for buffer in Lift(zero_scale=0.31, **PAPER).double().buffers():
        buffer.zero_()
    assert_same(lift(f, zero_scale=0.31, **PAPER), before)
