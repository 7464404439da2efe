"""Eight simulated devices, in a process that starts with them (see eight_devices.py)."""

import json

import pytest
from helpers import SUPPORT, output_on_eight_devices

SCRIPT = SUPPORT / "eight_devices.py"
NAMES = ("stochastic", "adam", "adamw in a chain", "lamb", "MultiSteps")


@pytest.fixture(scope="module")
def told():
    return json.loads(output_on_eight_devices(SCRIPT))


@pytest.fixture(params=["replicated", "sharded"])
def layout(request):
    return request.param


def test_everything_is_compared(told, layout):
    """Params and moments of w and b, and counts: of two, and the seed and step."""
    assert told.keys() == {
        *(f"{n}, {kind}" for n in NAMES for kind in ("replicated", "sharded")),
        "prodigy",
    }
    assert len(told[f"adam, {layout}"]["same"]) == 7
    assert len(told[f"stochastic, {layout}"]["same"]) == 9


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits(told, name, layout):
    """As the bare optimizer; with stochastic rounding as one device."""
    outcome = told[f"{name}, {layout}"]
    assert outcome["rows"] == [6 if layout == "sharded" else 48] * 8
    assert [path for path, same in outcome["same"].items() if not same] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_collective_is_added(told, name, layout):
    guarded, bare = told[f"{name}, {layout}"]["collectives"]
    assert bare  # there are some to count
    assert guarded == bare


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_first_state_is_spread_as_the_bare_one(told, name, layout):
    guarded, bare = told[f"{name}, {layout}"]["given"]
    assert guarded == bare


def test_prodigy_communicates_its_two_sums_alone(told):
    """Of each of the two params, as scalars."""
    outcome = told["prodigy"]
    assert outcome["kinds"] == ["all-reduce"]
    assert outcome["sums"] == ["f32[]"] * 4
    assert outcome["spread"] == [True, True]
    assert outcome["gap"] < 1e-5
