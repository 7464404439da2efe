"""A graph of a jaxpr. One of an unknown kind costs an audit lines, never the report."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit
from dtypeguard._program import graph, program
from dtypeguard._program.graph import Graph
from dtypeguard._program.program import form_of
from tests.support import planted

pytestmark = pytest.mark.third_party

PARAMS = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}


def unreadable(eqn):
    raise AttributeError("'Jaxpr' object has no attribute 'eqns'")


def renamed(eqn):
    """Parameters of equations that have other names."""
    return form_of(eqn.replace(params={"as_of_tomorrow": eqn.params}))


@pytest.mark.parametrize("name", ["inside_cond_branch", "inside_while_body"])
def test_what_jax_names_otherwise_costs_lines_and_no_report(name, monkeypatch):
    case = planted.CASES[name]
    for reader in (renamed, unreadable):
        monkeypatch.setattr(program, "form_of", reader)
        (drift,) = audit(case.opt, PARAMS).drifts
        assert (drift.before, drift.after) == (case.before, case.after)
        # Where a loop stays closed, the line that calls it is named.
        assert drift.origin is None or drift.origin.file == planted.__file__


def test_the_jaxpr_inside_a_loop_tells_its_carry():
    """Constants, two carried arrays and scanned ones, each in a dtype of its own."""

    def loops(a, b, c, d):
        def body(carry, row):
            x, y = carry
            return (x + a, y), row * d

        (x, y), rows = lax.scan(body, (a, b), c)
        x, y = lax.while_loop(lambda carry: b[0] > 9, lambda carry: (a, carry[1]), (x, y))
        return x, y, rows

    dtypes = jnp.float32, jnp.int32, jnp.float16, jnp.float16
    shapes = (3,), (2,), (5, 3), (3,)
    given = [jax.ShapeDtypeStruct(*pair) for pair in zip(shapes, dtypes)]
    graph = Graph(jax.make_jaxpr(loops)(*given))
    found = [graph.dependencies[output] for output in graph.outputs]
    assert found == [0b0001, 0b0010, 0b1100]


def test_arguments_behind_what_a_function_closes_over():
    """A jaxpr from JAX's frames has closed-over values as its first inputs."""
    jaxpr = jax.make_jaxpr(lambda scale, shift, x: (scale * x, shift))(2.0, 1.0, 3.0)
    graph = Graph(jaxpr, arguments=1)
    assert len(graph.inputs) == 1
    assert [graph.dependencies[output] for output in graph.outputs] == [1, 0]
    assert graph.outputs[1] in graph.constants
    assert len(Graph(jaxpr, arguments=9).inputs) == len(Graph(jaxpr.jaxpr).inputs) == 3


def nested(levels):
    """Calls a function twice, which calls one twice, and so on."""
    function = lambda carry, x: carry + x
    for _ in range(levels):
        function = jax.jit(lambda c, x, inner=function: inner(inner(c, x), x))
    return function


def test_calls_within_calls_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(graph, "_MOST_VALUES", 1_000)
    wide, narrow = jnp.ones(3), jnp.ones(3, jnp.bfloat16)
    values = Graph(jax.make_jaxpr(nested(24))(narrow, wide))
    assert values.dependencies[values.outputs[0]] == 0b11
    assert len(values.avals) < 1_200


def test_two_calls_stay_apart():
    negative = jax.jit(lambda x: -x)
    graph = Graph(jax.make_jaxpr(lambda x, y: (negative(x), negative(y)))(1.0, 2.0))
    assert [graph.dependencies[output] for output in graph.outputs] == [0b01, 0b10]


def test_a_line_deep_in_calls_is_found():
    carry, x = jnp.ones(3, jnp.bfloat16), jnp.ones(3)
    (drift,) = audit(nested(6), carry, x).drifts
    assert drift.origin.code == "function = lambda carry, x: carry + x"
    assert drift.cause is None
