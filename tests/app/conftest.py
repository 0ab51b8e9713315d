"""The fields of the page, and networks in files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scalespaces import models
from scalespaces.app._explore import lift_arguments

FIELDS: dict[str, Any] = {"kernel": "discrete_gaussian", "base": "2", "zero_scale": "1/4", "num_levels": 4}
FIELDS |= {"first_level": 0, "sampling": "pyramid", "oversampling": 2, "method": "cascade"}


@pytest.fixture(scope="session")
def arguments() -> Callable[..., dict[str, Any]]:
    """Those of a lift, from the fields as they are at first but for some."""
    return lambda **fields: lift_arguments(**FIELDS | fields)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a network of random weights, with a card if it is given one."""

    def save(name: str, card: models.Card | None = None, **arguments: Any) -> Path:
        torch.manual_seed(0)
        model = models.create_model(name, **arguments)
        model.card = card or models.Card()
        path = tmp_path_factory.mktemp("models") / f"{name}.safetensors"
        models.save(model, path)
        return path

    return save
