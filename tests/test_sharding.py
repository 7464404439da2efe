"""Stochastic rounding over eight simulated devices (see eight_devices.py)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def told():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, str(HERE / "eight_devices.py")],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("params", ["replicated", "sharded"])
def test_the_same_bits_as_on_one_device(told, params):
    assert told[params]["spread"] == 8
    assert told[params]["same"] == [True] * 9  # params, mu, nu of two; step counts, seed


@pytest.mark.parametrize("params", ["replicated", "sharded"])
def test_no_collective_is_added(told, params):
    assert told[params]["bare"]  # there are some to count
    assert told[params]["guarded"] == told[params]["bare"]
