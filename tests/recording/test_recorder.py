"""A script is recorded as its lines run, and runs as it would otherwise."""

import concurrent.futures
import contextlib
import gc
import io
import pdb
import sys
import textwrap
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtypeguard import audit_precision, explain
from tests.support.advice import note_on, raised
from tests.support.helpers import needs_record

pytestmark = [pytest.mark.third_party, needs_record]


@pytest.fixture
def run(tmp_path):
    """Runs a script of the user's; gives what it has, and the lines of its marks."""

    def run_script(text):
        path, text = tmp_path / "recorded.py", textwrap.dedent(text)
        path.write_text(text)
        exec(compile(text, str(path), "exec"), names := {"__name__": "recorded"})
        lines = enumerate(text.splitlines(), 1)
        marks = {line.partition("  # ")[2]: number for number, line in lines}
        return types.SimpleNamespace(**names), marks

    return run_script


@pytest.fixture
def recorded(run):
    """The same, recorded."""
    with explain():
        yield run
    assert all(sys.monitoring.get_tool(tool) is None for tool in (3, 4))


def refused(value):
    """The error on an operand that is wider than the other one."""
    narrow = jnp.zeros(np.shape(value), jnp.bfloat16)
    return raised(lambda: jax.lax.add(narrow, value))


def maker(value):
    """The line that a note goes back to for an operand."""
    rows = [x for x in refused(value).dtypeguard_rows if x.path.endswith("value")]
    (line,) = [row.cause or row.origin for row in rows]
    return line and line.users.line


VALUES = """
    import jax, jax.numpy as jnp, numpy as np
    BF16, F32 = jnp.bfloat16, jnp.float32

    def reset(key):
        position = jnp.zeros(3, F32)  # vmapped
        return {"position": position, "time": jnp.zeros((), BF16)}

    vmapped = jax.vmap(reset)(jnp.arange(4))["position"]

    @jax.jit
    def initialized():
        weights = jnp.ones(3, F32)  # jitted
        return weights * 2, jnp.zeros((), BF16)

    jitted, loss = initialized()

    def body(carry, x):
        carry = carry + 1
        seen = carry.astype(F32)  # scanned
        return carry, seen

    last, scanned = jax.lax.scan(body, BF16(0), None, 4)

    class Loader:
        def __init__(self):
            self.rows = np.ones((4, 3), np.float32)  # field

        def batch(self):
            return self.rows

    field = Loader().batch()

    def batches():
        rows = np.ones((4, 3), np.float16)
        while True:
            yield {"x": rows.astype(np.float32), "y": rows}  # key

    key = next(batches())["x"]

    def zeros(param):
        return jnp.zeros_like(param, F32)  # helper

    params = {name: jnp.ones(3, BF16) for name in "abch"}
    helper = jax.tree.map(lambda p: (zeros(p), zeros(p)), params)["h"][1]

    def train(step):
        model = Loader()
        model.state = jnp.ones(3, BF16)
        for n in range(9):
            if n == 7:
                model.state = model.state.astype(F32)  # often
            model.state = step(model.state)
        return model

    often = train(jax.jit(lambda x: x * 2)).state

    CONFIG = {"weights": {"ics": 1, "res": np.float32(1.5)}}  # of_config

    def create(config):
        state = {"weights": dict(config["weights"]), "key": 7}
        return jax.tree.map(jnp.asarray, state)

    of_config = create(CONFIG)["weights"]["res"]

    grid = np.stack([np.linspace(0, 3, 4), np.zeros(4)], axis=-1)  # grid

    whole = np.eye(4, dtype=np.float32)  # beside_a_dtype

    def model():
        return jnp.asarray(whole), 0.1 * jnp.eye(2, dtype=jnp.bfloat16)

    beside_a_dtype, noise = model()

    async def make():
        return np.float32(2)  # coroutine

    try:
        make().send(None)
    except StopIteration as stop:
        coroutine = stop.value
"""


def test_the_lines_that_made_values(recorded):
    module, marks = recorded(VALUES)
    names = [name for name in marks if name]
    assert {name: maker(getattr(module, name)) for name in names} == {
        name: marks[name] for name in names
    }


NUMBERS = """
    import dataclasses

    @dataclasses.dataclass
    class Model:
        width: float = 8

    @dataclasses.dataclass
    class Config:
        model: Model = dataclasses.field(
            default_factory=lambda: Model(width=64 / 3)  # width
        )

    width = Config().model.width
    size = dict(depth=3, sizes=(32 / 3, 3))["sizes"][0]  # size
"""


def test_the_lines_that_gave_python_numbers(recorded):
    module, marks = recorded(NUMBERS)
    for name, call in {
        "width": lambda: jnp.zeros(module.width),
        "size": lambda: jnp.zeros(module.size),
    }.items():
        (row,) = raised(call).dtypeguard_rows
        assert row.origin.users.line == marks[name]


def test_what_a_traced_function_is_given_is_linked_to_what_it_stands_for(recorded):
    module, marks = recorded(
        """
        import jax, jax.numpy as jnp

        def step(state, x):
            return jax.lax.fori_loop(0, 2, lambda n, w: w * x, state["w"])

        def train(step):
            state = {"w": jnp.ones(3, jnp.bfloat16)}  # given
            xs = jnp.ones((2, 3))  # scanned
            return step(state, xs)

        mapped = lambda: train(jax.jit(jax.vmap(step, (None, 0))))
        turn = lambda state, x: (state, step(state, x))
        looped = lambda: train(lambda state, xs: jax.lax.scan(turn, state, xs))
        """
    )
    for call in module.mapped, module.looped:
        note = note_on(call)
        assert f"recorded.py:{marks['given']} " in note
        assert f"recorded.py:{marks['scanned']} " in note


