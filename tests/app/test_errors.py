"""The errors are those of the library, and the sentence says what is exact, and why or why not."""

import numpy as np
import pytest
import torch

from scalespaces.app._errors import LAYERS, LIFT, LOADED, NETWORKS, equivariance
from scalespaces.app._predictions import load_network
from scalespaces.data import photograph
from scalespaces.models import Card
from scalespaces.models._convnet import random_network
from scalespaces.testing import equivariance_error

IMAGE = photograph(140)


@pytest.mark.parametrize("network", [LIFT, *LAYERS])
@pytest.mark.parametrize("method", ["direct", "cascade"])
def test_errors_are_those_of_the_library(arguments, network, method):
    made = arguments(method=method, num_levels=5)
    found = equivariance(IMAGE, made, network, 65)
    layers = LAYERS.get(network, 0)
    cut = IMAGE[..., 37:102, 37:102].double()
    expected = equivariance_error(random_network(layers, **made).double(), cut, downscaling=method)
    np.testing.assert_array_equal(found.table.errors, expected.errors)
    assert (found.table.boundary, found.size, found.network) == (5 - layers, (65, 65), network)
    assert found.sentence.startswith("Exact: " if method == "cascade" else "Not exact: ")
    assert np.isfinite(found.table.before()).all()
    assert found.table.before().size


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({}, ["Exact: errors are 0"]),
        ({"sampling": "dense"}, ["Exact", "rounding"]),
        ({"sampling": "oversampled"}, ["Exact", "rounding"]),
        ({"base": "√2"}, ["Exact", "rounding"]),
        ({"base": "3/2", "sampling": "dense"}, ["Not exact", "do not lie on whole pixels"]),
        ({"base": "3", "sampling": "oversampled"}, ["Not exact", "do not lie on whole pixels"]),
        ({"method": "direct"}, ["Not exact", "blurs the image separately"]),
        ({"first_level": -1}, ["Not exact", "finer than the image"]),
        ({"kernel": "binomial", "zero_scale": "1/2"}, ["Exact"]),
    ],
)
def test_the_sentence_says_why(arguments, fields, reasons):
    sentence = equivariance(IMAGE, arguments(**fields), LIFT, 129).sentence
    assert [reason for reason in reasons if reason not in sentence] == []
    assert sentence.count("Not exact") + sentence.count("Exact: ") == 1


@pytest.mark.parametrize(("side", "levels", "cut"), [(10, 4, 9), (8, 3, 5), (5, 3, 5), (3, 2, 3)])
def test_images_are_cut_to_end_at_a_pixel_of_every_level(arguments, side, levels, cut):
    """So that borders are reflected alike at all levels. An image with room for the levels has room for the cut."""
    found = equivariance(IMAGE[..., :side, :side], arguments(sampling="dense", num_levels=levels), LIFT, 129)
    assert found.size == (cut, cut)
    assert "Exact" in found.sentence


@pytest.mark.parametrize("window", ["plain", "dilated"])
@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
def test_poolings_of_a_network_are_a_reason(arguments, saved, window, sampling):
    path = saved("s_cnn", lift={"num_levels": 3, "base": 2.0, "sampling": sampling}, window=window)
    found = equivariance(IMAGE, arguments(num_levels=2), LOADED, 65, load_network(path))
    exact = window == "dilated" or sampling == "pyramid"
    assert found.sentence.startswith("Exact: " if exact else "Not exact: ")
    assert ("poolings" in found.sentence) == (not exact)
    assert found.table.levels == (0, 1, 2)  # its own levels, not those of the fields


def test_a_loaded_network_is_copied_and_sees_what_it_takes(arguments, saved):
    loaded = load_network(saved("s_cnn", Card(mean=[0.4], std=[0.2])))
    gray = (IMAGE[0] * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0)
    torch.testing.assert_close(loaded.see(IMAGE)[0, 0], (gray - 0.4) / 0.2)
    assert equivariance(IMAGE, arguments(), LOADED, 65, loaded).sentence.startswith("Exact")
    assert next(loaded.model.parameters()).dtype == torch.float32  # it was a copy that was measured


def test_entries_past_the_last_level_are_counted_apart(arguments):
    found = equivariance(IMAGE, arguments(), "1 random layer", 65)
    assert found.table.before().max() == 0
    assert np.nanmax(found.table.errors) > 0.1
    assert found.sentence.endswith("3 entries in dashed frames reach past the last level.")
    found = equivariance(IMAGE, arguments(), "3 random layers", 65)
    assert found.table.before().size == 0
    assert "Choose more levels, 5 at least" in found.sentence
    assert equivariance(IMAGE, arguments(num_levels=5), "3 random layers", 65).table.before().size


@pytest.mark.parametrize("fields", [{}, {"sampling": "dense"}, {"kernel": "binomial", "zero_scale": "1/2"}])
def test_an_untrained_network_uses_the_fields(arguments, fields):
    found = equivariance(IMAGE, arguments(num_levels=3, **fields), "s_cnn, untrained", 129)
    assert (found.network, found.table.levels) == ("s_cnn, untrained", (0, 1, 2))
    assert found.sentence.startswith("Exact")


@pytest.mark.parametrize(
    ("network", "fields", "message"),
    [
        (LIFT, {"num_levels": 1}, "choose 2 levels or more"),
        (LOADED, {}, "no network is loaded; drop a .safetensors file"),
        ("s_resnet, untrained", {"num_levels": 5}, "need images of at least .* pixels"),
        ("nonsense", {}, "network is one of"),
    ],
)
def test_what_cannot_be_measured(arguments, network, fields, message):
    with pytest.raises(ValueError, match=message):
        equivariance(IMAGE, arguments(**fields), network, 65)


@pytest.mark.parametrize("network", NETWORKS)
def test_one_pixel_is_too_small_for_every_network(arguments, network):
    with pytest.raises(ValueError, match=r"image|loaded"):
        equivariance(torch.rand(1, 3, 1, 1), arguments(), network)


def test_progress_is_reported_and_the_random_state_left_alone(arguments):
    torch.manual_seed(3)
    expected, seen = torch.rand(2), []
    torch.manual_seed(3)
    equivariance(IMAGE, arguments(), "2 random layers", 65, report=seen.append)
    equivariance(IMAGE, arguments(num_levels=2), "s_cnn, untrained", 65)
    torch.testing.assert_close(torch.rand(2), expected)
    assert (seen[0], seen[-1], seen) == ((0, 4), (4, 4), sorted(seen))
