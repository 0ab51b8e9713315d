"""What every test sees."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import settings

import scalespaces

settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``extra("module")`` where the module is not installed."""
    for mark in item.iter_markers("extra"):
        (module,) = mark.args
        if getattr(find_spec(module), "origin", None) is None:  # None for a folder that a former installation left
            pytest.skip(f"{module} is not installed: make test-extras installs it and runs this test")


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace.update(torch=torch, np=np, scalespaces=scalespaces)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
