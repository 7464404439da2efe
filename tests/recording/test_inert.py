"""What watches a script runs nothing of the user's, and changes nothing."""

import pytest

from tests.support.helpers import needs_record, run_python

pytestmark = needs_record

LINEN = """
import jax, jax.numpy as jnp, flax.linen as nn, numpy as np

class Layer(nn.Module):
    width: int = 4
    def setup(self):
        self.kernel = self.param("kernel", nn.initializers.normal(), (self.width,) * 2)
        self.dense = nn.Dense(self.width)
    def __call__(self, carry, _=None):
        return self.dense(carry @ self.kernel), None

split = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
LIFTED = {
    "scan": lambda: nn.scan(Layer, length=3, **split)(),
    "vmap": lambda: nn.vmap(Layer, in_axes=(0, None), **split)(),
    "jit": lambda: nn.jit(Layer)(),
}

class Model(nn.Module):
    lift: str
    @nn.compact
    def __call__(self, x):
        layer = LIFTED[self.lift]()
        return layer(x, None)[0]

for lift in LIFTED:
    x = jnp.arange(8.0).reshape(2, 4)
    params = Model(lift).init(jax.random.key(0), x)
    leaves = [*jax.tree.leaves(params), Model(lift).apply(params, x)]
    print(lift, [np.asarray(leaf).tobytes().hex() for leaf in leaves])
"""

# Everything that Python may ask an object for raises, but for what the script itself does.
TOUCHY = """
import functools
import jax, jax.numpy as jnp

touched = []

def refuses(name):
    def method(self, *args, **kwargs):
        touched.append(name)
        raise RuntimeError(f"asked for {name}")
    return method

NAMES = (
    "__getattribute__ __getattr__ __eq__ __ne__ __lt__ __hash__ __bool__ __len__ __iter__ "
    "__contains__ __getitem__ __repr__ __str__ __format__ __dir__ __index__ __int__ "
    "__float__ __array__ __jax_array__ __instancecheck__ __sizeof__ __reduce_ex__ __next__"
).split()
SPACE = {name: refuses(name) for name in NAMES}
Touchy = type("Touchy", (), {**SPACE, "__call__": lambda self, x: x * 2})
Tuple = type("Tuple", (tuple,), SPACE)
Dict = type("Dict", (dict,), SPACE)
List = type("List", (list,), SPACE)
Key = type("Key", (), {name: SPACE[name] for name in NAMES if name != "__hash__"} | {
    "__hash__": lambda self: 1})

def make():
    touchy = Touchy()
    pair = Tuple((touchy, jnp.ones(3)))
    table = Dict(a=touchy, b=jnp.ones(3))
    rows = List([touchy, jnp.ones(3)])
    keyed = {Key(): jnp.ones(3)}
    bound = functools.partial(touchy, touchy)
    return touchy, pair, table, rows, keyed, bound

def scaled(touchy, x):
    return touchy(x) + jnp.ones(3, jnp.bfloat16)

touchy, pair, table, rows, keyed, bound = make()
for _ in range(3):
    inside = [touchy, pair, table, rows, keyed, bound]
    y = scaled(touchy, jnp.ones(3))
    z = jax.jit(lambda x: scaled(touchy, x))(y)
print(touched)
"""


def output(tmp_path, text, *command):
    script = tmp_path / "script.py"
    script.write_text(text)
    done = run_python(*command, script)
    assert done.returncode == 0, done.stderr
    return done.stdout


RUN = "-m", "dtypeguard", "run"


def test_lifted_linen_modules_with_setup_run_as_without(tmp_path):
    pytest.importorskip("flax")
    assert output(tmp_path, LINEN, *RUN) == output(tmp_path, LINEN)


def test_run_asks_an_object_for_nothing(tmp_path):
    assert output(tmp_path, TOUCHY, *RUN) == "[]\n"


SWAPPED = """
import sys
from dtypeguard._source.inert import variables_of

def all_of(rows):
    for row in rows:
        last = lambda: row
    return [sorted(variables_of(sys._getframe()))[:2] for row in rows]

print(all_of([1]))
"""


def test_a_variable_in_a_cell_and_in_a_comprehension(tmp_path):
    """Python 3.13.0 crashes where it is read while the comprehension runs."""
    assert output(tmp_path, SWAPPED) == "[['last', 'rows']]\n"
