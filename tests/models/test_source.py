"""Models by the name of what makes them."""

import sys

import pytest
from torch import nn

from scalespaces.models._registry import build


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a module in it, of which nothing is left behind."""
    (tmp_path / "nets_of_the_day.py").write_text(
        "import torch\n"
        "def net(channels=3):\n"
        "    import beside_nets\n"  # what is imported later is found as well
        "    return torch.nn.Conv2d(channels, beside_nets.WIDTH, 1)\n"
        "class Holder:\n"
        "    inner = torch.nn.Identity\n"
    )
    (tmp_path / "beside_nets.py").write_text("WIDTH = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield tmp_path
    for name in ("nets_of_the_day", "beside_nets"):
        sys.modules.pop(name, None)


def test_a_function_in_the_current_directory(here):
    path = list(sys.path)
    model = build("nets_of_the_day:net", {"channels": 2})
    assert isinstance(model, nn.Conv2d)
    assert (model.in_channels, model.out_channels) == (2, 5)
    assert sys.path == path
    assert isinstance(build("nets_of_the_day:Holder.inner"), nn.Identity)
    conv = build("torch.nn:Conv2d(in_channels=1, out_channels=2, kernel_size=(3, 5))", {"bias": False})
    assert isinstance(conv, nn.Conv2d)
    assert (conv.kernel_size, conv.bias) == ((3, 5), None)


@pytest.mark.parametrize(
    ("place", "arguments", "message"),
    [
        ("torch.nn", None, "a function of no arguments, MODULE:FUNCTION, got 'torch.nn'"),
        ("torch.nn:", None, "MODULE:FUNCTION, got 'torch.nn:'"),
        ("torch.nn:Conv2d(1, 2, 3)", None, "MODULE:FUNCTION(name=value"),
        ("torch.nn:Conv2d(in_channels=f())", None, "MODULE:FUNCTION(name=value"),
        ("torch.nn:Conv2d((", None, "MODULE:FUNCTION(name=value"),
        ("no_such_module:net", None, "No module named 'no_such_module'"),
        ("torch.nn:NoSuchNet", None, "NoSuchNet"),
        ("torch.nn:Conv2d", None, "missing 3 required"),
        ("nets_of_the_day:net", {"width": 3}, "a function of the arguments width, MODULE:FUNCTION"),
        ("builtins:dict", None, "what makes an nn.Module, got 'builtins:dict', a dict"),
    ],
)
def test_what_is_no_model_is_named(place, arguments, message, here):
    path = list(sys.path)
    with pytest.raises(ValueError, match=r"a model is named by") as error:
        build(place, arguments)
    assert message in str(error.value)
    assert sys.path == path
