"""autocast on eight simulated devices: in which dtypes they communicate."""

import json

import pytest
from helpers import SUPPORT, output_on_eight_devices

_SCRIPT = SUPPORT / "autocast_on_eight_devices.py"


@pytest.fixture(scope="module")
def cases():
    lines = output_on_eight_devices(_SCRIPT).splitlines()
    return {(x["layout"], x["program"]): x for x in map(json.loads, lines)}


_PROGRAMS = ["products", "all", "of the gradient", "in shards"]


@pytest.mark.parametrize("layout", ["data", "fsdp"])
def test_gradients_are_added_up_in_float32(cases, layout):
    # What is written by hand is not: the test would see it.
    assert cases[layout, "by hand"]["counts"]["bf16 all-reduce"] == 2
    for program in _PROGRAMS:
        counts = cases[layout, program]["counts"]
        assert counts["f32 all-reduce"] == 2
        assert "bf16 all-reduce" not in counts


def test_parameters_are_gathered_narrow(cases):
    for program in ("products", "all", "of the gradient"):
        counts = cases["fsdp", program]["counts"]
        by_hand = cases["fsdp", "by hand"]["counts"]["bf16 all-gather"]
        # The barriers that a CPU needs may keep two gatherings of a value apart.
        assert by_hand <= counts["bf16 all-gather"] <= 2 * by_hand
        assert "f32 all-gather" not in counts


def test_shardings_and_values_are_those_of_the_program(cases):
    for layout, program in cases:
        case, bare = cases[layout, program], cases[layout, "float32"]
        assert case["shards"] == bare["shards"]
        assert case["size"] == pytest.approx(bare["size"], rel=0.01)
