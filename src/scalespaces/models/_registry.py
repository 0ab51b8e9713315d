"""Networks by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from scalespaces.models._network import ScaleNetwork


@dataclass(frozen=True)
class Entry:
    """A registered network: how it is built, and what it is."""

    name: str
    build: Callable[..., ScaleNetwork]
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, int, int] = (3, 224, 224)
    baseline: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments and their defaults, the settings of this name among them."""
        parameters = inspect.signature(self.build).parameters
        return {name: parameter.default for name, parameter in parameters.items()} | dict(self.settings)


_ENTRIES: dict[str, Entry] = {}


def register_model(
    name: str,
    build: Callable[..., ScaleNetwork],
    about: str,
    settings: Mapping[str, Any] | None = None,
    *,
    input_shape: tuple[int, int, int] = (3, 224, 224),
    baseline: str | None = None,
) -> None:
    """Give a network a name.

    Args:
        name: a new name.
        build: its class; every argument has a default.
        about: one line that says what it is.
        settings: values of arguments that replace the class's defaults.
        input_shape: channels, height and width of the images it is meant for.
        baseline: name of the network to compare its costs with.
    """
    if name in _ENTRIES:
        raise ValueError(f"names are given once, and {name!r} is taken; choose another")
    entry = Entry(name, build, about, settings or {}, input_shape, baseline)
    _refuse_unknown(f"{build.__name__} takes no setting", entry.settings, inspect.signature(build).parameters)
    _ENTRIES[name] = entry


def entry(name: str) -> Entry:
    """What is registered under that name."""
    _refuse_unknown("no model is called", [name], _ENTRIES, ValueError)
    return _ENTRIES[name]


def create_model(name: str, **arguments: Any) -> ScaleNetwork:
    """Build a network by its name.

    Args:
        name: one of :func:`scalespaces.models.list_models`.
        **arguments: those of its class, :class:`~scalespaces.models.DenseNet`,
            :class:`~scalespaces.models.ResNet` or :class:`~scalespaces.models.ConvNet`; those of the name, the paper's
            for the first two, where left out.

    Returns:
        The network. Its ``config`` has the name and all arguments as plain values that JSON can hold, and
        ``create_model(**config)`` builds the same architecture.

    Example:
        >>> model = create_model("s_resnet", num_classes=5, sampling="pyramid", method="cascade")
        >>> model(torch.zeros(1, 3, 64, 96)).shape
        torch.Size([1, 5, 64, 96])
        >>> model.config["name"], model.config["num_levels"], model.config["filter_levels"]
        ('s_resnet', 4, 2)
    """
    found = entry(name)
    defaults = found.arguments
    _refuse_unknown(f"{name} takes no argument", arguments, defaults, TypeError)
    merged = {key: _plain(value) for key, value in (defaults | arguments).items()}
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


def _plain(value: Any) -> Any:
    """The value as JSON would give it back."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _refuse_unknown(
    complaint: str, names: Iterable[str], known: Iterable[str], error: type[Exception] = TypeError
) -> None:
    known = tuple(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]!r}? There are" if near else "; there are"
            raise error(f"{complaint} {name!r}{hint} {', '.join(known)}")
