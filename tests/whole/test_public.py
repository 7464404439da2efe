"""Every public name: where it says it comes from, how it pickles, and its examples."""

import doctest
import inspect
import pickle

import jax
import jax.numpy as jnp
import optax
import pytest

import dtypeguard
import dtypeguard.testing
from tests.support.helpers import assert_same

# Examples show third-party optimizers under JAX's own promotion, as their readers have it.
pytestmark = pytest.mark.third_party

PARAMS = {"w": jnp.ones(3, jnp.bfloat16)}


NAMES = {
    f"{module.__name__}.{name}": (module, getattr(module, name))
    for module in (dtypeguard, dtypeguard.testing)
    for name in module.__all__
}


def _documented(name, thing):
    """The thing, and if it is a class what it defines itself, each by its name."""
    yield name, thing
    for attribute, member in vars(thing).items() if inspect.isclass(thing) else ():
        if not attribute.startswith("_") and (inspect.getdoc(member) or "").strip():
            yield f"{name}.{attribute}", member


# By name, since doctest's own finder looks for what says that it belongs to a module.
EXAMPLES = {
    inner: doctest.DocTestParser().get_doctest(
        inspect.getdoc(member), vars(module).copy(), inner, None, None
    )
    for name, (module, thing) in NAMES.items()
    for inner, member in _documented(name, thing)
    if ">>>" in (inspect.getdoc(member) or "")
}


@pytest.mark.parametrize("name", NAMES)
def test_it_says_where_it_is_imported_from_and_is_documented(name):
    module, thing = NAMES[name]
    assert f"{thing.__module__}.{thing.__qualname__}" == name
    assert thing is getattr(module, thing.__name__)
    first, _, rest = inspect.getdoc(thing).partition("\n")
    assert first.endswith(".")
    assert not rest or rest.startswith("\n")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    """Docstring examples print what they say."""
    lines = []
    result = doctest.DocTestRunner().run(EXAMPLES[name], out=lines.append)
    assert result.failed == 0, "".join(lines)
    assert result.attempted > 0


def test_what_is_called_shows_an_example():
    """Functions and `Policy`, that is; a state, an error or a report need not."""
    called = {name for name, (_, thing) in NAMES.items() if inspect.isfunction(thing)}
    assert {*called, "dtypeguard.Policy"} <= set(EXAMPLES)


def _pickled(thing):
    """What comes back from its pickle, in which no class names a room."""
    data = pickle.dumps(thing)
    assert b"dtypeguard" in data
    assert b"dtypeguard._" not in data
    return pickle.loads(data)


def test_pickles_name_no_room():
    for name, (_, thing) in NAMES.items():
        assert not inspect.isclass(thing) or _pickled(thing) is thing, name
    rounding = dtypeguard.Policy(rounding="stochastic")
    for opt in (
        dtypeguard.multi_steps(dtypeguard.prodigy(), 2),
        dtypeguard.fromage(1e-3),
        dtypeguard.guard(optax.adam(1e-3), policy=rounding),
    ):
        state = opt.init(PARAMS)
        assert_same(_pickled(state), state)
    drifting = optax.GradientTransformation(
        lambda params: jnp.zeros((), jnp.int32), lambda u, s, p=None: (u, s + 0.5)
    )
    with pytest.raises(dtypeguard.DtypeDriftError, match="int32") as raised:
        jax.eval_shape(dtypeguard.guard(drifting).update, PARAMS, jnp.int32(0))
    for thing in (
        raised.value,
        dtypeguard.DtypeGuardWarning("said"),
        dtypeguard.Policy(compute_dtype=jnp.float32, state_dtype="params"),
        dtypeguard.audit(dtypeguard.guard(optax.adam(1e-3)), PARAMS),
    ):
        again = _pickled(thing)
        assert (type(again), repr(again)) == (type(thing), repr(thing))
