"""What PyTorch offers works on networks of ours: compile, export, autocast, devices, data parallel and the rest."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.testing import assert_close

from scalespaces import ScaleSpace, lift, resample
from scalespaces.nn import (
    FeaturePyramid,
    GlobalPool,
    Lift,
    ScaleAvgPool,
    ScaleBatchNorm,
    ScaleBlurPool,
    ScaleConv2d,
    ScaleMaxPool,
    ScalePool,
)

SAMPLINGS = ["dense", "pyramid", 2]
DEVICES = [
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an MPS device")),
]


DYNAMIC_POOLING = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="before 2.13, torch exports pooling for even or for odd sizes only",
)


class Net(nn.Module):
    """Every kind of layer, and pointwise torch code between them."""

    def __init__(self, sampling="pyramid", base=2.0, method="cascade"):
        super().__init__()
        self.lift = Lift(4, base, method=method, sampling=sampling)
        self.first = ScaleConv2d(3, 8, (2, 3, 3), bias=False)
        self.norm = ScaleBatchNorm(8)
        self.pool = ScaleAvgPool(2)
        self.second = ScaleConv2d(8, 8, (1, 3, 3), padding_mode="reflect")
        self.third = ScaleConv2d(16, 5, (2, 3, 3), scale_padding="valid")
        self.scale_pool = ScalePool("max")

    def forward(self, image):
        x = self.pool(torch.relu(self.norm(self.first(self.lift(image)))))
        y = nn.functional.silu(2 * self.second(x) + x)
        levels = self.third(torch.cat([x, y], 1))
        return self.scale_pool(levels), levels


def net(*args, **kwargs):
    torch.manual_seed(0)
    return Net(*args, **kwargs).eval()


def export(model: nn.Module, image: torch.Tensor, axes: str = "", low: int = 32, strict: bool = False) -> Any:
    """Export with these axes dynamic, of b, h and w."""
    lows = {"b": (0, 1), "h": (2, low), "w": (3, low)}
    dims = {lows[name][0]: torch.export.Dim(name, min=lows[name][1], max=512) for name in axes}
    shapes: Any = (dims,) if axes else None
    return torch.export.export(model, (image,), dynamic_shapes=shapes, strict=strict).module()


@DYNAMIC_POOLING
@pytest.mark.parametrize("size", [(36, 33), (48, 64)])
@pytest.mark.parametrize("sampling", SAMPLINGS)
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


HEADS = {
    "feature pyramid": lambda sampling: [Lift(4, sampling=sampling), FeaturePyramid()],
    "upsampled levels": lambda sampling: [Lift(4, sampling=sampling, first_level=-1), ScalePool()],
    "strides": lambda sampling: [
        Lift(4, sampling=sampling),
        ScaleConv2d(3, 4, (2, 3, 3), stride=2),
        ScaleMaxPool(3, 2, 1),
        ScaleBlurPool(window="plain"),
        ScaleConv2d(4, 4, (2, 3, 3)),
        GlobalPool(),
        ScalePool(),
    ],
}


@DYNAMIC_POOLING
@pytest.mark.parametrize("sampling", ["dense", "pyramid"])
@pytest.mark.parametrize("head", HEADS)
def test_export_of_other_networks(head, sampling):
    model = nn.Sequential(*HEADS[head](sampling)).eval()
    exported = export(model, torch.rand(1, 3, 101, 128), "hw", low=96)
    for size in ((101, 128), (128, 97), (99, 160)):
        image = torch.rand(1, 3, *size)
        assert_close(exported(image), model(image), rtol=1e-4, atol=1e-5)


class ToImage(nn.Module):
    def __init__(self, sampling) -> None:
        super().__init__()
        self.lift, self.pool = Lift(3, sampling=sampling), ScaleAvgPool()

    def forward(self, image):
        return resample(self.pool(self.lift(image)), image.shape[2:]).levels


@DYNAMIC_POOLING
@pytest.mark.parametrize(("sampling", "strict"), [("dense", False), ("pyramid", True)])
def test_symbolic_sizes_stay_symbolic(sampling, strict):
    model = ToImage(sampling).eval()
    exported = export(model, torch.rand(1, 3, 40, 50), "hw", strict=strict)
    for size in ((40, 50), (65, 33)):
        image = torch.rand(1, 3, *size)
        assert_close(exported(image), model(image))


def test_export_of_a_fractional_base_is_static_and_says_so():
    model, image = net(base=2**0.5), torch.rand(1, 3, 40, 40)
    assert_close(export(model, image)(image)[0], model(image)[0])
    with pytest.raises(ValueError, match="needs a static image size"):
        export(model, image, "h")


def test_exports_leave_nothing_fake_behind():
    """What is computed once and kept must not be computed from the fake tensors of an export."""
    image = torch.rand(1, 3, 21, 21)
    for sampling in ("dense", "pyramid"):
        model = nn.Sequential(Lift(3, 1.37, sampling=sampling), ScaleConv2d(3, 2, (2, 3, 3))).eval()
        assert_close(export(model, image)(image).levels, model(image).levels)


def test_exported_file_round_trip(tmp_path):
    model, image = net(), torch.rand(1, 3, 40, 40)
    torch.export.save(torch.export.export(model, (image,), strict=False), tmp_path / "net.pt2")
    pooled, levels = torch.export.load(tmp_path / "net.pt2").module()(image)
    assert_close(pooled, model(image)[0])
    assert isinstance(levels, ScaleSpace)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "base"), [("dense", 2.0), ("pyramid", 2.0), (2, 2.0), ("pyramid", 2**0.5), ("dense", 1.5)]
)
def test_compile_whole_graph(sampling, base):
    torch._dynamo.reset()
    model = net(sampling, base).train()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True)
    image = torch.rand(2, 3, 40, 36)
    pooled, levels = compiled(image)
    expected, expected_levels = model(image)
    assert_close(pooled, expected, rtol=1e-4, atol=1e-4)
    assert isinstance(levels, ScaleSpace)
    assert levels.steps == expected_levels.steps
    pooled.square().mean().backward()
    expected.square().mean().backward()
    for (name, got), wanted in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert got.grad is not None, name
        assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-4)
    if base == 2**0.5:  # another size is another constant
        image = torch.rand(2, 3, 44, 38)
        assert_close(compiled(image)[0], model(image)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "base"), [("pyramid", 2.0), ("pyramid", 2**0.5), ("dense", 1.5)])
def test_compile_for_any_size(sampling, base):
    """Of one graph, or of one for each size; what is computed once has no size that changes."""
    torch._dynamo.reset()
    layers = [Lift(3, base, sampling=sampling), ScaleConv2d(3, 4, (2, 3, 3)), ScaleBlurPool(), ScalePool("max")]
    model = nn.Sequential(*layers).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for size in ((40, 36), (33, 64)):
        image = torch.rand(2, 3, *size)
        assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_autocast(sampling):
    model, image = net(sampling).train(), torch.rand(2, 3, 32, 32)
    expected = model(image)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, levels = model(image)
    assert levels.dtype == torch.bfloat16
    assert_close(out.float(), expected, rtol=0.1, atol=0.1)
    out.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


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


def test_kernels_are_cast_from_double():
    module = Lift(4).double()
    image = torch.rand(1, 1, 32, 32, dtype=torch.float64)
    assert_close(module(image).levels, lift(image).levels, rtol=0, atol=0)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_channels_last(sampling):
    model, image = net(sampling), torch.rand(2, 3, 32, 32)
    expected = model(image)[0]
    layout: Any = {"memory_format": torch.channels_last}
    pooled, levels = model.to(**layout)(image.to(**layout))
    assert_close(pooled, expected, rtol=1e-4, atol=1e-5)
    assert all(level.is_contiguous(memory_format=torch.channels_last) for level in levels.levels)


def test_copies_and_checkpoints():
    model, image = net(), torch.rand(1, 3, 32, 32)
    expected = model(image)[0]
    assert_close(copy.deepcopy(model)(image)[0], expected, rtol=0, atol=0)
    other = Net().eval()
    other.load_state_dict(model.state_dict())
    assert_close(other(image)[0], expected, rtol=0, atol=0)
    assert not any("taps" in key for key in model.state_dict())
    assert list(model.state_dict()) == list(model.train().state_dict())


def test_a_plain_convolutions_weights_load():
    plain = nn.Conv2d(3, 8, 3, padding=1)
    ours = ScaleConv2d(3, 8, (1, 3, 3))
    ours.load_state_dict(plain.state_dict())
    f = torch.rand(1, 3, 9, 9)
    assert_close(ours(ScaleSpace((f,))).levels[0], plain(f))


def test_meta_device():
    with torch.device("meta"):
        model = Net()
    assert model.lift.taps0.is_meta
    model.to_empty(device="cpu")
    assert_close(model.lift(torch.ones(1, 1, 9, 9)).levels[1], torch.ones(1, 1, 5, 5))


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
    return nn.Sequential(Lift(3, sampling="pyramid"), ScaleConv2d(3, 4, (2, 3, 3)), nn.ReLU())


def _data_parallel(rank, folder, images):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    layers = _layers()
    model = nn.parallel.DistributedDataParallel(layers)
    out = model(images[rank])
    assert isinstance(out, ScaleSpace)
    _loss(out).backward()
    if rank == 0:
        torch.save([p.grad for p in layers.parameters()], f"{folder}/gradients.pt")
    torch.distributed.barrier()  # a process that leaves before the other has its last message aborts it
    del model
    torch.distributed.destroy_process_group()


def test_data_parallel(tmp_path):
    images = torch.rand(2, 2, 3, 16, 16)
    spawn(_data_parallel, (tmp_path, images), nprocs=2)
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=True)
    model = _layers()
    for image in images:
        (_loss(model(image)) / 2).backward()
    for got, parameter in zip(gradients, model.parameters(), strict=True):
        assert_close(got, parameter.grad)
