"""A script is recorded as its lines run, and runs as it would otherwise."""

import concurrent.futures
import contextlib
import gc
import importlib.util
import io
import itertools
import pdb
import re
import sys
import textwrap
import weakref

import pytest

from dtypeguard._lines.monitored import RECORD, Monitored

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring"),
]
NUMBERS = itertools.count()


@pytest.fixture
def program(tmp_path):
    """Writes a module of a user's, records it, and tells the lines with a mark."""

    class Program:
        def __init__(self, text):
            self.path = tmp_path / f"recorded_{next(NUMBERS)}.py"
            self.path.write_text(textwrap.dedent(text))
            spec = importlib.util.spec_from_file_location(self.path.stem, self.path)
            self.module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.module)

        def marked(self, mark):
            lines = self.path.read_text().splitlines()
            (number,) = [n for n, x in enumerate(lines, 1) if x.endswith(f"# {mark}")]
            return number

        def steps(self, value):
            made = RECORD.recorder.made(value)
            places = [step.through[0] for step in made.steps()] if made else []
            return [place.line for place in places if place.file == str(self.path)]

    with RECORD as Program.monitored:
        yield Program
    assert all(sys.monitoring.get_tool(tool) is None for tool in (3, 4))


VALUES = """
    import functools, jax, jax.numpy as jnp, numpy as np
    from jax import lax
    BF16 = jnp.bfloat16

    def reset(key):
        position = jnp.zeros(3, BF16)  # vmapped
        return {"position": position, "time": jnp.zeros((), jnp.float32)}

    vmapped = jax.vmap(reset)(jnp.arange(4))["position"]

    @jax.jit
    def initialized():
        weights = jnp.ones(3, BF16)  # jitted
        return weights * 2, jnp.zeros(())

    jitted, loss = initialized()

    def body(carry, x):
        carry = carry + 1
        seen = carry.astype(BF16)  # scanned
        return carry, seen

    last, scanned = lax.scan(body, jnp.float32(0), None, 4)

    class Loader:
        def __init__(self):
            self.rows = np.ones((4, 3), np.float32)  # field

        def batch(self):
            return self.rows

    field = Loader().batch()
    scale = jnp.float32(2)  # promoted
    narrow = jnp.ones(3, BF16)
    promoted = narrow * scale  # the promotion
    promoted = promoted + 1

    def batches():
        rows = np.ones((4, 3))
        while True:
            yield {"x": rows.astype(np.float32), "y": rows}  # key

    key = next(batches())["x"]

    def zeros(param):
        return jnp.zeros_like(param, jnp.bfloat16)  # helper

    params = {name: jnp.ones(3) for name in "abch"}
    states = jax.tree.map(lambda p: (zeros(p), zeros(p)), params)
    helper = states["h"][1]

    def train(step):
        model = Loader()
        model.state = jnp.ones(3)
        for n in range(9):
            if n == 7:
                model.state = model.state.astype(jnp.bfloat16)  # often
            model.state = step(model.state)
        return model

    often = train(jax.jit(lambda x: x * 2)).state

    model = Loader()
    model.params = {"a": {"k": jnp.ones((2, 3), jnp.bfloat16)}}  # of_params
    model.mu = {"mu": {"a": {"k": jnp.ones((2, 3), jnp.bfloat16)}}}  # of_state
    first = jax.device_get(jax.tree.map(lambda x: x[0], (model.params, model.mu)))
    of_params, of_state = first[0]["a"]["k"], first[1]["mu"]["a"]["k"]

    CONFIG = {"weights": {"ics": 1, "res": 1.5}}  # of_number

    def create(config):
        state = {"weights": dict(config["weights"]), "key": 7}
        return jax.tree.map(jnp.asarray, state)

    of_number = create(CONFIG)["weights"]["res"]

    settings = dict(tau=np.float32(0.5), sizes={"top": np.zeros(4)})  # top
    top = settings["sizes"]["top"]
    grid = np.stack([np.linspace(0, 3, 4), np.zeros(4)], axis=-1)  # view

    class Walls:
        def __init__(self, rows):
            self.indices = rows

        def shifted(self):
            moved = np.array(self.indices)
            moved[0] += 1
            return tuple(moved)

    view = Walls(tuple(grid.T)).shifted()[0]
"""
NAMES = re.findall(r"  # (\w+)$", VALUES, re.MULTILINE)


def test_the_lines_that_made_values(program):
    values = program(VALUES)
    found = {name: values.steps(getattr(values.module, name))[-1] for name in NAMES}
    assert found == {name: values.marked(name) for name in NAMES}
    made = RECORD.recorder.made(values.module.promoted)
    (promotion,) = [step for step in made.steps() if step.is_promoted]
    assert promotion.through[0].line == values.marked("the promotion")


NUMBERS_OF = """
    import dataclasses

    total = 128
    size = total / 3  # size

    @dataclasses.dataclass
    class Model:
        width: float = 8

    @dataclasses.dataclass
    class Config:
        seed: int = 0
        model: Model = dataclasses.field(
            default_factory=lambda: Model(width=64 / 3)  # width
        )

    def main(config):
        width, seed = config.model.width, config.seed
        return width, [seed]

    WIDTH, KEY = main(Config())
    settings = dict(depth=3, sizes=(32 / 3, 3))  # hidden
    for hidden in settings["sizes"]:
        last = hidden
"""


