"""What cannot run on scale-spaces is refused, with the module, the line, the reason and what to do."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from scalespaces import ConversionError, ScaleSpace, convert

BRANCH, TENSOR = "branch differently at different levels", "asks whether a scale-space is a tensor"
NEVER: list[tuple[Callable[[Any], Any], str, str]] = [  # what is not right on one level either
    (lambda x: x if not isinstance(x, Tensor) else 2 * x, TENSOR, "remove the test"),
    (lambda x: x if isinstance(x, (list, torch.Tensor)) else 2 * x, TENSOR, "remove the test"),
    (lambda x: x if torch.is_tensor(x) else 2 * x, TENSOR, "remove the test"),
    (lambda x: x.flatten(2).transpose(1, 2) + torch.zeros(1, 1024, 4), "merged", "pool space first"),
    (lambda x: x[:, :, ::2, ::2], "samples of space", "convolutions, poolings and F.pad"),
    (lambda x: F.linear(x.view(x.size(0), -1), torch.ones(5, 4 * 1024)), "merged", "pool space first"),
    (lambda x: F.unfold(x, 3), "knows nothing of the grids", "as a convolution"),
]
BETWEEN: list[tuple[Callable[[Any], Any], str, str]] = [  # what levels do not agree on
    (lambda x: x if x.shape[2] > 20 else 2 * x, BRANCH, "fewer levels"),
    (lambda x: 2 * x if x.size(-1) % 16 else x, BRANCH, "rewrite the branch"),
    (lambda x: x + torch.zeros(*x.shape[:2], x.shape[2], x.shape[3]), "PerLevel", "x.new_zeros"),
    (lambda x: x + torch.zeros(1, 4, 32, 32), "at level 1", "fewer levels"),
    (lambda x: sum(x.mean((2, 3)) for _ in range(x.shape[3])), "as one integer", "functions of the scale-space"),
]
ONE_SIZE = [NEVER[3][0], NEVER[5][0], BETWEEN[3][0]]
SPACE = (lambda x: F.linear(x, torch.ones(5, x.size(0) * 16)), "for channels, but space is at", "permute the channels")


class Step(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def foreign(function: Callable[[Any], Any]) -> nn.Module:
    """One layer, then a function that knows nothing of levels."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Sequential(nn.ReLU(), Step(function)))


@pytest.mark.parametrize(("function", "reason", "hint"), [*NEVER, *BETWEEN, SPACE])
def test_says_the_module_the_line_the_reason_and_what_to_do(function, reason, hint):
    with pytest.raises(ConversionError) as refusal:
        convert(foreign(function), {"num_levels": 3}, interaction="0")(torch.rand(1, 3, 32, 32))
    message, line = str(refusal.value), function.__code__.co_firstlineno
    assert "1.1 (Step)" in message
    assert f"test_refusals.py:{line}: {linecache.getline(__file__, line).strip()}" in message
    assert reason in message
    assert hint in message
    assert refusal.value.__cause__ is not None


@pytest.mark.parametrize("function", [function for function, _, _ in [*NEVER, *BETWEEN] if function not in ONE_SIZE])
def test_level_by_level_nothing_is_refused(function):
    network, image = foreign(function), torch.rand(1, 3, 32, 32)
    converted = convert(network, {"num_levels": 3})
    output = converted.outputs(image)
    for level, got in zip(converted.lift(image).levels, output.levels, strict=True):
        assert torch.equal(got, network(level))


@pytest.mark.parametrize("function", ONE_SIZE)
def test_what_is_for_one_size_is_refused_at_the_other_levels(function):
    with pytest.raises(ConversionError, match=r"(?s)1\.1 \(Step\).*at level 1.*takes images of 32 x 32, but not of"):
        convert(foreign(function), {"num_levels": 3}).scores(torch.rand(1, 3, 32, 32))


@pytest.mark.parametrize("function", [function for function, _, _ in NEVER])
def test_in_dense_sampling_too(function):
    with pytest.raises(ConversionError, match=r"1\.1 \(Step"):
        convert(foreign(function), {"num_levels": 2, "sampling": "dense"})(torch.rand(1, 3, 32, 32))


@pytest.mark.parametrize("function", [function for function, _, _ in BETWEEN])
def test_what_all_levels_answer_alike_is_not_refused(function):
    """One level is the plain network, but for what is never right."""
    image, network = torch.rand(1, 3, 32, 32), foreign(function)
    assert_close(convert(network, {"num_levels": 1}, interaction="0")(image), network(image))


def test_tests_for_tensors_are_no_concern_elsewhere():
    x: Any = convert(nn.ReLU(), {"num_levels": 2}, pool_before="").outputs(torch.rand(1, 3, 8, 8))
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
        convert(nn.Sequential(nn.ReLU(), nn.ModuleDict({"bad": module})), pool_before="0")
    assert "1.bad" in str(refusal.value)


def test_arguments():
    wrong: Any = torch.relu
    with pytest.raises(TypeError, match=r"expected an nn\.Module"):
        convert(wrong)
    with pytest.raises(ValueError, match="scale_padding is one of"):
        convert(nn.ReLU(), scale_padding="none")
    with pytest.raises(ValueError, match="scale_pool is one of image, mean, max, logsumexp, probabilities"):
        convert(nn.ReLU(), scale_pool="median")


@pytest.mark.parametrize(
    ("function", "interaction"),
    [
        (lambda x: F.interpolate(x.mean((2, 3), keepdim=True), size=x.shape[2:]), "0"),
        (lambda x: x.new_zeros(x.shape[0], x.shape[2]), "0"),
        (lambda x: x.new_zeros(x.shape[0], x.shape[2]), None),
        (lambda x: x.flatten(2), None),
    ],
)
def test_outputs_without_a_common_grid(function, interaction):
    converted = convert(foreign(function), {"num_levels": 2}, interaction=interaction, scale_pool="mean")
    image = torch.rand(1, 3, 16, 16)
    for method in (converted, converted.scores):
        with pytest.raises(ConversionError, match=r"no grids cannot be pooled .*take them from network\.outputs\("):
            method(image)


def test_batch_norms_in_training_are_what_keeps_a_model_from_running_level_by_level():
    network, image = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), Step(NEVER[0][0])), torch.rand(2, 3, 32, 32)
    with pytest.raises(ConversionError, match=r"(?s)2 \(Step\).*call \.eval\(\) of the batch norms"):
        convert(network, {"num_levels": 2})(image)
    converted = convert(network, {"num_levels": 2})
    converted.model.get_submodule("1").eval()
    assert converted(image).requires_grad
