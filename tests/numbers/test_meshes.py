"""Programs under a mesh with explicit axes are audited as others are."""

import json

import jax
import pytest
from helpers import SUPPORT, output_on_eight_devices
from precision_on_explicit_meshes import errors

pytestmark = pytest.mark.skipif(
    not all(hasattr(jax.sharding, name) for name in ("auto_axes", "reshard"))
    or jax.__version_info__ < (0, 10),
    reason="needs JAX >= 0.10",
)


@pytest.mark.parametrize("devices", [1, 8])
def test_programs_under_a_mesh_with_explicit_axes(devices):
    if devices == 1:
        found = errors()
    else:
        script = SUPPORT / "precision_on_explicit_meshes.py"
        found = json.loads(output_on_eight_devices(script))
    assert len(found) == 6
    for name, (error, off) in found.items():
        assert 0 < error < 0.1, name
        if name.startswith("gradient"):  # a single number may be right by chance
            assert error / 4 < off < 4 * error, (name, error, off)
