"""What a step carries: which argument comes back, and as which item of the result."""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import tree_util

from dtypeguard import DtypeDriftError, audit, guard_step
from tests.support.dtypes import BF16, F32

NARROW, LONG = jnp.ones(2, BF16), jnp.ones(3, BF16)
WIDE, LONG_WIDE = jnp.ones(2, F32), jnp.ones(3, F32)
LOSS = {"loss": WIDE}


class Pair(NamedTuple):
    params: Any
    state: Any


class Both(eqx.Module):
    params: Any
    state: Any


@dataclasses.dataclass
class Unregistered:
    params: Any


def step(params, opt_state, batch=None, *rest, rate=0.1, **options):
    return params.astype(F32), opt_state, batch


def returning(result):
    return lambda params, opt_state=None, batch=None: result


def like(inner, outer):
    """What looks like another function, as `functools.wraps` makes it."""
    return functools.update_wrapper(outer, inner)


def narrow(tree):
    """Of each leaf, whether it is narrow: a guard has cast it, or nobody made it wide."""
    return [leaf.dtype == BF16 for leaf in tree_util.tree_leaves(tree)]


# Which argument ---------------------------------------------------------------------------


def first(params, *args, **kwargs):
    return params.astype(F32)


def second(params, state):
    return state.astype(F32)


def any_of(function):
    return lambda *args, **kwargs: function(*args, **kwargs)


class Wrapper:
    def __call__(self, params, batch):
        return batch.astype(F32)


# A step, `carry` and the arguments of a call, of which the carry alone is long.
CARRIES = {
    "a partial": (functools.partial(second, WIDE), 0, (LONG,)),
    "a partial by name": (functools.partial(second, params=WIDE), "state", {"state": LONG}),
    "a wrapper of one": (like(step, lambda params: first(params)), "params", (LONG,)),
    "a wrapper of any": (like(step, any_of(first)), "params", (LONG, 0)),
    "a wrapper of another": (like(lambda key, params: 0, first), "params", (LONG, 0)),
    "jit of a wrapper": (jax.jit(like(step, any_of(first))), "params", (LONG, 0)),
    "filter_jit": (eqx.filter_jit(like(step, any_of(first))), "params", (LONG, 0)),
    "it names the first": (
        like(step, lambda params, *rest: second(params, *rest)),
        "opt_state",
        (WIDE, LONG),
    ),
    "an object that wraps": (like(step, Wrapper()), "batch", (WIDE, LONG)),
    "self alone": (lambda self: first(self), 0, (LONG,)),
    "after self": (lambda self, state: first(state), 0, (WIDE, LONG)),
    "in the rest": (lambda cls, *rest: first(rest[1]), 1, (WIDE, WIDE, LONG)),
}


@pytest.mark.parametrize("name", CARRIES)
def test_which_argument_is_carried(name):
    function, carry, given = CARRIES[name]
    args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
    result = guard_step(function, carry=carry)(*args, **kwargs)
    assert (result.dtype, result.shape) == (BF16, (3,))


@pytest.mark.parametrize(
    ("function", "carry", "message"),
    [
        (step, True, r"got carry=True, but step takes .* Write the position or the name"),
        (step, (), r"got carry=\(\), but step takes .* or a tuple of them"),
        (step, -1, r"carry=-1, but step takes \(params, opt_state, .* Write the position"),
        (step, (0, "params"), "got carry='params'"),
        (lambda *, state: state, 0, r"takes \(\*, state\)\. Write .* or the name of the"),
        (lambda state: state, "sate", r"got carry='sate', but step takes \(state\)"),
        (lambda: 0, 0, r"but step takes \(\)"),
        (lambda *args: args, "state", r"takes \(\*args\)\. .*carry=0,"),
        (Pair, 0, r"guard_step got <class .*Pair'>. Give it a step: a function"),
    ],
)
def test_an_argument_that_cannot_be_meant(function, carry, message):
    with pytest.raises((TypeError, ValueError), match=message):
        guard_step(function, carry=carry)


def test_what_a_call_lacks_is_named():
    with pytest.raises(
        TypeError, match=r"step was called without opt_state, which guard_step carries"
    ):
        guard_step(step, carry=(0, "opt_state"))(1, batch=2)


