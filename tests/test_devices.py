"""Eight simulated devices, in a process that starts with them."""

import os
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).with_name("on_eight_devices.py")


def test_shardings_collectives_and_numbers_are_the_bare_ones():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    path = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "done"
    assert "all-reduce" in run.stdout  # there is something to count
