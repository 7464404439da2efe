"""What dtypeguard knows of the insides of other libraries holds in this release of them."""

import importlib
import importlib.metadata
import importlib.util
import re
import sys
import traceback

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from packaging.specifiers import SpecifierSet

from dtypeguard import explain
from dtypeguard._leaves import internals
from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard._leaves.internals import ForeignNames
from dtypeguard._numbers import primitives
from dtypeguard._numbers.primitives import REDUCE_PRECISION
from dtypeguard._numbers.probes import _VALUES
from dtypeguard._program import jaxprs, program
from dtypeguard._source.files import is_users
from tests.support.helpers import need

pytestmark = pytest.mark.third_party
if not HAS_NUMBERS:
    pytest.skip("what reads most of them asks for JAX 0.8", allow_module_level=True)

X = jnp.ones(4)


_SPEC = re.compile(r"(\w+)(.*)")


def held(names):
    """Those of some names that this release is said to have."""
    for name in names:
        library, releases = _SPEC.match(names.releases[name] or "jax").groups()
        installed = importlib.metadata.version(library)
        if SpecifierSet(releases).contains(installed, prereleases=True):
            yield name


def _arrays(x):
    """Casts, promotions and arrays that JAX fills."""
    n = len(x)
    y = jnp.asarray(x, "float16").astype("bfloat16") + jnp.float32(x)
    y = lax.convert_element_type(y, "float32") + jnp.zeros_like(x) + x**3
    y = y + jnp.empty(n) + jnp.full(n, 1.0) + lax.iota("float32", n)
    return sum(
        (y @ jnp.eye(n), jnp.zeros(n), jnp.ones(n), jnp.tri(n)[0], jax.nn.one_hot(1, n))
    )[:2]


def of_a_choice(of, f):
    return of(X[0] > 0, f, f, X)


# Variables of the frames of functions that call one of the user's.
VARIABLES = {
    "jax.jit": ("args kwargs", lambda of, f: of(f)(X)),
    "jax.grad": ("fun args has_aux holomorphic argnums", lambda of, f: of(f)(X)),
    "jax.lax.cond": ("operands", of_a_choice),
    "flax.nnx.cond": ("true_fun operands", of_a_choice),
}


def test_primitives():
    from jax.extend.core import Primitive

    for name in ("equinox.internal", "jax.lax.linalg"):
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    things = (each for x in [*sys.modules.values()] for each in [*vars(x).values()])
    known = {each.name for each in things if isinstance(each, Primitive)}
    forms = {*program.LOOPS, program.COND, program.SHARD_MAP, program.SOLVE}
    said = {*_VALUES, *forms, REDUCE_PRECISION}
    for module in jaxprs, primitives:
        tables = (each for each in vars(module).values() if isinstance(each, ForeignNames))
        said.update(*map(held, tables))
    assert said - known == set()


def test_functions_of_jax():
    """Each runs while a program is traced."""
    x = jnp.ones(5)  # JAX has kept no trace for this shape
    seen, before = set(), sys.getprofile()

    def see(frame, event, arg):
        code = frame.f_code
        if event == "call" and not is_users(code.co_filename):
            seen.update([code.co_name, code.co_qualname])

    sys.setprofile(see)
    try:
        jax.grad(jax.jit(lambda x: jnp.sum(jnp.sin(x) + x.astype("float16"))))(x)
        jax.make_jaxpr(_arrays)(x)
        jax.pmap(jnp.sin)(x[:1])
    finally:
        sys.setprofile(before)
    assert seen >= internals.CASTS | internals.COMPILING
    assert seen.issuperset(held(internals.PMAP_WRAPPER))
    for names in internals.TRACING, internals.PROMOTING, internals.OPERATORS:
        assert all(any(part in name for name in seen) for part in held(names))


def test_functions_of_optax():
    opts = optax.adam(0.1), optax.apply_if_finite(optax.sgd(0.1), 1)
    assert {opt.update.__name__ for opt in opts} == internals.UPDATES


def test_functions_of_libraries():
    need("equinox")
    import equinox

    for library in optax, equinox:
        assert all(hasattr(library, name) for name in internals.ADDING)


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_frames(name):
    expected, call = VARIABLES[name]
    module, _, attribute = name.rpartition(".")

    def raises(*args):
        raise KeyError(name)

    with explain(), pytest.raises((KeyError, TypeError, ValueError)) as caught:
        call(getattr(need(module), attribute), raises)
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    assert {*expected.split()} <= {key for frame in frames[1:] for key in frame.f_locals}
