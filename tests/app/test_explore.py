"""Fields become lifts or messages; levels and costs are the library's."""

import math
import re
import warnings
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scalespaces
from scalespaces.app._explore import MOST_LEVELS, check_size, lift_arguments, number, scale_space
from scalespaces.data import photograph
from scalespaces.theory._kernels import KERNELS


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2), (" 0.25 ", 0.25), ("1/4", 0.25), ("3 / 2", 1.5), ("√2", 2**0.5), ("√1/4", 0.5), (3, 3), (1e3, 1000)],
)
def test_numbers_as_people_write_them(text, value):
    assert number("base", text) == value


@pytest.mark.parametrize(
    "text", ["", None, "two", "0,5", "1/0", "nan", "inf", "√-1", "√", "1e999", "2**0.5", "[2]", "x" * 99]
)
def test_what_is_no_number(text):
    with pytest.raises(ValueError, match=r"^base must be a number such as 2, 0\.25, 1/4 or √2, got '.{0,40}'$"):
        number("base", text)


@pytest.mark.parametrize(
    ("fields", "size", "message"),
    [
        ({"base": "1"}, (64, 64), "base must be a finite number > 1"),
        ({"zero_scale": "-1"}, (64, 64), "zero_scale must be a finite number >= 0"),
        ({"num_levels": 0}, (64, 64), "levels must be a whole number from 1 to 12, got 0"),
        ({"num_levels": 2, "first_level": -2}, (64, 64), "first level must be a whole number from -1 to 0, got -2"),
        ({"sampling": "oversampled", "oversampling": 0.5}, (64, 64), "oversampling must be 1 .* or more, got 0.5"),
        ({"num_levels": None}, (64, 64), "levels must be a number"),
        ({"num_levels": 4}, (1, 1), r"4 levels of base 2 are too many for an image of 1 × 1 .* choose 1 at most"),
        ({"num_levels": 6}, (16, 300), r"of 300 × 16 pixels.* choose 4 at most"),
        ({"num_levels": 4, "first_level": -3}, (1024, 1024), "levels from -3 on make too many samples"),
        ({"num_levels": 4, "base": "1e200", "first_level": -3}, (64, 64), "levels from -3 on make too many samples"),
        ({"zero_scale": "1e300"}, (64, 64), "would be blurred over .* choose fewer levels"),
    ],
)
def test_fields_that_make_no_lift_or_one_that_an_image_cannot_take(arguments, fields, size, message):
    with pytest.raises(ValueError, match=message):
        scale_space(torch.rand(1, 3, *size), arguments(**fields))


@given(levels=st.integers(1, MOST_LEVELS), base=st.sampled_from(["2", "√2", "3/2", "3"]), size=st.integers(2, 40))
def test_what_the_library_warns_of_is_refused(arguments, levels, base, size):
    made = arguments(num_levels=levels, base=base)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scalespaces.lift(torch.zeros(1, 1, size, size), **made)
    with pytest.raises(ValueError, match="too many for an image") if said else nullcontext():
        check_size(made, (size, size))


@given(
    kernel=st.sampled_from([*KERNELS, "nonsense"]),
    base=st.one_of(st.floats(allow_nan=True), st.sampled_from(["2", "√2", "3/2", "", "1/0"])),
    zero_scale=st.one_of(st.floats(-1, 1e9), st.sampled_from(["1/4", "1/2", "x"])),
    num_levels=st.one_of(st.integers(-2, MOST_LEVELS + 2), st.none(), st.floats(0, 9)),
    first_level=st.integers(-4, 1),
    sampling=st.sampled_from(["dense", "oversampled", "pyramid", "none"]),
    oversampling=st.one_of(st.none(), st.floats(-1, 9)),
    method=st.sampled_from(["direct", "cascade", "other"]),
    size=st.tuples(st.integers(1, 24), st.integers(1, 24)),
)
def test_any_fields_make_a_scale_space_or_a_message(size, **fields):
    levels, message = [], ""
    try:
        levels, _ = scale_space(torch.rand(1, 3, *size), lift_arguments(**fields))
    except ValueError as error:
        message = str(error)
    assert levels or re.search("got|choose", message)
    assert all(level.pixels.isfinite().all() for level in levels)


@pytest.mark.parametrize("sampling", ["dense", "oversampled", "pyramid"])
@pytest.mark.parametrize("method", ["direct", "cascade"])
@pytest.mark.parametrize("base", ["2", "√2", "3/2"])
def test_levels_are_those_of_the_library(arguments, base, method, sampling):
    image, made = photograph(40), arguments(base=base, method=method, sampling=sampling, num_levels=5, first_level=-1)
    levels, cost = scale_space(image, made)
    space = scalespaces.lift(image, **made)
    assert [level.number for level in levels] == [-1, 0, 1, 2, 3]
    for level, expected, step in zip(levels, space.levels, space.steps, strict=True):
        torch.testing.assert_close(level.pixels, expected[0])
        assert level.step == step
    c = number("base", base)
    blurs = [level.blur for level in levels]
    assert blurs[0] is None
    assert blurs[1:] == pytest.approx([math.sqrt(0.25 * (c ** (2 * k) - 1)) for k in range(4)])
    samples = sum(level[0, 0].numel() for level in space.levels)
    assert list(cost.values())[:2] == [f"{samples:,}", f"{samples / 1600:.2f}"]
    assert all(0 < float(cost[name].removesuffix(" ms")) < 60_000 for name in list(cost)[2:])
