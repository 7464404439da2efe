"""Type errors name the lines; all other errors pass, and nothing stays changed."""

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import pathlib
import re
import threading
import traceback
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import scan  # bound before any context is entered

from dtypeguard import explain
from tests.support.advice import line as line_of, note_on, notes, raised
from tests.support.helpers import need

SCALE = np.float32(2)
BF16, XS = jnp.zeros(3, jnp.bfloat16), jnp.ones(3)
JAX = str(pathlib.Path(jax.__file__).parent)

pytestmark = pytest.mark.third_party

line = functools.partial(line_of, __file__)


def fail():
    body = lambda carry, _: ({"w": carry["w"] * SCALE}, None)
    return scan(body, {"w": BF16}, None, 3)


def test_the_error_is_the_one_that_jax_raised():
    bare, kept = raised(fail, contextlib.nullcontext), []

    def keep():
        try:
            fail()
        except TypeError as error:
            kept.append(error)
            raise

    error = raised(keep)
    assert error is kept[0]
    assert (type(error), str(error), error.args) == (TypeError, str(bare), bare.args)
    assert not [f for f in frames(error) if f.filename.startswith(JAX)]
    assert frames(error)[-1].name == "fail"


def frames(error):
    return traceback.extract_tb(error.__traceback__)


@pytest.fixture
def unfiltered():
    """JAX's frames stay in all tracebacks."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


def test_jax_keeps_its_frames_where_the_user_wants_them(unfiltered):
    error = raised(fail)
    assert notes(error)
    assert any(frame.filename.startswith(JAX) for frame in frames(error))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_is_no_error_passes(error):
    with pytest.raises(type(error)) as info, explain():
        raise error
    assert info.value is error
    assert not hasattr(error, "__notes__")


def test_nothing_is_patched():
    names, compiled = ("scan", "while_loop", "fori_loop", "cond", "switch"), []
    functions = [getattr(jax.lax, name) for name in names]
    add = jax.jit(lambda x: compiled.append(x) or x + 1)
    add(1.0)
    with explain():
        assert [getattr(jax.lax, name) for name in names] == functions
        add(1.0)
    add(1.0)
    assert len(compiled) == 1


@pytest.fixture(autouse=True)
def _is_as_before():
    before = jax.config.jax_traceback_filtering
    yield
    assert jax.config.jax_traceback_filtering == before


def test_nested_contexts_explain_once():
    error = raised(explain(fail))
    assert len(notes(error)) == 1

    def again():
        raise error

    assert raised(again) is error
    assert len(notes(error)) == 1


def test_causes_and_members_of_a_group():
    def call():
        cause = raised(fail, contextlib.nullcontext)
        raise ExceptionGroup("two", [cause, ValueError("other")]) from cause

    error = raised(call)
    assert [len(notes(each)) for each in (error, *error.exceptions)] == [0, 1, 0]
    assert len(notes(error.__cause__)) == 1


def test_threads_and_contexts_that_end_in_another_order():
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with explain():
            entered.set()
            leave.wait(300)

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        holding = pool.submit(hold)
        entered.wait(300)
        errors = list(pool.map(raised, [fail] * 4))
        assert all(len(notes(error)) == 1 for error in errors)
        assert jax.config.jax_traceback_filtering == "off"
        leave.set()
        holding.result()


def test_generators_and_coroutines():
    async def run():
        with explain():
            await asyncio.sleep(0)
            fail()

    async def both():
        return await asyncio.gather(run(), run(), return_exceptions=True)

    def generate():
        with explain():
            yield 1

    generator = generate()
    assert next(generator) == 1
    generator.close()
    assert [len(notes(error)) for error in asyncio.run(both())] == [1, 1]


@pytest.mark.parametrize("decorator", [explain, explain()], ids=["bare", "called"])
def test_decorator(decorator):
    @decorator
    def train(value):
        return fail() if value is None else value

    assert (train(3), train.__name__) == (3, "train")
    assert len(notes(raised(lambda: train(None), context=contextlib.nullcontext))) == 1


def generator():
    yield


async def coroutine():
    pass


@pytest.mark.parametrize("function", [generator, coroutine])
def test_bodies_that_run_after_the_call_are_refused(function):
    with pytest.raises(TypeError, match="inside of a body that runs only after"):
        explain(function)


def test_what_is_not_known_costs_the_note_and_not_the_error(monkeypatch):
    monkeypatch.delattr("dtypeguard._explain.control_flow.control_flow")
    error = raised(fail)
    assert (type(error), notes(error)) == (TypeError, [])


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.jit(f),
        lambda f: lambda x: jax.grad(lambda x: f(x).astype(jnp.float32).sum())(x),
        lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x])),
        lambda f: jax.jit(jax.vmap(jax.checkpoint(f), axis_size=2, in_axes=None)),
        lambda f: lambda x: jax.eval_shape(f, x),
        lambda f: lambda x: scan(lambda c, _: (f(c), None), x, None, 2),
    ],
    ids=["jit", "grad", "vmap", "jit-vmap-checkpoint", "eval_shape", "scan"],
)
def test_inside_transformations(transform):
    def train(x):
        scale = jnp.exp(x).astype(jnp.float32)  # what is closed over is traced as well

        def body(average, _):
            return average * scale, None  # promotion: closure

        return scan(body, x, None, 3)[0]

    note = note_on(lambda: transform(train)(BF16))
    assert "  average  bfloat16[3] -> float32[3]\n" in note
    assert line("promotion: closure") in note


def doubled(carry, _):
    return jax.tree.map(lambda x: x * SCALE, carry), None  # the promotion


def test_a_trace_is_let_go_after_its_note():
    gc.freeze()  # what is there already is not looked at again
    traces = []

    def index(x):
        traces.append(weakref.ref(x._trace))
        return jnp.arange(3)[jax.nn.relu(x)]  # whose rule holds the trace

    assert "  float32[3]\n" in note_on(lambda: jax.jit(index)(XS))
    gc.collect()
    assert traces[0]() is None


def test_many_leaves_of_one_cause_share_a_row():
    init = {f"w{n:02}": jnp.ones(n == 7 or 3, jnp.bfloat16) for n in range(30)}
    train = lambda: scan(doubled, {"a": init, "b": init}, None, 3)
    error = raised(train)
    lines = notes(error)[0].splitlines()
    assert len(lines) <= 12
    assert lines[1].startswith("  60 leaves of carry['a'] and carry['b']  bfloat16")
    rows = error.dtypeguard_rows
    assert [row.path for row in rows] == [
        f"carry['{x}']['{y}']" for x in "ab" for y in init
    ]
    assert {row.types[1] for row in rows} == {"float32[3]", "float32[1]"}
    assert all("the promotion" in row.origin.code for row in rows)
    (whole,) = notes(raised(train, context=lambda: explain(all=True)))
    assert len(re.findall(r"'w\d+'\] +bfloat16\[\d\] -> float32", whole)) == 60


def test_a_note_lists_five_causes():
    def body(carry, _):
        a, b, c, d, e, f, *rest = carry
        a = a * SCALE
        b = b * SCALE
        c = c * SCALE
        d = d * SCALE
        e = e * SCALE
        f = f * SCALE
        return (a, b, c, d, e, f, *(x * SCALE for x in rest)), None

    error = raised(lambda: scan(body, (BF16,) * 26, None, 3))
    (note,) = notes(error)
    assert len(re.findall(r"\n  carry\[\d\] +bfloat16\[3\] -> float32\[3\]", note)) == 5
    assert "\n  and 2 more causes\n" in note
    assert len(error.dtypeguard_rows) == 26


def test_the_condition_of_a_loop_is_not_taken_for_its_body():
    body = lambda x: x * SCALE  # promotion: body
    note = note_on(lambda: jax.lax.while_loop(lambda x: x < 3, body, BF16[0]))
    assert "\n  x  bfloat16[] -> float32[]\n" in note
    assert line("promotion: body") in note


@pytest.mark.parametrize("kind", ["checkpointed", "lax"])
def test_a_loop_of_equinox_that_closes_over_what_is_gone(kind):
    eqxi = need("equinox.internal")

    def train(scale):
        body = lambda carry, _: ({"w": carry["w"] * scale}, None)
        return eqxi.scan(body, {"w": BF16}, None, 3, kind=kind)

    note = note_on(lambda: jax.vmap(train)(jnp.ones(2, jnp.float32)))
    assert re.search(r"\['w'\]  bfloat16\[3\] -> float32\[3\]", note)
