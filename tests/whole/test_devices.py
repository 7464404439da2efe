"""Eight simulated devices, in a process that starts with them (see eight_devices.py)."""

import functools
import json

import jax
import pytest
from eight_devices import FAIL_BARE
from helpers import SUPPORT, output_on_eight_devices

pytestmark = pytest.mark.exhaustive


@functools.cache
def told():
    """What the script tells of each case."""
    output = output_on_eight_devices(SUPPORT / "eight_devices.py")
    return [json.loads(line) for line in output.splitlines()]


def pairs(case):
    """What a case tells of each optimizer and dtype, bare and guarded."""
    found = {}
    for one in (one for one in told() if one["case"] == case):
        if one["name"] in FAIL_BARE.get(case, ()):
            assert "error" in one["bare"], f"{one['name']} runs bare by now"
        else:
            found[one["name"], one["dtype"]] = one["bare"], one["guarded"]
    assert len(found) > 2
    return found


def test_sharded_and_donated():
    """On a mesh of 4 by 2; the guard leaves layouts and collectives alone."""
    found = pairs("fully_sharded")
    for (name, dtype), (bare, guarded) in found.items():
        for fact in ("collectives", "init", "params", "state", "updates"):
            assert guarded[fact] == bare[fact], (name, dtype, fact)
        assert "all-gather" in bare["collectives"]
        assert any("'data', 'model'" in leaf for leaf in guarded["state"])
        if dtype == "float32":
            assert guarded == bare, name  # bits, what was donated, programs
        assert sum(guarded["deleted"][-1]) >= sum(bare["deleted"][-1]) > 6
    assert "float32" in found["adamw", "bfloat16"][0]["dtypes"]
    assert set(found["adamw", "bfloat16"][1]["dtypes"]) == {"int32", "bfloat16"}


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="needs JAX >= 0.7")
def test_in_shard_map():
    """Sharded state in a scan: no collective more, the same bits."""
    found = pairs("in_shard_map")
    for (name, dtype), (bare, guarded) in found.items():
        if dtype == "float32":
            assert guarded == bare, name
        assert guarded["collectives"] == {"all-gather": 3, "reduce-scatter": 3}
    bare, guarded = found["adamw", "bfloat16"]
    assert "dtypes do not match" in bare["error"]
    assert set(guarded["dtypes"]) == {"bfloat16"}


def test_stochastic_rounding_is_that_of_one_device():
    """The same bits and no other collectives."""
    (found,) = (one for one in told() if one["case"] == "rounded")
    assert found["rows"] == [6] * 8
    assert found["same"] == [True] * 9  # of w and b params and moments; count, seed, step
    ours, bare = found["collectives"]
    assert ours == bare != {}
