"""The limits: compared with FLOPs that PyTorch counts, and with filters that are folded number by number."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import scalespaces
from benchmarks._limits import folded_share, layer_limits, network_limits
from benchmarks._rivals import rival
from scalespaces.models import create_model


@pytest.mark.parametrize("taps", [1, 3, 5])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_folded_filters_have_as_many_taps_as_numbers_that_are_not_zero(taps, factor):
    coarse = np.eye(41)
    fine = np.arange(40 * factor + 1) / factor
    upsampled = np.stack([np.interp(fine, np.arange(41), impulse) for impulse in coarse])
    weight = np.arange(1.0, taps + 1)
    out = np.stack([np.convolve(row, weight, "same") for row in upsampled])
    one_period = out[:, 20 * factor : 21 * factor]
    share = np.count_nonzero(one_period) / (taps * factor)
    assert folded_share((taps,), factor) == min(share, 1)
    assert folded_share((taps, taps), factor) == pytest.approx(min(share**2, 1))


def test_limits_of_a_layer():
    for k, dense, pyramid, folded in ((1, 4, 85 / 64, 85 / 64), (2, 7, 85 / 64 + 21 / 16, 85 / 64 + 21 / 16 * 25 / 36)):
        image, weight = torch.zeros(1, 2, 128, 128), torch.zeros(3, 2, k, 3, 3)
        assert layer_limits(weight, scalespaces.lift(image, 4, sampling="dense")) == pytest.approx((dense, dense))
        assert layer_limits(weight, scalespaces.lift(image, 4)) == pytest.approx((pyramid, folded))


@pytest.mark.parametrize(
    ("name", "baseline", "side"),
    [("s_resnet", "resnet", 64), ("s_resnet_no_interaction", "resnet", 64), ("s_densenet", "densenet", 96)],
)
def test_limits_of_dense_networks_are_flops(name, baseline, side):
    model = create_model(name, preset="paper")
    flops = []
    for network in (rival(model), rival(create_model(baseline))):
        network = network.to("meta").eval()
        if network.lift:
            network.lift = _Levels()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.zeros(1, 3, side, side, device="meta"))
        flops.append(counter.get_total_flops())
    dense, _ = network_limits(model, (3, side, side))
    assert dense == pytest.approx(flops[0] / flops[1], rel=1e-12)
    pyramid, folded = network_limits(create_model(name), (3, side, side))
    assert 1 < folded <= pyramid < dense
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cpu"}  # it is not changed


class _Levels(torch.nn.Module):
    """Levels without a blur, whose multiplications are not counted."""

    def forward(self, image):
        self.image = image
        return self

    def stack(self):
        return torch.stack([self.image] * 4, 2)
