"""What a step carries: which argument comes back, and as which item of the result."""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import dtypeguard
from dtypeguard._carry.carry import carry_of

ONE, TWO, THREE = jnp.ones(1), jnp.ones(2), jnp.ones(3)


class Pair(NamedTuple):
    params: Any
    state: Any


class Both(eqx.Module):
    params: Any
    state: Any


def step(params, opt_state, batch=None, *rest, rate=0.1, **options):
    return params, opt_state, batch


def like(inner, outer):
    """What looks like another function, as `functools.wraps` makes it."""
    return functools.update_wrapper(outer, inner)


@dataclasses.dataclass
class Unregistered:
    params: Any


def round_trip(carry, args, kwargs, result):
    """What a carry takes of a call and of a result, and both with other values."""
    values = carry.take(args, kwargs)
    found = carry.find(result, values)
    back = found.values
    assert found.put(back) is result
    other = tuple(f"new {number}" for number in range(len(back)))
    return (
        values,
        back,
        carry.put(args, kwargs, other),
        found.put(other),
    )


def test_a_partial_counts_what_is_left():
    assert carry_of("guard_step", functools.partial(step, 1)).labels == ("opt_state",)
    by_name = functools.partial(step, params=1)
    assert carry_of("guard_step", by_name, "opt_state").labels == ("opt_state",)


def takes_the_rest(*args, verbose=False, **kwargs):
    return step(*args, **kwargs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: like(step, lambda params: params),
        lambda: like(step, takes_the_rest),
        lambda: like(lambda key, params: params, lambda params, *rest: params),
        lambda: jax.jit(like(step, takes_the_rest)),
        lambda: eqx.filter_jit(like(step, takes_the_rest)),
    ],
)
def test_a_wrapper_of_another_signature(make):
    carry = carry_of("guard_step", make(), "params")
    assert carry.labels == ("params",)
    assert carry.take((ONE,), {}) == (ONE,)


@pytest.mark.parametrize(
    "wrapper", [lambda params, *args, **kwargs: None, lambda params, **kwargs: None]
)
def test_a_wrapper_that_names_the_first_and_passes_on_the_rest(wrapper):
    carry = carry_of("guard_step", like(step, wrapper), ("params", "opt_state"))
    assert carry.take((ONE, TWO, THREE), {}) == (ONE, TWO)


def test_an_object_that_wraps_a_function_has_its_own_signature():
    class Wrapper:
        def __call__(self, params, batch):
            return params

    carry = carry_of("guard_step", like(step, Wrapper()), "batch")
    assert carry.take((ONE, TWO), {}) == (TWO,)


def test_an_argument_is_named_once():
    with pytest.raises(ValueError, match="got carry='params'"):
        carry_of("guard_step", step, (0, "params"))


def test_what_a_call_lacks_is_named():
    carry = carry_of("guard_step", step, (0, "opt_state"))
    match = (
        r"step was called with 1 arguments by position and batch by name: give it opt_state"
    )
    with pytest.raises(TypeError, match=match):
        carry.take((1,), {"batch": 2})


@pytest.mark.parametrize(
    ("value", "result", "back", "rebuilt"),
    [
        (ONE, TWO, TWO, "new 0"),
        (ONE, (TWO, THREE), TWO, ("new 0", THREE)),
        ((ONE, TWO), (TWO, THREE), (TWO, THREE), "new 0"),
        ({"a": ONE}, {"a": TWO}, {"a": TWO}, "new 0"),
        (ONE, Pair(TWO, THREE), TWO, Pair("new 0", THREE)),
        (None, (None, ONE), None, ("new 0", ONE)),
        # What is wrong is the carry, and not which item it is.
        (Pair(ONE, TWO), Pair(TWO, None), Pair(TWO, None), "new 0"),
        ((ONE, TWO, THREE), (TWO, THREE), (TWO, THREE), "new 0"),
    ],
)
def test_one_carry_is_the_whole_result_or_the_first_item(value, result, back, rebuilt):
    carry = carry_of("guard_step", step)
    assert round_trip(carry, (value,), {}, result)[1::2] == ((back,), rebuilt)


def test_a_tuple_of_carries_is_the_first_items_in_its_order():
    carry = carry_of("guard_step", step, ("opt_state", "params"))
    result = (TWO, ONE, THREE)
    _, back, call, rebuilt = round_trip(carry, (ONE, TWO), {}, result)
    assert back == (TWO, ONE)
    assert call == (("new 1", "new 0"), {})
    assert rebuilt == ("new 0", "new 1", THREE)