def test_no_array_is_kept_alive(recorded):
    gc.freeze()  # what is there already is not looked at again
    module, _ = recorded(
        """
        import jax, jax.numpy as jnp, numpy as np

        def make(ref):
            array = jnp.ones(3) + 1
            doubled = jax.jit(lambda x: x * 2)(array)
            host = np.asarray(doubled) + 1
            return ref(array), ref(doubled), ref(host)

        def drop(ref):
            first = jnp.ones(4)
            seen = ref(first)
            del first
            return seen() is None
        """
    )
    references = module.make(weakref.ref)
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert module.drop(weakref.ref)


LINES = """
    import jax, jax.numpy as jnp

    def helper(x):
        x = x + 1
        return x * 2

    def main():
        for i in range(6):
            x = jax.jit(lambda y, i=i: helper(y) + i)(jnp.ones(3))
            if i == 4:
                x = helper(x)
        return x
"""


def lines_of_another_tool(functions, call):
    """What a coverage tool sees, which switches off each line that it has seen."""
    monitoring, seen = sys.monitoring, []

    def on_line(code, line):
        seen.append((code.co_name, line))
        return monitoring.DISABLE

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "coverage")
    try:
        monitoring.register_callback(1, monitoring.events.LINE, on_line)
        for function in functions:
            monitoring.set_local_events(1, function.__code__, monitoring.events.LINE)
        call()
    finally:
        monitoring.register_callback(1, monitoring.events.LINE, None)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)
    return seen


def test_another_tool_sees_each_line_as_often_as_without(run):
    seen = []
    for context in (contextlib.nullcontext(), explain()):
        with context:
            module, _ = run(LINES)
            seen.append(lines_of_another_tool((module.helper, module.main), module.main))
    assert seen[0] == seen[1]
    assert {number for name, number in seen[0] if name == "main"} == set(range(9, 14))


def test_where_others_have_all_places_nothing_is_recorded(run):
    with contextlib.ExitStack() as places:
        for tool in (3, 4):
            sys.monitoring.use_tool_id(tool, "other")
            places.callback(sys.monitoring.free_tool_id, tool)
        with explain():
            module, marks = run(FUNCTION)
            assert sys.monitoring.get_tool(4) == "other"
            assert maker(module.f()) != marks["made"]


def test_pdb_changes_a_variable(recorded):
    module, _ = recorded("def change(x):\n    y = x + 1\n    return y\n")
    commands = io.StringIO("next\n!y = 10\ncontinue\n")
    debugger = pdb.Pdb(stdin=commands, stdout=io.StringIO(), nosigint=True, readrc=False)
    assert debugger.runcall(module.change, 1) == 10


FUNCTION = """
    import jax.numpy as jnp

    def f():
        y = jnp.ones(3)  # made
        return y
"""


def test_it_begins_again_after_it_has_ended(run):
    module, marks = run(FUNCTION)
    context = explain()
    for _ in range(5):
        with context, context:
            assert maker(module.f()) == marks["made"]


def test_a_thread_ends_the_record_while_another_calls_a_function(run):
    module, _ = run(FUNCTION)
    monitoring = sys.monitoring
    tool = monitoring.OPTIMIZER_ID  # Python calls the tool of the highest number first
    context = explain()

    def end(code, instruction):
        """Runs between the begin of a function and its callback in the record."""
        if code is module.f.__code__:
            thread = threading.Thread(target=context.__exit__, args=(None, None, None))
            thread.start()
            thread.join()

    context.__enter__()
    monitoring.use_tool_id(tool, "other")
    try:
        monitoring.register_callback(tool, monitoring.events.PY_START, end)
        monitoring.set_events(tool, monitoring.events.PY_START)
        assert module.f().shape == (3,)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(tool)
    test_it_begins_again_after_it_has_ended(run)


def test_each_thread_is_recorded(recorded):
    module, marks = recorded(FUNCTION)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = [each.result() for each in [pool.submit(module.f) for _ in range(3)]]
    assert [maker(value) for value in found] == [marks["made"]] * 3


def test_a_line_that_is_not_looked_at_again_is_not_named_for_another(recorded):
    module, marks = recorded(
        """
        import jax.numpy as jnp

        def run():
            x = jnp.ones(3, jnp.bfloat16)
            for n in range(30):
                x = x.astype(jnp.float32)
                if n == 20:
                    break
                x = x.astype(jnp.bfloat16)  # not
            after = jnp.ones(3)  # after
            return x, after

        x, after = run()
        """
    )
    assert maker(module.x) != marks["not"]
    assert maker(module.after) == marks["after"]


def test_an_array_that_was_made_before_has_no_line(run):
    module, marks = run(
        """
        import jax.numpy as jnp

        given = jnp.ones(3)

        def later():
            return dict(a=given, b=jnp.zeros(3))  # made here
        """
    )
    with explain():
        held = module.later()
        assert maker(held["b"]) == marks["made here"]
        assert maker(held["a"]) is None


def test_a_profiler_is_left_alone():
    """An audit of numbers looks at calls as one does, and then only where there is none."""
    for profiler in (lambda *event: None, None):
        sys.setprofile(profiler)
        try:
            audit_precision(lambda x: x * 0.1, jnp.ones(3, jnp.bfloat16))
            assert sys.getprofile() is profiler
        finally:
            sys.setprofile(None)
