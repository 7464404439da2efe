"""What dtypeguard knows of the insides of other libraries holds in this release of them."""

import ast
import importlib
import importlib.metadata
import importlib.util
import pathlib
import re
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from packaging.specifiers import SpecifierSet

import dtypeguard
from dtypeguard import explain
from dtypeguard._leaves import internals
from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard._leaves.internals import ForeignNames
from dtypeguard._numbers import primitives
from dtypeguard._numbers.nodes import REDUCE_PRECISION
from dtypeguard._numbers.probes import _VALUES
from dtypeguard._program import jaxprs
from dtypeguard._program.program import JAXPRS_OF_FORM
from dtypeguard._source.files import is_users
from dtypeguard._tracebacks.written import Written
from tests.support.helpers import need

pytestmark = pytest.mark.third_party
if not HAS_NUMBERS:
    pytest.skip("what reads most of them asks for JAX 0.8", allow_module_level=True)

ROOMS = pathlib.Path(dtypeguard.__file__).parent
X = jnp.ones(4)


_SPEC = re.compile(r"(\w+)(.*)")


def held(names):
    """Those of some names that this release is said to have."""
    for name in names:
        library, releases = _SPEC.match(names.releases.get(name, "jax")).groups()
        installed = importlib.metadata.version(library)
        if SpecifierSet(releases).contains(installed, prereleases=True):
            yield name


def equations(jaxpr):
    for each in jaxpr.eqns:
        yield each
        for inside in jaxprs.jaxprs_in(each.params):
            yield from equations(jaxprs.open_jaxpr(inside))


def sharded(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    split = jax.sharding.PartitionSpec("i")
    return jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=split, out_specs=split)(x)


def program(x):
    """All primitives with parameters that the rooms read."""
    lax.cond(x[0] > 0, lambda: 1, lambda: 2)
    lax.scan(lambda carry, x: (carry, x), 0.0, x)
    lax.while_loop(lambda n: n < 3.0, lambda n: n + 1, 0.0)
    lax.custom_root(lambda y: y - 2, 0.0, lambda f, x: 2.0, lambda g, y: y / g(1.0))
    lax.custom_linear_solve(lambda v: 2 * v, x, lambda matvec, b: b / 2)
    lax.conv(jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 2, 2)), (1, 1), "SAME")
    _with_rule(jax.nn.relu(x))
    x.at[0].set(jnp.cumsum(x)[0] + jnp.sum(x))
    return jax.jit(jnp.sin)(sharded(jnp.sort(lax.top_k(x, 2)[0]))) + _arrays(x)


_with_rule = jax.custom_vjp(lambda x: 2 * x)
_with_rule.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


def _arrays(x):
    """Casts, promotions and arrays that JAX fills."""
    n = len(x)
    y = jnp.asarray(x, "float16").astype("bfloat16") + jnp.float32(x)
    y = lax.convert_element_type(y, "float32") + jnp.zeros_like(x) + x**3
    y = y + jnp.empty(n) + jnp.full(n, 1.0) + lax.iota("float32", n)
    return sum(
        (y @ jnp.eye(n), jnp.zeros(n), jnp.ones(n), jnp.tri(n)[0], jax.nn.one_hot(1, n))
    )[:2]


