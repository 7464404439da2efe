"""What holds for every test: dtype promotion, and what is compiled once for all."""

import os
import pathlib

import jax
import pytest


def pytest_configure(config):
    """Programs that are compiled are kept: for the other worker, children, the next run.

    In pytest's cache, which `--cache-clear` empties; JAX tells apart the programs, flags
    and versions. Through the environment, since several tests start processes.
    """
    if hasattr(config, "cache"):
        folder = pathlib.Path(config.cache.mkdir("compiled")) / f"jax-{jax.__version__}"
        options = {
            "jax_compilation_cache_dir": str(folder),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in options.items():
            os.environ.setdefault(name.upper(), str(value))
            jax.config.update(name, value)


_LONGEST = "test_optax_own", "test_killed_and_resumed"


def pytest_collection_modifyitems(items):
    """The longest tests come first, so that no worker is left alone with them."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in _LONGEST))


@pytest.fixture(autouse=True)
def promotion(request):
    """Strict, unless the test is marked `third_party`: Optax relies on promotion."""
    mode = "standard" if request.node.get_closest_marker("third_party") else "strict"
    with jax.numpy_dtype_promotion(mode):
        yield
