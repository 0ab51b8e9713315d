"""Batch normalization over processes."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from scalespaces.nn import ScaleBatchNorm, synchronize


class TestSynchronize:
    """Without other processes, it changes nothing but what layers are called."""

    def test_plain_layers_become_ours(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.BatchNorm2d(4))
        assert synchronize(ScaleBatchNorm(4)).sync
        image = torch.rand(5, 3, 8, 8)
        twin: Any = synchronize(copy.deepcopy(model))
        assert all(isinstance(layer, ScaleBatchNorm) and layer.sync for layer in (twin[1][0], twin[2]))
        assert twin.state_dict().keys() == model.state_dict().keys()
        for mode in (True, False):
            assert_close(twin.train(mode)(image), model.train(mode)(image))
        assert_close(dict(twin.state_dict()), dict(model.state_dict()))

    def test_layers_that_do_more_are_refused(self):
        class WithReLU(nn.BatchNorm2d):
            def forward(self, input):
                return super().forward(input).relu()

        with pytest.raises(ValueError, match="WithReLU computes more than batch normalization"):
            synchronize(nn.Sequential(WithReLU(4)))
