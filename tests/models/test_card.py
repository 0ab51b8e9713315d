"""Cards: the normalization they say, and what they refuse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalespaces.models import Card


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.01, 10)), min_size=1, max_size=4), st.integers(0, 2))
def test_normalization(channels, batch_axes):
    mean, std = zip(*channels, strict=True)
    image = torch.rand(*[2] * batch_axes, len(channels), 3, 4, dtype=torch.float64)
    expected = torch.stack([(image[..., i, :, :] - m) / s for i, (m, s) in enumerate(channels)], -3)
    torch.testing.assert_close(Card(mean=mean, std=std).normalize(image), expected)
    assert Card().normalize(image) is image
    with pytest.raises(ValueError, match="images are"):
        Card(mean=mean, std=std).normalize(image[..., :0, :, :])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": "abc"}, "classes is a list"),
        ({"classes": ["a", 1]}, "different strings"),
        ({"classes": ["a", "a"]}, "different strings"),
        ({"mean": [0.5]}, "one finite number per channel each"),
        ({"mean": [0.5], "std": [0.0]}, "above zero"),
        ({"mean": [float("nan")], "std": [1.0]}, "finite"),
        ({"mean": ["0"], "std": [1.0]}, "finite"),
        ({"mean": [True], "std": [1.0]}, "finite"),
        ({"mean": 0.5, "std": 0.5}, "mean is a list"),
    ],
)
def test_wrong_cards(arguments, message):
    with pytest.raises(ValueError, match=message):
        Card(**arguments)
