"""Which dtypes a program asks for follows from the program, not from its source."""

import functools
import importlib.util
import py_compile

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import Plan, autocast
from tests.support.dtypes import BF16, F32
from tests.support.helpers import needs_numbers, normal
from tests.support.hlo import optimized_hlo

pytestmark = needs_numbers
W, X = normal(0, 8, 8), normal(1, 4, 8)
SOURCE = """
import functools
import jax.numpy as jnp

OPTIONS = {"preferred_element_type": jnp.float32}
product = functools.partial(jnp.dot, preferred_element_type=jnp.float32)

def asked(w, x):
    return jnp.dot(x, w, preferred_element_type=jnp.float32) - jnp.dot(x, w)

def by_options(w, x):
    return jnp.dot(x, w, **OPTIONS) - jnp.dot(x, w)

def by_partial(w, x):
    return product(x, w) - jnp.dot(x, w)

def named_alike(w, x):
    preferred_element_type = w
    return jnp.dot(x, preferred_element_type)

def widened(w, x):
    return x.astype(jnp.float32) @ w.astype(jnp.float32)

def of_another(w, x):
    return x.astype(w.dtype) @ w

class Layer:
    dtype = jnp.float32

    def __call__(self, w, x):
        return x.astype(self.dtype) @ w

of_self = Layer()
"""
FORMS = (
    "asked",
    "by_options",
    "by_partial",
    "named_alike",
    "widened",
    "of_another",
    "of_self",
)


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The same program from a file, from its compiled file alone, and from a text."""
    file = tmp_path_factory.mktemp("forms") / "forms.py"
    file.write_text(SOURCE)
    compiled = py_compile.compile(str(file), str(file.parent / "gone.pyc"), dfile="gone.py")
    loaded = {}
    for name, path in (("source", file), ("compiled", compiled)):
        spec = importlib.util.spec_from_file_location(f"forms_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded[name] = vars(module)
    loaded["text"] = {}
    exec(SOURCE, loaded["text"])
    return loaded


@pytest.mark.parametrize("x", [X, X.astype(BF16)], ids=["float32", "mixed"])
@pytest.mark.parametrize("name", FORMS)
def test_with_and_without_source_it_compiles_to_the_same(name, x, modules):
    cast = [autocast(module[name], BF16) for module in modules.values()]
    with jax.numpy_dtype_promotion("standard"):
        assert len({optimized_hlo(each, W, x) for each in cast}) == 1


def dots(function, *args):
    """The dtypes of the operands, and of the result, of each product."""
    text = str(jax.make_jaxpr(autocast(function, BF16))(*args))
    return [
        line.split(":")[1].split("[")[0] for line in text.splitlines() if "= dot" in line
    ]


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("asked", ["f32", "bf16"]),
        ("by_options", ["f32", "bf16"]),
        ("by_partial", ["f32", "bf16"]),
        ("named_alike", ["bf16"]),
        ("of_another", ["bf16"]),
        ("of_self", ["f32"]),
    ],
)
def test_what_is_asked_for_stays_and_what_follows_does_not(name, results, modules):
    x = X.astype(BF16) if name.startswith("of") else X
    assert dots(modules["source"][name], W, x) == results


def test_a_cast_that_its_second_trace_does_not_tell_counts_as_asked_for():
    def f(w, x):
        turn = lambda h, _: (h.astype(w.dtype), None)  # which no other dtype has
        carry, _ = lax.scan(turn, jnp.zeros((4, 8), F32), None, 2)
        return carry + x.astype(w.dtype) @ w

    cast = autocast(f, BF16)
    assert dots(cast, W, X.astype(BF16)) == ["f32"]
    cast(W, X.astype(BF16))
    assert "x.astype(w.dtype): kept by a cast that may be asked for" in str(cast.kept)


def test_without_floating_arguments_a_cast_is_asked_for():
    narrow = W.astype(BF16)
    cast = autocast(lambda places: narrow[places].astype(F32) @ W, BF16)
    assert cast(jnp.arange(3)).dtype == F32
    assert [note.partition(": kept ")[2] for note in cast.kept] == ["by its own cast"]


def test_nothing_is_traced_again_where_nothing_may_be_asked_for():
    traces = []

    def f(x):
        traces.append(1)
        return lax.dot((x @ W).astype(BF16), W.astype(BF16)).astype(int)

    autocast(f, BF16)(X)
    autocast(f, Plan(BF16, "all"))(X)
    assert len(traces) == 2


def test_a_partial_of_options():
    f = lambda w, x, **options: jnp.dot(x, w, **options)
    asks = functools.partial(f, preferred_element_type=F32)
    assert (dots(asks, W, X), dots(f, W, X)) == (["f32"], ["bf16"])


def test_the_results_of_an_autocast_inside_ask_for_nothing():
    inner = autocast(lambda x: x @ W, BF16)
    # W is no argument, so the dtype of what `inner` returns does not move with them.
    outer = autocast(lambda x: inner(x) @ W.T, BF16)
    assert jnp.array_equal(outer(X), autocast(lambda x: x @ W @ W.T, BF16)(X))
    assert not outer.kept
