"""Levels that are too small for a model, and models that take few sizes."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from models.cnns import build
from torch import Tensor, nn
from torch.testing import assert_close

from scalespaces import ConversionError, convert, models
from scalespaces.nn import Lift


def valid() -> Any:
    """Needs images of 23 pixels at least."""
    body = nn.Sequential(nn.Conv2d(3, 4, 7, stride=2), nn.Conv2d(4, 4, 9), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(OrderedDict(body=body, flatten=nn.Flatten(), fc=nn.Linear(4, 5))).eval()


class TestSmallestLevel:
    @pytest.mark.parametrize("interaction", [None, "all"])
    @torch.no_grad()
    def test_levels_that_are_too_small_are_left_out(self, interaction, tmp_path):
        network, image = valid(), torch.rand(2, 3, 96, 128)
        converted = convert(network, Lift(4), interaction=interaction, scale_pool="mean").eval()
        assert converted.smallest_side == 1
        assert converted.scores(image).num_levels == 3  # 96, 48 and 24, but not 12
        assert converted.smallest_side == converted.config["smallest_level"] == 23
        assert "smallest_level=23" in repr(converted)
        assert converted.scores(image[..., :44, :44]).num_levels == 1
        assert converted.scores(torch.rand(1, 3, 192, 192)).num_levels == 4
        assert_close(converted(image[..., :44, :44]), network(image[..., :44, :44]))
        models.save(converted, tmp_path / "model.safetensors")
        again = models.load(tmp_path / "model.safetensors", network)
        assert again.config == converted.config
        assert torch.equal(again(image), converted(image))

    @torch.no_grad()
    def test_before_levels_are_combined_inside(self):
        network, image = valid(), torch.rand(1, 3, 96, 96)
        converted = convert(network, Lift(4), pool_before="fc", scale_pool="max")
        features = [network.body(level).flatten(1) for level in converted.lift(image).levels[:3]]
        for _ in range(2):  # when the smallest level is found, and when it is known
            assert_close(converted(image), network.fc(torch.stack(features).amax(0)))

    def test_it_may_be_given(self):
        converted = convert(valid(), Lift(4), smallest_level=40)
        assert converted.scores(torch.rand(1, 3, 96, 96)).num_levels == 2
        with pytest.raises(ValueError, match="smallest_level"):
            convert(valid(), smallest_level=0)

    def test_the_images_own_level_is_the_users(self):
        converted = convert(valid(), Lift(3))
        with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
            converted(torch.rand(1, 3, 20, 20))
        with pytest.raises(ConversionError, match=r"(?s)at level 0, of shape \(1, 3, 20, 20\)"):
            converted.scores(torch.rand(1, 3, 20, 20))
        assert converted.config["smallest_level"] is None

    def test_errors_of_larger_levels_are_not_hidden(self):
        class Picky(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                if x.shape[2] == 32 and x.shape[0] == 2:
                    raise KeyError("not this one")
                return x.mean((2, 3))

        with pytest.raises(ConversionError, match=r"(?s)KeyError.*not this one.*at level 1, of shape \(2, 3, 32, 32\)"):
            convert(Picky(), Lift(3)).scores(torch.rand(2, 3, 64, 64))

    def test_models_for_one_size_are_refused(self):
        fixed = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(4 * 64, 5)).eval()
        image = torch.rand(1, 3, 64, 64)
        assert torch.equal(convert(fixed)(image), fixed(image))
        with pytest.raises(ConversionError, match=r"(?s)2 \(Linear\).*takes images of 64 x 64, but not of 129 x 129"):
            convert(fixed).scores(image)
        network = build("unet")[0].float()  # for some sizes
        assert convert(network).scores(torch.rand(1, 3, 64, 64)).num_levels == 4
        with pytest.raises(ConversionError, match="takes images of 12 x 12, but not of 13 x 13, and levels have many"):
            convert(network).scores(torch.rand(1, 3, 48, 48))
