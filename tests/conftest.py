"""Strict dtype promotion for our own code; standard only where a test says so."""

import jax
import pytest


@pytest.fixture(autouse=True)
def promotion(request):
    """Strict, unless the test is marked `third_party`: Optax relies on promotion."""
    mode = "standard" if request.node.get_closest_marker("third_party") else "strict"
    with jax.numpy_dtype_promotion(mode):
        yield