def test_the_lines_that_gave_python_numbers(program):
    values = program(NUMBERS_OF)
    for name, number in (("size", 128 / 3), ("width", 64 / 3), ("hidden", 32 / 3)):
        made = RECORD.recorder.number(name, number)
        assert made.through[0].line == values.marked(name)
    assert RECORD.recorder.number("size", 7.5) is None


def test_what_a_traced_function_is_given_is_linked_to_what_it_stands_for(program):
    values = program(
        """
        import jax, jax.numpy as jnp
        kept = []

        def step(state, x):
            kept.append((state["w"], x))
            return state["w"] * x

        def train(step):
            state = {"w": jnp.ones(3, jnp.bfloat16)}  # given
            xs = jnp.ones((2, 3))  # scanned
            return step(state, xs)

        train(jax.jit(jax.vmap(step, (None, 0))))
        train(lambda s, xs: jax.lax.scan(lambda c, x: (c, step(c, x)), s, xs))
        """
    )
    for state, x in values.module.kept:
        assert values.steps(state)[-1] == values.marked("given")
        assert values.steps(x)[-1] == values.marked("scanned")
    values.module.kept.clear()


def test_no_array_is_kept_alive(program):
    values = program(
        """
        import jax.numpy as jnp, numpy as np, jax

        class Holder:
            pass

        def make():
            holder = Holder()
            holder.array = jnp.ones(3) + 1
            return holder

        def use(array):
            doubled = jax.jit(lambda x: x * 2)(array)
            host = np.asarray(doubled) + 1
            return doubled, host

        def drop():
            first = jnp.ones(4)
            seen = REF(first)
            del first
            return seen() is None
        """
    )
    values.module.REF = weakref.ref
    made = values.module.make().array
    references = [weakref.ref(x) for x in (made, *values.module.use(made))]
    del made
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert values.module.drop()


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


def test_another_tool_sees_each_line_as_often_as_without(program):
    seen = []
    for recorded in (contextlib.nullcontext(), RECORD):
        with recorded:
            module = program(LINES).module
            functions = module.helper, module.main
            seen.append(lines_of_another_tool(functions, module.main))
    assert seen[0] == seen[1]
    assert {number for name, number in seen[0] if name == "main"} == set(range(9, 14))


def test_pdb_changes_a_variable(program):
    values = program("def change(x):\n    y = x + 1\n    return y\n")
    commands = io.StringIO("next\n!y = 10\ncontinue\n")
    debugger = pdb.Pdb(stdin=commands, stdout=io.StringIO(), nosigint=True, readrc=False)
    assert debugger.runcall(values.module.change, 1) == 10


FUNCTION = """
    import jax.numpy as jnp

    def f():
        y = jnp.ones(3)
        return y
"""


def test_it_begins_again_after_it_has_ended(program):
    values = program(FUNCTION)
    monitored = Monitored()
    for _ in range(5):
        with monitored, monitored:
            value = values.module.f()
            made = monitored.recorder.made(value)
            assert made.through[0].line == 5


def test_a_line_that_is_not_looked_at_again_is_not_named_for_another(program):
    program = program(
        """
        import jax.numpy as jnp

        def run():
            x = jnp.ones(3)
            for n in range(30):
                x = x.astype(jnp.bfloat16)
                if n == 20:
                    break
                x = x.astype(jnp.float32)  # not
            after = jnp.ones(3)  # after
            return x, after

        x, after = run()
        """
    )
    assert program.marked("not") not in program.steps(program.module.x)
    assert program.steps(program.module.after) == [program.marked("after")]


def test_each_thread_is_recorded(program):
    values = program(FUNCTION)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = [each.result() for each in [pool.submit(values.module.f) for _ in range(3)]]
    assert [values.steps(value) for value in found] == [[5]] * 3


def test_where_others_have_all_places_nothing_is_recorded():
    for tool in (3, 4):
        sys.monitoring.use_tool_id(tool, "other")
    try:
        with Monitored():
            assert sys.monitoring.get_tool(4) == "other"
    finally:
        for tool in (3, 4):
            sys.monitoring.free_tool_id(tool)


BEFORE = """
    import jax.numpy as jnp

    given = jnp.ones(3)

    def later(recording):
        with recording:
            held = dict(a=given, b=jnp.zeros(3))  # made here
        return held
"""


def test_an_array_that_was_made_before_has_no_line(program):
    values = program(BEFORE)
    recording = Monitored()
    held = values.module.later(recording)
    assert recording.recorder.made(held["a"]).why().is_earlier
    (made,) = recording.recorder.made(held["b"]).steps()
    assert made.through[0].line == values.marked("made here")


TABLE = """
    import jax, jax.numpy as jnp
    kept = []

    class Table(dict):
        pass

    jax.tree_util.register_pytree_node(
        Table,
        lambda table: (tuple(table.values()), tuple(table)),
        lambda keys, values: Table(zip(keys, values)),
    )

    @jax.jit
    def step(table, x):
        kept.append(table["b"])
        return x

    b = jnp.ones(3)  # of b
    a = jnp.zeros(3)
    step(Table(b=b, a=a), jnp.ones(3))
"""


def test_a_node_of_the_users_own_keeps_the_order_of_its_leaves(program):
    """JAX sorts the keys of a dict; a function of the user's makes a node of tracers."""
    values = program(TABLE)
    assert values.steps(values.module.kept.pop())[-1] == values.marked("of b")
