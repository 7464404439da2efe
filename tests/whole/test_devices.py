"""Eight simulated devices, in a process that starts with them (see eight_devices.py)."""

import json

import pytest
from helpers import SUPPORT, output_on_eight_devices

SCRIPT = SUPPORT / "eight_devices.py"


@pytest.fixture(scope="module")
def told():
    return json.loads(output_on_eight_devices(SCRIPT))


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_stochastic_rounding_is_that_of_one_device(told, layout):
    """The same bits and no other collectives; `test_sharded_and_donated` has bare ones."""
    outcome = told[layout]
    assert outcome["rows"] == [6 if layout == "sharded" else 48] * 8
    assert len(outcome["same"]) == 9  # of w and b params and moments; count, seed and step
    assert [path for path, same in outcome["same"].items() if not same] == []
    ours, bare = outcome["collectives"]
    assert bare  # there are some to count
    assert ours == bare


def test_prodigy_communicates_its_two_sums_alone(told):
    """Of each of the two params, as scalars."""
    outcome = told["prodigy"]
    assert outcome["kinds"] == ["all-reduce"]
    assert outcome["sums"] == ["f32[]"] * 4
    assert outcome["spread"] == [True, True]
    assert outcome["gap"] < 1e-5
