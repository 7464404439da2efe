"""Layouts that nobody asked for, shard_map and typed shardings (see fully_sharded.py)."""

import json

import jax
import pytest
from fully_sharded import FAIL_BARE, OPTIMIZERS
from helpers import SUPPORT, output_on_eight_devices

SCRIPT = SUPPORT / "fully_sharded.py"
NEWER = pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="needs JAX >= 0.7")


# Moments and a counter, factored moments, and our own two.
SHORT = "adamw", "adafactor", "multi_steps", "prodigy"
LONG = ["adamw", *(name for name in OPTIMIZERS if name not in SHORT)]
by_optimizers = pytest.mark.parametrize(
    "names",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(LONG, id="others", marks=pytest.mark.exhaustive),
    ],
)


def tell(case, names):
    """What the script tells of a case in a process with eight simulated devices."""
    told = {}
    output = output_on_eight_devices(SCRIPT, case, *names)
    for one in map(json.loads, output.splitlines()):
        if one["name"] in FAIL_BARE.get(case, ()):
            assert "error" in one["bare"], f"{one['name']} runs bare by now"
        else:
            told[one["name"], one["dtype"]] = one["bare"], one["guarded"]
    assert {name for name, _ in told} == {*names} - {*FAIL_BARE.get(case, ())}
    return told


@by_optimizers
@pytest.mark.parametrize(
    ("layout", "collective", "spec"),
    [
        ("fully_sharded", "all-gather", "'data', 'model'"),
        ("replicated", "all-reduce", "P()"),
    ],
)
def test_sharded_and_donated(layout, collective, spec, names):
    """On a mesh of 4 by 2; the guard leaves layouts and collectives alone."""
    if layout == "replicated":  # bare, L-BFGS donates a buffer twice, and XLA aborts
        names = [name for name in names if name != "lbfgs"]
    told = tell(layout, names)
    for (name, dtype), (bare, guarded) in told.items():
        for fact in ("collectives", "init", "params", "state", "updates"):
            assert guarded[fact] == bare[fact], (name, dtype, fact)
        assert collective in bare["collectives"]
        assert any(spec in leaf for leaf in guarded["state"])
        if dtype == "float32":
            assert guarded == bare, name  # bits, what was donated, programs
        assert sum(guarded["deleted"][-1]) >= sum(bare["deleted"][-1]) > 6
    assert "float32" in told["adamw", "bfloat16"][0]["dtypes"]
    assert set(told["adamw", "bfloat16"][1]["dtypes"]) == {"int32", "bfloat16"}


@NEWER
@by_optimizers
def test_in_shard_map(names):
    """Sharded state in a scan: no collective more, the same bits."""
    told = tell("in_shard_map", names)
    for (name, dtype), (bare, guarded) in told.items():
        if dtype == "float32":
            assert guarded == bare, name
        assert guarded["collectives"] == {"all-gather": 3, "reduce-scatter": 3}
    bare, guarded = told["adamw", "bfloat16"]
    assert "dtypes do not match" in bare["error"]
    assert set(guarded["dtypes"]) == {"bfloat16"}


@NEWER
@by_optimizers
def test_shardings_in_types(names):
    told = tell("explicit", names)
    for (name, dtype), (bare, guarded) in told.items():
        if dtype == "float32":
            assert guarded == bare, name
        assert any("'data'" in spec for spec in guarded["layout"])
    bare, guarded = told["adamw", "bfloat16"]
    assert "dtypes do not match" in bare["error"]
    assert set(guarded["dtypes"]) == {"int32", "bfloat16"}