def test_a_carry_that_is_no_tree_to_jax():
    message = r"step was called with a Unregistered, .*register_dataclass\(Unregistered\)"
    for of in (guard_step(step), functools.partial(audit, step)):
        with pytest.raises(TypeError, match=message):
            of(Unregistered(NARROW), None)


# Which item of the result -----------------------------------------------------------------

# Options, the carry, a result, and which of its leaves are cast.
ITEMS = {
    "the whole": ({}, NARROW, WIDE, [True]),
    "the first": ({}, NARROW, (WIDE, LOSS), [True, False]),
    "the whole of two": ({}, (NARROW, NARROW), (WIDE, WIDE), [True, True]),
    "a dict": ({}, {"a": NARROW}, {"a": WIDE}, [True]),
    "the first of a named tuple": ({}, NARROW, Pair(WIDE, LOSS), [True, False]),
    "nothing": ({}, None, (None, WIDE), [False]),
    "another": ({"returned": 1}, NARROW, (WIDE, WIDE, WIDE), [False, True, False]),
    "a key": ({"returned": "a"}, NARROW, {"loss": WIDE, "a": WIDE}, [True, False]),
    "a field": ({"returned": "state"}, NARROW, Pair(WIDE, WIDE), [False, True]),
    "of a module": ({"returned": "params"}, NARROW, Both(WIDE, LOSS), [True, False]),
}


@pytest.mark.parametrize("name", ITEMS)
def test_the_item_that_is_the_carry_is_cast_in_a_result_of_the_same_tree(name):
    options, carry, result, expected = ITEMS[name]
    made = guard_step(returning(result), **options)(carry)
    assert narrow(made) == expected
    assert tree_util.tree_structure(made) == tree_util.tree_structure(result)
    assert not isinstance(result, dict) or [*made] == [*result]
    stable = carry, WIDE  # which comes back as it is
    assert guard_step(returning(stable))(carry) is stable


@pytest.mark.parametrize(
    ("returned", "result"),
    [
        (None, (WIDE, LONG_WIDE, WIDE)),
        (("state", "params"), Both(LONG_WIDE, WIDE)),
        ((1, 2), (LOSS, WIDE, LONG_WIDE)),
    ],
)
def test_a_tuple_of_carries_is_the_first_items_in_its_order(returned, result):
    guarded = guard_step(
        returning(result), carry=("opt_state", "params"), returned=returned
    )
    assert sum(narrow(guarded(LONG, NARROW))) == 2


def test_returned_of_another_length():
    with pytest.raises(
        ValueError,
        match=r"carry=\(0, 1\) and returned=\(0,\): one is 2 long and the other 1",
    ):
        guard_step(step, carry=(0, 1), returned=(0,))


PARAMS = {"w": WIDE}


@pytest.mark.parametrize(
    ("options", "result", "message"),
    [
        (
            {},
            {"loss": WIDE, "params": PARAMS},
            r"a dict with the items 'loss', 'params'. Say which of them the new params is: "
            r"guard_step\(..., returned='params'\)",
        ),
        ({}, (WIDE, PARAMS), r"items 0, 1. Say which of them .* is: .*returned=1\)"),
        ({"returned": 2}, (PARAMS, WIDE), r"returned=2 names another .*returned=0\)"),
        (
            {"carry": (0, 1)},
            (PARAMS,),
            r"tuple with the items 0, and not the new params and",
        ),
        ({}, WIDE, r"returned float32\[2\], and not the new params. Write return params"),
        ({}, Unregistered(PARAMS), r"step returned Unregistered, and not the new"),
        ({}, eqx.nn.Identity(), r"step returned .*, and not the new params. Write"),
    ],
)
def test_a_result_without_the_carry(options, result, message):
    guarded = guard_step(returning(result), **options)
    with pytest.raises(TypeError, match=message):
        guarded(PARAMS, WIDE)


@pytest.mark.parametrize(
    ("carry", "result"),
    [(Pair(NARROW, NARROW), Pair(WIDE, None)), ((NARROW,) * 3, (WIDE, WIDE))],
)
def test_what_is_wrong_is_the_carry_and_not_which_item_it_is(carry, result):
    with pytest.raises(DtypeDriftError, match="changed the tree of its params"):
        guard_step(returning(result))(carry)
