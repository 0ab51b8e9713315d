"""Predictions agree with the network's own, at every zoom; files that hold no network get a message that helps."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import scalespaces
from scalespaces.app._predictions import ZOOMS, load_network, over_zooms, predict
from scalespaces.app._render import curve, prediction
from scalespaces.data import photograph
from scalespaces.models import Card
from scalespaces.train._scales import zoom

IMAGE = photograph(128)
CARD = Card(classes=[f"<b>{n}</b> $x^2$" for n in range(10)], mean=[0.4], std=[0.2])


@pytest.fixture(scope="module")
def digits(saved):
    return load_network(saved("s_cnn", CARD, lift={"num_levels": 3}))


def test_a_network_says_what_it_is(digits):
    assert (digits.name, digits.pixels, digits.channels) == ("s_cnn.safetensors", False, 1)
    assert (digits.classes, digits.side) == (CARD.classes, 28)
    assert digits.facts["network"] == "s_cnn"
    assert digits.facts["lift"] == "3 levels of base 1.414, cascade, pyramid"
    assert digits.facts["parameters"] == f"{sum(p.numel() for p in digits.model.parameters()):,}"


@pytest.mark.parametrize("factor", [0.25, 1, 2.5, 4])
def test_predictions_are_those_of_the_network(digits, factor):
    found = predict(digits, IMAGE, factor, 128)
    gray = (IMAGE * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    seen = zoom(gray, torch.tensor([factor]))
    torch.testing.assert_close(found.seen, seen[0])
    with torch.no_grad():
        probabilities = digits.model((seen - 0.4) / 0.2).softmax(1)[0]
        levels = torch.cat(digits.model.scores((seen - 0.4) / 0.2).levels)
    values, indices = probabilities.topk(5)
    assert [name for name, _ in found.top] == [CARD.classes[i] for i in indices]
    assert [p for _, p in found.top] == pytest.approx(values.tolist(), abs=1e-6)
    best = int(indices[0])
    assert [level.probability for level in found.levels] == pytest.approx(levels.softmax(1)[:, best].tolist(), abs=1e-6)
    assert [level.own for level in found.levels] == [CARD.classes[i] for i in levels.argmax(1).tolist()]
    assert found.answering.number == int(levels[:, best].argmax())
    assert [level.dilation for level in found.levels] == pytest.approx([1, math.sqrt(2), 2])


def test_the_middle_of_the_image_is_brought_to_the_side(digits):
    wide = torch.zeros(1, 3, 60, 100)
    wide[..., 20:80] = 1
    seen = predict(digits, wide, 1, 28).seen
    assert seen.shape == (1, 28, 28)
    assert seen.min() > 0.99


def test_pixels_are_averaged(saved):
    network = load_network(saved("s_resnet", num_classes=4, lift={"num_levels": 2}))
    assert (network.pixels, network.channels) == (True, 3)
    assert network.side == 256  # networks for large images begin with small ones
    found = predict(network, IMAGE, 1, 64)
    assert (sum(p for _, p in found.top), len(found.levels)) == (pytest.approx(1, abs=1e-5), 2)
    assert found.answering.weight is None
    assert f"Level {found.answering.number} answers at the most pixels." in prediction(found)
    with torch.no_grad():
        assert found.chosen is not None
        assert (found.chosen == found.answering.number).double().mean() >= 0.5
        assert torch.equal(found.chosen, network.model.scale_map(found.seen[None])[0])
    trusting = load_network(saved("s_resnet", num_classes=4, lift={"num_levels": 2}, scale_pool="trust"))
    found = predict(trusting, IMAGE, 1, 64)
    assert sum(level.weight or 0 for level in found.levels) == pytest.approx(1, abs=1e-5)
    assert "trusted 50.0 %" in prediction(found)


def test_the_curve_goes_through_the_predictions(digits):
    seen = []
    lines = over_zooms(digits, IMAGE, 28, report=seen.append)
    assert (len(lines), seen) == (4, [(n, 9) for n in range(10)])
    for name, points in lines.items():
        assert [zoom for zoom, _ in points] == list(ZOOMS)
        expected = dict(predict(digits, IMAGE, ZOOMS[2], 28).top).get(name)
        assert expected is None or points[2][1] == pytest.approx(expected, abs=1e-6)
    top = predict(digits, IMAGE, 1, 28).top[0][0]
    assert top in lines
    seen.clear()  # one that takes too long is left out
    assert over_zooms(digits, IMAGE, 28, report=seen.append, patience=0) == {}
    assert seen == [(n, 9) for n in range(3)]
    assert "smaller side" in curve({})


@pytest.mark.parametrize(
    ("factor", "side", "message"),
    [
        (0.1, 28, r"zoom must be from 0.25 to 4, got 0.1"),
        (None, 28, "zoom must be a number"),
        (1, 3, r"the side must be a whole number from 9 to 1024, got 3"),
        (1, None, "the side must be a number"),
    ],
)
def test_what_cannot_be_asked(digits, factor, side, message):
    with pytest.raises(ValueError, match=message):
        predict(digits, IMAGE, factor, side)


def test_scores_that_are_not_finite_and_converted_networks_are_refused(saved, tmp_path):
    network = load_network(saved("s_cnn"))
    network.model.load_state_dict(network.model.state_dict() | {"linear.bias": torch.full((10,), math.nan)})
    with pytest.raises(ValueError, match="not finite"):
        predict(network, IMAGE, 1, 28)
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    scalespaces.models.save(scalespaces.convert(cnn, {"num_levels": 2}), tmp_path / "mine.safetensors")
    with pytest.raises(ValueError, match=r"^cannot load 'mine\.safetensors'.*except converted networks, whose"):
        load_network(tmp_path / "mine.safetensors")


def test_files_that_hold_no_network(saved, tmp_path):
    data = saved("s_cnn").read_bytes()
    for content in (b"", data[: len(data) // 2], b"these are words"):
        (tmp_path / "broken.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"^'broken\.safetensors' is not a safetensors file.*never read$"):
            load_network(tmp_path / "broken.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")  # somebody else's
    with pytest.raises(ValueError, match=r"^cannot load 'other\.safetensors': it does not name its network"):
        load_network(tmp_path / "other.safetensors")
