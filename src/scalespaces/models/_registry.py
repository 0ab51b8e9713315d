"""Networks by name, and models by the function that makes them."""

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, get_type_hints

from torch import nn

from scalespaces._choices import PRESETS
from scalespaces.models._network import NamedNetwork, check_classes, plain
from scalespaces.nn._lift import ARGUMENTS as LIFT_ARGUMENTS
from scalespaces.nn._lift import as_lift
from scalespaces.theory._arguments import check_choice, did_you_mean


@dataclass(frozen=True)
class Entry:
    """A registered network; see :func:`register_model`."""

    build: type[NamedNetwork]
    about: str
    settings: Mapping[str, object]
    input_shape: tuple[int, int, int]
    baseline: str | None

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments of the class, with the values they have under this name."""
        parameters = inspect.signature(self.build).parameters
        return {name: parameter.default for name, parameter in parameters.items()} | dict(self.settings)


_ENTRIES: dict[str, Entry] = {}


def register_model(
    name: str,
    build: type[NamedNetwork],
    about: str,
    settings: Mapping[str, object] | None = None,
    *,
    input_shape: tuple[int, int, int] = (3, 224, 224),
    baseline: str | None = None,
) -> None:
    """Give a network a name.

    Args:
        name: a new name.
        build: the network's class, a subclass of one of ours that takes a ``lift``; every argument has a default.
        about: one line that describes the network.
        settings: arguments that differ from the class's defaults.
        input_shape: channels, height and width of the images the network is meant for.
        baseline: name of the network to compare its costs with.
    """
    if name in _ENTRIES:
        raise ValueError(f"a model called {name!r} already exists; choose another name")
    if not (isinstance(build, type) and issubclass(build, NamedNetwork)):
        raise TypeError(f"a registered network must be a subclass of DenseNet, ResNet or ConvNet, got {build!r}")
    new = Entry(build, about, settings or {}, input_shape, baseline)
    _refuse_unknown(f"{build.__name__} takes no setting", new.settings, inspect.signature(build).parameters, TypeError)
    _ENTRIES[name] = new


def entry(name: str) -> Entry:
    """The network registered under that name."""
    _refuse_unknown("no model is called", [name], _ENTRIES, ValueError)
    return _ENTRIES[name]


def create_model(name: str, *, preset: str = "recommended", **arguments: Any) -> NamedNetwork:
    """Build a network by its name.

    Args:
        name: one of :func:`list_models`.
        preset: ``"recommended"`` lifts by cascade to a pyramid, which is exact and cheap. ``"paper"`` does what the
            paper does: the direct lift, every level at every pixel, plain windows.
        **arguments: those of its class, :class:`DenseNet`, :class:`ResNet` or :class:`ConvNet`, to replace the
            network's own. A dict for ``lift`` is merged with the network's own lift, a ``Lift`` replaces it.

    Returns:
        The network. Its ``config`` has the name and all arguments as plain values: ``create_model(**config)`` builds
        the same architecture.

    Example:
        >>> model = create_model("s_resnet", num_classes=5, lift={"num_levels": 3})
        >>> model(torch.zeros(1, 3, 64, 96)).shape
        torch.Size([1, 5, 64, 96])
        >>> model.config["name"], model.config["lift"]["num_levels"], model.config["filter_levels"]
        ('s_resnet', 3, 2)
        >>> create_model("s_resnet", preset="paper").lift
        Lift(num_levels=4, base=2.0, sampling='dense', method='direct')
    """
    found, chosen = entry(name), PRESETS[check_choice("preset", preset, PRESETS)]
    defaults = found.arguments
    for key in [key for key in arguments if key in LIFT_ARGUMENTS and key not in defaults]:
        raise TypeError(f"{key} is an argument of the lift, so it goes there: lift={{{key!r}: {arguments[key]!r}}}")
    _refuse_unknown(f"{name} takes no argument", arguments, defaults, TypeError)
    own = as_lift(defaults.get("lift"), {"num_levels": 1}).config | chosen.get("lift", {})
    check_classes("num_classes", arguments.get("num_classes"))
    merged = plain(defaults | chosen | arguments | {"lift": as_lift(arguments.get("lift"), own).config})
    model = found.build(**merged)
    model.config = {"name": name, **merged}
    return model


def list_models(pattern: str = "*") -> list[str]:
    """The names of all networks, or of those that match a pattern.

    Example:
        >>> scalespaces.models.list_models("s_*")
        ['s_cnn', 's_densenet', 's_resnet', 's_resnet_no_interaction']
    """
    return sorted(name for name in _ENTRIES if fnmatchcase(name, pattern))


def _refuse_unknown(complaint: str, names: Iterable[str], known: Iterable[str], error: type[Exception]) -> None:
    known = tuple(known)
    for name in names:
        if name not in known:
            raise error(f"{complaint} {name!r}{did_you_mean(name, known)} (there are {', '.join(known)})")


SOURCES = ("timm", "torchvision", "segmentation_models_pytorch", "scalespaces")
"""Packages whose networks a string may name. Others run only if the user allows them."""


def build(place: str, arguments: Mapping[str, object] | None = None, allow: Iterable[str] = ()) -> nn.Module:
    """Call the function or class at ``MODULE:FUNCTION`` and return the model it makes.

    The module belongs to ``SOURCES``, or to a package in ``allow``, which may be a file in the current directory.
    """
    # Plain arguments may follow the function, as in "timm:create_model(model_name='resnet18', num_classes=3)".
    function, opened, values = place.partition("(")
    try:
        call = ast.parse(f"f({values if opened else ')'}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("arguments need names, as in (num_classes=3)")
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords} | dict(arguments or {})
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"a model is named by MODULE:FUNCTION(name=value, ...), got {place!r:.200}: {error}"
        ) from error
    module, _, name = function.partition(":")
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    _refuse_foreign(function, module, (*SOURCES, *allow))  # before it is imported, which runs its code
    check_classes("num_classes", given.get("num_classes"))
    try:
        with _modules_here() if _within(module, allow) else _weights_only():
            found = attrgetter(name)(importlib.import_module(module))
            home = str(getattr(found, "__module__", None))
            _refuse_foreign(function, home, (*SOURCES, *allow))  # it may be one of the package's own imports
            if not _within(home, allow) and not _makes_networks(found, f"{module}.{name}"):
                raise ValueError("it is not a public class of networks, or a function annotated to return one")
            model = found(**given)
    except _ForeignError:
        raise
    except Exception as error:  # of any package
        takes = f"the arguments {', '.join(given)}" if given else "no arguments"
        rule = f"a model is named by a function of {takes}, MODULE:FUNCTION"
        raise ValueError(f"{rule}, got {function!r}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"a model is named by what makes an nn.Module, got {place!r}, a {type(model).__name__}")
    return model


class _ForeignError(ValueError):
    """A string names code of a package that nobody allowed."""


def _refuse_foreign(function: str, module: str, allowed: Iterable[str]) -> None:
    if not _within(module, allowed):
        rule = f"a model is named by a function of {', '.join(SOURCES)}, or of a package that you allow"
        way = f"if you trust that package, use --allow-source {module.partition('.')[0]} (allow_source in Python)"
        raise _ForeignError(f"{rule}, got {function!r:.200}, which is code of {module!r:.80}; {way}")


def _within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _makes_networks(found: Any, path: str) -> bool:
    """Whether it is public and makes networks: packages also have functions that download and write files."""
    try:
        made = found if isinstance(found, type) else get_type_hints(found).get("return")
    except (TypeError, NameError):
        made = None
    makes = isinstance(made, type) and issubclass(made, nn.Module)
    return "._" not in path and (makes or path == "timm.create_model")  # older versions of timm annotate nothing


@contextmanager
def _modules_here() -> Iterator[None]:
    """Find modules in the current directory as well, as ``python -m`` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


@contextmanager
def _weights_only() -> Iterator[None]:
    """Read weights without unpickling code, whatever the arguments of a factory say."""
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        yield
    finally:
        os.environ.pop(key)
        os.environ.update({} if before is None else {key: before})