@pytest.mark.parametrize(
    ("result", "returned", "rebuilt"),
    [
        ((ONE, TWO, THREE), 1, (ONE, "new 0", THREE)),
        ({"loss": ONE, "a": TWO}, "a", {"loss": ONE, "a": "new 0"}),
        (Pair(ONE, TWO), "state", Pair(ONE, "new 0")),
    ],
)
def test_returned_names_the_item_and_the_result_keeps_its_type(result, returned, rebuilt):
    carry = carry_of("guard_step", step, 0, returned)
    made = round_trip(carry, (TWO,), {}, result)
    assert made[1] == (TWO,)
    assert made[3] == rebuilt
    assert type(made[3]) is type(rebuilt)
    assert not isinstance(rebuilt, dict) or [*made[3]] == [*rebuilt]


def test_returned_names_a_field_of_a_module():
    carry = carry_of("guard_step", step, (0, 1), ("state", "params"))
    made = round_trip(carry, (TWO, ONE), {}, Both(ONE, TWO))
    assert made[1] == (TWO, ONE)
    assert (made[3].params, made[3].state) == ("new 1", "new 0")


def test_self_counts_if_it_is_the_only_argument():
    assert carry_of("guard_step", lambda self: self).labels == ("self",)
    assert carry_of("guard_step", lambda self, state: state).labels == ("state",)
    assert carry_of("guard_step", lambda cls, *rest: rest, 1).labels == ("rest[1]",)


@pytest.mark.parametrize(
    ("function", "carry", "message"),
    [
        (step, True, r"got carry=True, but step takes .* Write the position or the name"),
        (step, (), r"got carry=\(\), but step takes .* or a tuple of them"),
        (step, -1, r"carry=-1, but step takes \(params, opt_state, .* Write the position"),
        (lambda *, state: state, 0, r"takes \(\*, state\)\. Write .* or the name of the"),
        (lambda state: state, "sate", r"got carry='sate', but step takes \(state\)"),
        (lambda: 0, 0, r"but step takes \(\)"),
        (lambda *args: args, "state", r"takes \(\*args\)\. .*carry=0,"),
        (3, 0, r"guard_step got 3. Give it a step: a function"),
        (Pair, 0, r"guard_step got <class .*Pair'>. Give it a step: a function"),
    ],
)
def test_an_argument_that_cannot_be_meant(function, carry, message):
    with pytest.raises((TypeError, ValueError), match=message):
        carry_of("guard_step", function, carry)


def test_a_carry_that_is_no_tree_to_jax():
    message = r"step was called with a Unregistered, .*register_dataclass\(Unregistered\)"
    for of in (dtypeguard.guard_step(step), functools.partial(dtypeguard.audit, step)):
        with pytest.raises(TypeError, match=message):
            of(Unregistered(ONE), None)


def test_returned_of_another_length():
    message = r"carry=\(0, 1\) and returned=\(0,\): one is 2 long and the other 1"
    with pytest.raises(ValueError, match=message):
        carry_of("guard_step", step, (0, 1), (0,))


@pytest.mark.parametrize(
    ("carry", "returned", "result", "message"),
    [
        (0, None, None, r"step returned None, and not the new params. Write return par"),
        (
            0,
            None,
            {"loss": ONE, "params": {"w": ONE}},
            r"a dict with the items 'loss', 'params'. Say which of them the new params is: "
            r"guard_step\(..., returned='params'\)",
        ),
        (
            0,
            None,
            (ONE, {"w": ONE}),
            r"items 0, 1. Say which of them the new params is: .*returned=1\)",
        ),
        (
            0,
            2,
            ({"w": ONE}, ONE),
            r"items 0, 1; returned=2 names another item. .*returned=0\)",
        ),
        (
            (0, 1),
            None,
            ({"w": ONE},),
            r"tuple with the items 0, and not the new params and",
        ),
        (
            0,
            None,
            ONE,
            r"returned float32\[1\], and not the new params. Write return params",
        ),
        (0, None, Unregistered({"w": ONE}), r"step returned Unregistered, and not the new"),
        (0, None, eqx.nn.Identity(), r"step returned .*, and not the new params. Write"),
    ],
)
def test_a_result_without_the_carry(carry, returned, result, message):
    resolved = carry_of("guard_step", step, carry, returned)
    with pytest.raises(TypeError, match=message):
        resolved.find(result, ({"w": ONE}, ONE)[: len(resolved.places)])
