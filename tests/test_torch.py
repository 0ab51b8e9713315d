"""What PyTorch offers works on networks of ours: compile, export, autocast, devices, data parallel and the rest."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from models.networks import DYNAMIC
from processes import process_group
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.testing import assert_close

from scalespaces import ScaleSpace, resample
from scalespaces import nn as scale

SAMPLINGS = ["dense", "pyramid", 2]
DEVICES = [
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an MPS device")),
]
LAYOUT: Any = {"memory_format": torch.channels_last}


class Net(nn.Module):
    """Every kind of layer, and pointwise torch code between them."""

    size = (3, 40, 36)

    def __init__(self, sampling="pyramid", base=2.0):
        super().__init__()
        self.lift = scale.Lift(4, base, sampling=sampling)
        self.first = scale.ScaleConv2d(3, 8, (2, 3, 3), bias=False)
        self.norm = scale.ScaleBatchNorm(8)
        self.pool = scale.ScaleAvgPool(2)
        self.second = scale.ScaleConv2d(8, 8, (1, 3, 3), padding_mode="reflect")
        self.third = scale.ScaleConv2d(16, 5, (2, 3, 3), scale_padding="valid")
        self.scale_pool = scale.ScalePool("max")

    def forward(self, image):
        x = self.pool(torch.relu(self.norm(self.first(self.lift(image)))))
        y = nn.functional.silu(2 * self.second(x) + x)
        levels = self.third(torch.cat([x, y], 1))
        return self.scale_pool(levels), levels


class Square(nn.Module):
    """Layers on the symmetries of the square, of tensors and of levels."""

    size = (2, 17, 17)

    def __init__(self):
        super().__init__()
        self.plain = nn.Sequential(scale.P4MConv2d(2, 2, 3, lifting=True), scale.P4MBatchNorm(2), nn.ReLU())
        first, last = scale.P4MConv2d(2, 2, (2, 3, 3)), scale.P4MConv2d(2, 3, (2, 3, 3), lifting=False)
        layers = [first, scale.P4MBatchNorm(2), nn.ReLU(), scale.P4MConv2d(2, 2, 3), last, scale.P4MPool()]
        self.levels = nn.Sequential(scale.Lift(3, sampling="pyramid"), *layers)
        self.head = nn.Sequential(scale.GlobalPool(), scale.ScalePool())

    def forward(self, image):
        x = self.plain(image)
        assert x.is_contiguous(**LAYOUT) == image.is_contiguous(**LAYOUT)
        levels = self.levels(x)
        return self.head(levels), levels


class Causal(nn.Module):
    """Every kind of causal layer."""

    size = (2, 101)

    def __init__(self, sampling, pool: Any = scale.ScaleMaxPool):
        super().__init__()
        first, last = scale.ScaleConv1d(2, 4, (1, 3), stride=2), scale.ScaleConv1d(4, 4, (2, 3))
        layers = [first, nn.ReLU(), pool(2, 2, 1), last, scale.ScaleBatchNorm(4), nn.ReLU()]
        self.layers = nn.Sequential(scale.CausalLift(4, sampling=sampling), *layers)
        self.head = nn.Sequential(scale.ScaleBlurPool(), scale.ScalePool("max"))

    def forward(self, signal):
        levels = self.layers(signal)
        return self.head(levels), 2 * levels + levels


MAKERS: dict[str, Any] = {
    **{str(sampling): lambda sampling=sampling: Net(sampling) for sampling in SAMPLINGS},
    "p4m": Square,
    **{f"causal {sampling}": lambda sampling=sampling: Causal(sampling) for sampling in SAMPLINGS[:2]},
}
every_net = pytest.mark.parametrize("name", MAKERS)


def net(*args, **kwargs):
    torch.manual_seed(0)
    return Net(*args, **kwargs).eval()


def net_and_input(name: str) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    model = MAKERS[name]()
    return model.eval(), torch.rand(2, *model.size)


def export(model: nn.Module, image: torch.Tensor, axes: str = "", low: int = 32, strict: bool = False) -> Any:
    """Export with these axes dynamic, of b, h, w and t."""
    lows = {"b": (0, 1), "h": (2, low), "w": (3, low), "t": (2, 160)}
    dims = {lows[name][0]: torch.export.Dim(name, min=lows[name][1], max=512) for name in axes}
    shapes: Any = (dims,) if axes else None
    return torch.export.export(model, (image,), dynamic_shapes=shapes, strict=strict).module()


DENSE_SLOW = pytest.param("dense", marks=pytest.mark.slow)  # exports take seconds, and a pyramid has more to them


@DYNAMIC
@pytest.mark.parametrize(
    ("sampling", "size"),
    [("pyramid", (48, 64)), pytest.param("pyramid", (36, 33), marks=pytest.mark.slow)]
    + [pytest.param(s, size, marks=pytest.mark.slow) for s in ("dense", 2) for size in ((36, 33), (48, 64))],
)
def test_export_with_dynamic_batch_height_and_width(sampling, size):
    model = net(sampling)
    exported = export(model, torch.rand(2, 3, *size), "bhw")
    for b, h, w in ((2, *size), (1, 41, 57), (3, 64, 32)):
        image = torch.rand(b, 3, h, w)
        pooled, levels = exported(image)
        expected, expected_levels = model(image)
        assert_close(pooled, expected)
        assert isinstance(levels, ScaleSpace)
        assert levels.origins == expected_levels.origins
        assert_close(levels.levels, expected_levels.levels)


STRIDED = [scale.ScaleConv2d(3, 4, (2, 3, 3), stride=2), scale.ScaleMaxPool(3, 2, 1)]
STRIDED += [scale.ScaleBlurPool(window="plain"), scale.ScaleConv2d(4, 4, (2, 3, 3))]


class ToImage(nn.Sequential):
    def forward(self, input):
        return resample(super().forward(input), input.shape[2:]).levels


HEADS = {
    "upsampled levels": lambda lift: nn.Sequential(lift(4, first_level=-1), scale.ScalePool()),
    "strides": lambda lift: nn.Sequential(lift(4), *STRIDED, scale.GlobalPool(), scale.ScalePool()),
    "sizes of the image": lambda lift: ToImage(lift(3), scale.ScaleAvgPool()),
}


@DYNAMIC
@pytest.mark.parametrize("sampling", [DENSE_SLOW, "pyramid"])
@pytest.mark.parametrize("head", HEADS)
def test_export_of_other_networks(head, sampling):
    model = HEADS[head](partial(scale.Lift, sampling=sampling)).eval()
    strict = (head, sampling) == ("sizes of the image", "pyramid")
    exported = export(model, torch.rand(1, 3, 101, 128), "hw", low=96, strict=strict)
    for size in ((101, 128), (128, 97), (99, 160)):
        image = torch.rand(1, 3, *size)
        assert_close(exported(image), model(image), rtol=1e-4, atol=1e-5)


def test_export_of_a_fractional_base_is_static_and_says_so():
    model, image = net(base=2**0.5), torch.rand(1, 3, 40, 40)
    assert_close(export(model, image)(image)[0], model(image)[0])
    with pytest.raises(ValueError, match="needs a static image size"):
        export(model, image, "h")


def test_exports_leave_nothing_fake_behind():
    """What is computed once and kept is not computed from the fake tensors of an export."""
    image = torch.rand(1, 3, 21, 21)
    for sampling in ("dense", "pyramid"):
        model = nn.Sequential(scale.Lift(3, 1.37, sampling=sampling), scale.ScaleConv2d(3, 2, (2, 3, 3))).eval()
        assert_close(export(model, image)(image).levels, model(image).levels)


@pytest.mark.parametrize(
    "name", ["pyramid", *(pytest.param(n, marks=pytest.mark.slow) for n in ("p4m", "causal pyramid", "causal dense"))]
)
def test_exported_file_round_trip(name, tmp_path):
    model, image = net_and_input(name)
    torch.export.save(torch.export.export(model, (image,), strict=False), tmp_path / "net.pt2")
    pooled, levels = torch.export.load(tmp_path / "net.pt2").module()(image)
    expected, expected_levels = model(image)
    assert_close(pooled, expected)
    assert repr(levels) == repr(expected_levels)
    assert_close(levels.levels, expected_levels.levels)


@DYNAMIC
@pytest.mark.parametrize("sampling", [DENSE_SLOW, "pyramid"])
def test_export_with_dynamic_batch_and_length(sampling):
    model = Causal(sampling, scale.ScaleAvgPool).eval()  # torch makes the length static for a maximum along one axis
    exported = export(model, torch.rand(2, 2, 301), "bt")
    for batch, length in ((2, 301), (1, 300), (3, 257), (2, 163)):
        f = torch.rand(batch, 2, length)
        assert_close(exported(f)[0], model(f)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MAKERS, ("pyramid", 2**0.5), ("dense", 1.5)], ids=str)
def test_compile_whole_graph(name):
    torch._dynamo.reset()
    model, image = net_and_input(name) if name in MAKERS else (net(*name), torch.rand(2, 3, 40, 36))
    twin = copy.deepcopy(model.train())
    compiled = torch.compile(twin, fullgraph=True)
    pooled, levels = compiled(image)
    expected, expected_levels = model(image)
    assert_close(pooled, expected, rtol=1e-4, atol=1e-4)
    assert repr(levels) == repr(expected_levels)
    pooled.square().mean().backward()
    expected.square().mean().backward()
    for (name, got), wanted in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert got.grad is not None, name
        assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-4)
    if name == ("pyramid", 2**0.5):  # another size is another constant
        image = torch.rand(2, 3, 44, 38)
        assert_close(compiled(image)[0], model(image)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "base"), [("pyramid", 2.0), ("pyramid", 2**0.5), ("dense", 1.5)])
def test_compile_for_any_size(sampling, base):
    """Of one graph, or of one for each size; what is computed once has no size that changes."""
    torch._dynamo.reset()
    layers = [scale.ScaleConv2d(3, 4, (2, 3, 3)), scale.ScaleBlurPool(), scale.ScalePool("max")]
    model = nn.Sequential(scale.Lift(3, base, sampling=sampling), *layers).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for size in ((40, 36), (33, 64)):
        image = torch.rand(2, 3, *size)
        assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-4)


@every_net
def test_autocast(name):
    """In both layouts, if there are two."""
    model, image = net_and_input(name)
    expected = copy.deepcopy(model.train())(image)
    for x in (image, image.to(**LAYOUT)) if image.ndim == 4 else (image,):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, levels = (twin := copy.deepcopy(model))(x)
        assert repr(levels) == repr(expected[1].to(torch.bfloat16))
        assert_close(out.float(), expected[0], rtol=0.1, atol=0.1)
        gradients = torch.autograd.grad(out.float().square().mean(), list(twin.parameters()), allow_unused=True)
        assert all(g is not None and g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_casts(sampling, dtype):
    model = net(sampling)
    image = torch.rand(1, 3, 32, 32)
    expected = model(image)[0]
    out = model.to(dtype)(image.to(dtype))[0]
    assert out.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float64 else 0.2
    assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", list(MAKERS)[:4])
def test_channels_last(name):
    model, image = net_and_input(name)
    expected = model(image)[0]
    pooled, levels = model.to(**LAYOUT)(image.to(**LAYOUT))
    assert_close(pooled, expected, rtol=1e-4, atol=1e-5)
    assert all(level.is_contiguous(**LAYOUT) for level in levels.levels)
    assert name != "p4m" or all(level.is_contiguous() for level in model(image)[1].levels)  # as its input is


@every_net
def test_copies_checkpoints_and_the_meta_device(name, tmp_path):
    model, image = net_and_input(name)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    with torch.device("meta"):
        empty = MAKERS[name]().eval()
    assert all(t.is_meta for t in (*empty.parameters(), *empty.buffers()))
    other, empty = MAKERS[name]().eval(), empty.to_empty(device="cpu")
    for twin in (other, empty):
        twin.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for twin in (other, empty, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_close(twin(image)[0], model(image)[0], rtol=0, atol=0)
    assert not any("taps" in key or "index" in key for key in model.state_dict())
    assert list(model.state_dict()) == list(model.train().state_dict())


def test_a_plain_convolutions_weights_load():
    plain = nn.Conv2d(3, 8, 3, padding=1)
    ours = scale.ScaleConv2d(3, 8, (1, 3, 3))
    ours.load_state_dict(plain.state_dict())
    f = torch.rand(1, 3, 9, 9)
    assert_close(ours(ScaleSpace((f,))).levels[0], plain(f))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("base", [2.0, 2**0.5])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_devices(sampling, base, device):
    model, image = net(sampling, base), torch.rand(2, 3, 40, 36)
    expected = model(image)[0]
    model, image = model.to(device), image.to(device)
    out = model(image)[0]
    assert out.device.type == device
    assert_close(out.cpu(), expected, rtol=1e-3, atol=1e-3)
    out.square().mean().backward()


def _loss(x):
    return torch.stack([level.square().mean() for level in x.levels]).sum()


def _layers():
    torch.manual_seed(0)
    return nn.Sequential(scale.Lift(3, sampling="pyramid"), scale.ScaleConv2d(3, 4, (2, 3, 3)), nn.ReLU())


def _data_parallel(rank, folder, images):
    with process_group(rank, folder):
        layers = _layers()
        model = nn.parallel.DistributedDataParallel(layers)
        out = model(images[rank])
        assert isinstance(out, ScaleSpace)
        _loss(out).backward()
        if rank == 0:
            torch.save([p.grad for p in layers.parameters()], folder / "gradients.pt")


def test_data_parallel(tmp_path):
    images = torch.rand(2, 2, 3, 16, 16)
    spawn(_data_parallel, (tmp_path, images), nprocs=2)
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=True)
    model = _layers()
    for image in images:
        (_loss(model(image)) / 2).backward()
    for got, parameter in zip(gradients, model.parameters(), strict=True):
        assert_close(got, parameter.grad)
