"""What cannot run on scale-spaces is refused, with the module, the line, the reason and what to do."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ConversionError, ScaleSpace, convert

Function = Callable[[Any], Any]
REFUSALS: dict[Function, tuple[str, str]] = {}


class Foreign(nn.Module):
    """One layer, then a function that knows nothing of levels."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.part = nn.Sequential(nn.ReLU(), Step(function))

    def forward(self, x: Any) -> Any:
        return self.part(self.conv(x))


class Step(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def refused(reason: str, hint: str) -> Callable[[Function], Function]:
    """Put a function on the list, with what its refusal says."""

    def put(function: Function) -> Function:
        REFUSALS[function] = (reason, hint)
        return function

    return put


@refused("branch differently at different levels", "fewer levels")
def branches(x: Any) -> Any:
    return x if x.shape[2] > 20 else 2 * x  # here


@refused("branch differently at different levels", "rewrite the branch")
def remainder(x: Any) -> Any:
    if x.size(-1) % 16:  # here
        raise AssertionError
    return x


@refused("asks whether a scale-space is a tensor", "remove the test")
def gate(x: Any) -> Any:
    return x if not isinstance(x, Tensor) else 2 * x  # here


@refused("asks whether a scale-space is a tensor", "remove the test")
def gate_of_several(x: Any) -> Any:
    found = isinstance(  # here
        x,
        (list, torch.Tensor),
    )
    return x if found else 2 * x


@refused("asks whether a scale-space is a tensor", "remove the test")
def gate_of_torch(x: Any) -> Any:
    return x if torch.is_tensor(x) else 2 * x  # here


@refused("merged", "pool space first")
def vit(x: Any) -> Any:
    return x.flatten(2).transpose(1, 2) + torch.zeros(1, 1024, 4)  # here


@refused("samples of space", "convolutions, poolings and F.pad")
def slices(x: Any) -> Any:
    return x[:, :, ::2, ::2]  # here


@refused("for channels, but space is at", "permute the channels there first")
def linear_over_space(x: Any) -> Any:
    return F.linear(x, torch.ones(5, x.size(0) * 16))  # here


@refused("PerLevel", "x.new_zeros")
def zeros(x: Any) -> Any:
    batch, channels, height, width = x.shape
    return x + torch.zeros(batch, channels, height, width)  # here


@refused("merged", "pool space first")
def flatten_and_linear(x: Any) -> Any:
    return F.linear(x.view(x.size(0), -1), torch.ones(5, 4 * 1024))  # here


@refused("at level 1", "fewer levels")
def embedding(x: Any) -> Any:
    return x + torch.zeros(1, 4, 32, 32)  # here


@refused("cannot be used as one integer", "functions of the scale-space")
def loops(x: Any) -> Any:
    return sum(x.mean((2, 3)) for _ in range(x.shape[3]))  # here


@refused("knows nothing of the grids", "as a convolution")
def counts(x: Any) -> Any:
    return F.unfold(x, 3)  # here


@pytest.mark.parametrize("function", REFUSALS)
def test_says_the_module_the_line_the_reason_and_what_to_do(function):
    reason, hint = REFUSALS[function]
    with pytest.raises(ConversionError) as refusal:
        convert(Foreign(function), {"num_levels": 3})(torch.rand(1, 3, 32, 32))
    message = str(refusal.value)
    source, first = inspect.getsourcelines(function)
    line = first + next(i for i, text in enumerate(source) if "# here" in text)
    assert "part.1 (Step)" in message
    assert f"test_refusals.py:{line}: {source[line - first].strip()}" in message
    assert reason in message
    assert hint in message
    assert refusal.value.__cause__ is not None


@pytest.mark.parametrize("function", [gate, gate_of_torch, vit, slices, flatten_and_linear, counts])
def test_in_dense_sampling_too(function):
    with pytest.raises(ConversionError, match=r"part\.1"):
        convert(Foreign(function), {"num_levels": 2, "sampling": "dense"})(torch.rand(1, 3, 32, 32))


@pytest.mark.parametrize("function", [branches, remainder, zeros, embedding, loops])
def test_what_all_levels_answer_alike_is_not_refused(function):
    """One level is the plain network, but for what is never right."""
    image, network = torch.rand(1, 3, 32, 32), Foreign(function)
    assert_close(convert(network, {"num_levels": 1})(image), network(image))


def test_tests_for_tensors_are_no_concern_elsewhere():
    x: Any = convert(nn.ReLU(), {"num_levels": 2}).outputs(torch.rand(1, 3, 8, 8))
    assert not isinstance(x, Tensor)
    assert not torch.is_tensor(x)
    assert x.__class__ is type(x) is ScaleSpace


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.MultiheadAttention(4, 2), "attends over the positions"),
        (nn.LSTM(4, 4), "runs along one axis"),
        (nn.Unfold(3), "as a convolution"),
        (nn.MaxUnpool2d(2), "use nn.Upsample"),
        (nn.MaxPool2d(2, return_indices=True), "returns indices"),
        (nn.LazyConv2d(4, 3), "run the model on an image first"),
        (torch.jit.script(nn.ReLU()), "before it is scripted"),
        (convert(nn.ReLU()), "already"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_certain_is_refused_at_once(module, reason):
    with pytest.raises(ConversionError, match=reason) as refusal:
        convert(nn.Sequential(nn.ReLU(), nn.ModuleDict({"bad": module})))
    assert "1.bad" in str(refusal.value)


def test_arguments():
    wrong: Any = torch.relu
    with pytest.raises(TypeError, match=r"expected an nn\.Module"):
        convert(wrong)
    with pytest.raises(ValueError, match="scale_padding is one of"):
        convert(nn.ReLU(), scale_padding="none")
    with pytest.raises(ValueError, match="scale_pool is one of mean, max, logsumexp, probabilities"):
        convert(nn.ReLU(), scale_pool="median")


def test_images_that_are_none_are_the_lifts_concern():
    with pytest.raises(ValueError, match="an image holds floating-point numbers"):
        convert(nn.ReLU())(torch.ones(1, 3, 8, 8, dtype=torch.int64))


class Whole(nn.Module):
    """An output without grids whose levels differ in shape."""

    def forward(self, x: Any) -> Any:
        return F.interpolate(x.mean((2, 3), keepdim=True), size=x.shape[2:])


class Blank(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.new_zeros(x.shape[0], x.shape[2])


@pytest.mark.parametrize("model", [Whole(), Blank()])
def test_outputs_without_a_common_grid(model):
    converted, image = convert(model, {"num_levels": 2}), torch.rand(1, 3, 16, 16)
    for method in (converted, converted.scores):
        with pytest.raises(ConversionError, match=r"no grids cannot be pooled .*take them from network\.outputs\("):
            method(image)
