"""Two real processes on loopback, and the same in one (see two_processes.py)."""

import json
import socket
import subprocess
import sys

import pytest
from helpers import SUPPORT, WARNINGS_ARE_ERRORS, child_variables

pytestmark = pytest.mark.exhaustive
SCRIPT = SUPPORT / "two_processes.py"
LIMIT = 240  # seconds


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


TAKEN = "Failed to start RPC server"  # another process was quicker to take the port


def tell(count):
    """What each of so many processes told."""
    for _ in range(3):
        codes, outputs = run(count)
        if not any(TAKEN in output for output in outputs):
            break
    for code, output in zip(codes, outputs):
        assert code == 0, output[-4000:]
    return [
        [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for output in outputs
    ]


def run(count):
    """The exit codes and outputs of so many processes, none of which outlives this."""
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                *WARNINGS_ARE_ERRORS,
                str(SCRIPT),
                port,
                str(number),
                str(count),
            ],
            env=child_variables(devices=4 // count),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], outputs


@pytest.fixture(scope="module")
def told():
    first, second = tell(2)
    assert first == second
    assert [(one["name"], one["dtype"]) for one in first] == [
        ("adamw", "float32"),
        ("adamw", "bfloat16"),
        ("MultiSteps", "float32"),
    ]
    return first


def test_guarded_is_bare(told):
    for one in told:
        bare, guarded = one["bare"], one["guarded"]
        assert bare["collectives"]
        assert guarded["collectives"] == bare["collectives"]
        assert guarded["shardings"] == bare["shardings"]
        assert "P('data',)" in guarded["shardings"]
        if one["dtype"] == "float32":
            assert guarded == bare, one["name"]
        else:
            assert "float32" in bare["dtypes"]
            assert set(guarded["dtypes"]) == {"int32", "bfloat16"}


def test_two_processes_are_one(told):
    (alone,) = tell(1)
    assert alone == told
