"""A jaxpr of a kind that is not known costs an audit lines, and never the report."""

import types

import jax
import jax.numpy as jnp
import planted
import pytest
from jax import lax

from dtypeguard import audit
from dtypeguard._program.graph import Graph
from dtypeguard._program.origins import is_explicit, origin_of

pytestmark = pytest.mark.third_party

PARAMS = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}


def told(name):
    """What an audit tells of the leaf that a planted optimizer widens."""
    case = planted.CASES[name]
    report = audit(case.opt, PARAMS, x64=case.x64)
    assert report.error is None
    (drift,) = [drift for drift in report.drifts if drift.path.endswith(".leaf")]
    assert (drift.before, drift.after) == (case.before, case.after)
    return drift


@pytest.mark.parametrize("name", [name for name in planted.CASES if "inside_" in name])
def test_parameters_of_a_primitive_that_have_other_names(name, monkeypatch):
    if planted.CASES[name].where == "updates":
        pytest.skip("it widens an update")
    enter = Graph._enter
    renamed = lambda equation: equation.replace(params={"as_of_tomorrow": equation.params})
    monkeypatch.setattr(
        Graph, "_enter", lambda self, equation, *rest: enter(self, renamed(equation), *rest)
    )
    drift = told(name)
    # Of a loop that is not looked into the line that calls it is told.
    assert drift.origin.file in (planted.__file__, planted.planted_helper.__file__)


def test_a_jaxpr_that_cannot_be_read_at_all(monkeypatch):
    def add(self, *args):
        raise AttributeError("'Jaxpr' object has no attribute 'eqns'")

    monkeypatch.setattr(Graph, "_add", add)
    drift = told("numpy_scalar")
    assert (drift.origin, drift.cause) == (None, None)


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"source_info": None},
        {"source_info": types.SimpleNamespace(traceback=None)},
        {"source_info": types.SimpleNamespace(traceback=types.SimpleNamespace())},
        {"source_info": types.SimpleNamespace(traceback=types.SimpleNamespace(frames=[0]))},
    ],
)
def test_source_information_in_another_form(info):
    equation = types.SimpleNamespace(**info)
    assert origin_of([equation]) is None
    assert not is_explicit([equation])


def test_the_carry_of_a_loop_is_told_by_the_jaxpr_inside():
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
    found = [graph.dependencies(output) for output in graph.outputs]
    assert found == [0b0001, 0b0010, 0b1100]
