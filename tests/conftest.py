"""What every test sees."""

import numpy as np
import pytest
import torch
from hypothesis import settings

import scalespaces

settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace.update(torch=torch, np=np, scalespaces=scalespaces)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