# The parameters of primitives.
PARAMETERS = {
    "cond": ForeignNames("branches"),
    "scan": ForeignNames("jaxpr length reverse unroll"),
    "while": ForeignNames("body_jaxpr cond_jaxpr"),
    "jit": ForeignNames("jaxpr name donated_invars"),
    "custom_jvp_call": ForeignNames("call_jaxpr"),
    "custom_vjp_call": ForeignNames("call_jaxpr out_trees bwd"),
    "custom_lin": ForeignNames("num_res"),
    "shard_map": ForeignNames(
        "jaxpr mesh in_specs out_specs check_vma manual_axes@jax<0.10 "
        "newly_manual_axes@jax>=0.10"
    ),
    "custom_linear_solve": ForeignNames("const_lengths jaxprs"),
    "call_hi_primitive": ForeignNames("_prim@jax>=0.12"),
    "scatter": ForeignNames("update_jaxpr"),
    "sort": ForeignNames("dimension is_stable num_keys"),
    "top_k": ForeignNames("axis@jax>=0.10"),
    "convert_element_type": ForeignNames("new_dtype weak_type"),
    "iota": ForeignNames("dtype"),
    "reduce_sum": ForeignNames("axes"),
    "cumsum": ForeignNames("axis reverse"),
    "dot_general": ForeignNames("dimension_numbers precision preferred_element_type"),
    "conv_general_dilated": ForeignNames(
        "dimension_numbers lhs_dilation precision window_strides"
    ),
    "integer_pow": ForeignNames("y"),
}
# Variables of the frames of functions that call one of the user's.
VARIABLES = {
    "jax.jit": ("args kwargs", lambda of, f: of(f)(X)),
    "jax.grad": ("fun args has_aux holomorphic argnums", lambda of, f: of(f)(X)),
    "jax.lax.scan": ("f init_flat xs_flat", lambda of, f: of(f, 0.0, X)),
    "jax.lax.while_loop": ("cond_fun body_fun", lambda of, f: of(f, f, 0.0)),
    "jax.lax.cond": ("operands", lambda of, f: of(X[0] > 0, f, f, X)),
    "equinox.internal.while_loop": (
        "body_fun val buffer_val buffer_val2",
        lambda of, f: of(lambda x: x < 3, jnp.float16, 0.0, kind="lax"),
    ),
    "flax.nnx.while_loop": ("body_fun init_val", lambda of, f: of(f, f, 0.0)),
    "flax.nnx.scan": ("f args", lambda of, f: of(f)(0.0, X)),
    "flax.nnx.cond": ("true_fun operands", lambda of, f: of(X[0] > 0, f, f, X)),
}

PROGRAM = [*equations(jax.make_jaxpr(program)(X).jaxpr)]


@pytest.mark.parametrize("primitive", PARAMETERS)
def test_parameters(primitive):
    found = [set(each.params) for each in PROGRAM if each.primitive.name == primitive]
    names = set(held(PARAMETERS[primitive]))
    assert all(names <= each for each in found)
    is_held = primitive != "custom_lin"  # which JAX keeps inside of a gradient
    assert found or not names or not is_held


def test_the_rooms_read_no_other_parameter():
    read, known = set(), {*frozenset.union(*PARAMETERS.values())}
    for file in ROOMS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Subscript(of, ast.Constant(str(name))):
                    read |= {name} if _is_of_parameters(of) else set()
                case ast.Call(ast.Attribute(of, "get"), [ast.Constant(name), *_]):
                    read |= {name} if _is_of_parameters(of) else set()
                case ast.Compare(ast.Constant(name), [ast.In()], [of]):
                    read |= {name} if _is_of_parameters(of) else set()
    assert {"branches", "_prim", "newly_manual_axes"} < read
    assert read <= known
    assert known > internals.DTYPES


def _is_of_parameters(node):
    text = ast.unparse(node)
    return text == "params" or text.endswith(".params")


def test_primitives():
    from jax.extend.core import Primitive

    for name in ("equinox.internal", "jax.lax.linalg"):
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    things = (each for x in [*sys.modules.values()] for each in [*vars(x).values()])
    known = {each.name for each in things if isinstance(each, Primitive)}
    said = {*_VALUES, REDUCE_PRECISION, *JAXPRS_OF_FORM, *held(internals.REPEATING)}
    for module in jaxprs, primitives:
        tables = (each for each in vars(module).values() if isinstance(each, ForeignNames))
        said.update(*map(held, tables))
    said |= {each for each in PARAMETERS if [*held(PARAMETERS[each])]}
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
        jax.make_jaxpr(program)(x)
        jax.pmap(jnp.sin)(x[:1])
    finally:
        sys.setprofile(before)
    known = internals.CASTS, internals.COMPILING
    assert seen.issuperset(frozenset.union(*known))
    assert seen.issuperset(held(internals.MAPPING))
    for names in internals.TRACING, internals.PROMOTING:
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


def test_what_a_name_stack_holds():
    def run(x):
        return jnp.sum(jnp.sin(jnp.sin(x)))

    jaxpr = jax.make_jaxpr(jax.grad(jax.checkpoint(run)))(X).jaxpr
    (repeating,) = [x for x in jaxpr.eqns if x.primitive.name in internals.REPEATING]
    inside = jaxprs.open_jaxpr(repeating.params["jaxpr"]).eqns
    assert {Written((each, repeating)).is_backward for each in inside} == {False, True}
    (scope, *_) = inside[0].source_info.name_stack.stack
    assert scope.name == internals.REPEATED
