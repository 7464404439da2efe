"""What grampax, jaxamp and `dtypeguard.autocast` do with the forms of a program.

Each form is a tiny program with two products, under a gradient. Of the jaxpr of each tool,
a cell says how many products have bfloat16 operands, or whether what the source asks for
has stayed; and whether the equation of the form is there still. It runs in any JAX from
0.7.2 on:

    pip install 'jax==0.7.2' 'jaxlib==0.7.2' flax equinox optax grampax jaxamp 'quax==0.2.1'
    python benchmarks/autocast_forms.py

It takes half a minute on a CPU. With a later quax, grampax 0.1.0 raises on each form.
"""

import contextlib
import io
import platform
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import dtypeguard
from dtypeguard._program.jaxprs import jaxprs_in, open_jaxpr

_BFLOAT16 = jnp.dtype("bfloat16")
W, X = jnp.eye(8) + 0.1, jnp.linspace(-1.0, 1.0, 32).reshape(4, 8)
Function = Callable[..., Any]


class Form(NamedTuple):
    """A program in a form.

    Attributes:
        function: of a weight, or of an NNX module, and an argument.
        equations: what its equation may be called; none if it has none of its own.
        stays: the dtype of the operands that its source asks for.
    """

    function: Function
    equations: str = ""
    stays: str = ""


def _layers(w, x):
    return jnp.tanh(x @ w) @ w


@jax.custom_vjp
def _own(w, x):
    return _layers(w, x)


def _forward(w, x):
    hidden = jnp.tanh(x @ w)
    return hidden @ w, (w, x, hidden)


def _backward(kept, cotangent):
    w, x, hidden = kept
    inner = (cotangent @ w.T) * (1 - hidden * hidden)
    return hidden.T @ cotangent + x.T @ inner, inner @ w.T


_own.defvjp(_forward, _backward)


def _scanned(w, x):
    return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=3)[0] @ w


def _branched(w, x):
    return lax.cond(x[0, 0] < 9, lambda x: jnp.tanh(x @ w) @ w, lambda x: x, x)


def _sharded(w, x):
    mesh = Mesh(jax.devices()[:1], ("data",))
    rows = PartitionSpec("data")
    specs = {"in_specs": (PartitionSpec(), rows), "out_specs": rows}
    return jax.shard_map(_layers, mesh=mesh, **specs)(w, x)


def _highest(w, x):
    return jnp.dot(jnp.tanh(x), w, precision="highest")


def _upcast(w, x):
    narrow = x.astype(_BFLOAT16)
    return narrow.astype(jnp.float32) @ w.astype(jnp.float32)


class _Net(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=nnx.Rngs(n)) for n in range(2)])

    def __call__(self, x):
        return self.layers[1](jnp.tanh(self.layers[0](x)))


FORMS = {
    "plain": Form(_layers),
    "jit": Form(lambda w, x: jax.jit(_layers)(w, x), "jit pjit"),
    "scan": Form(_scanned, "scan"),
    "cond": Form(_branched, "cond"),
    "remat": Form(
        lambda w, x: jax.checkpoint(_layers)(w, x), "checkpoint remat remat2 RematTraced"
    ),
    "custom_vjp": Form(_own, "custom_vjp_call CustomVJPTraced"),
    "shard_map": Form(_sharded, "shard_map"),
    "NNX": Form(lambda model, x: model(x)),
    "precision=HIGHEST": Form(_highest, stays="float32"),
    "an upcast": Form(_upcast, stays="float32"),
}


def _tools() -> dict[str, Callable[[Function], Function]]:
    """What each tool makes of a function."""
    return {
        "grampax": lambda f: import_module("grampax").autocast(f, dtype=_BFLOAT16),
        "jaxamp": lambda f: import_module("jaxamp").amp(f, compute_dtype=_BFLOAT16),
        "dtypeguard": lambda f: dtypeguard.autocast(f, _BFLOAT16),
    }


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in open_jaxpr(jaxpr).eqns:
        yield eqn
        for each in jaxprs_in(eqn.params):
            yield from _equations(each)


def _name(eqn: Any) -> str:
    held = eqn.params.get("_prim")
    return eqn.primitive.name if held is None else type(held).__name__


def _jaxprs(function: Function, name: str) -> tuple[Any, Any]:
    """Those of a function and of its gradient."""
    first = W
    if name == "NNX":
        of, (definition, first) = function, nnx.split(_Net())
        function = lambda state, x: of(nnx.merge(definition, state), x)
    loss = lambda first, x: jnp.sum(function(first, x) ** 2)
    return jax.make_jaxpr(function)(first, X), jax.make_jaxpr(jax.grad(loss))(first, X)


def cell(name: str, tool: Callable[[Function], Function]) -> str:
    """What a tool does with a form."""
    form = FORMS[name]
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # grampax prints
            own, gradient = _jaxprs(tool(form.function), name)
    except Exception as error:
        return type(error).__name__
    every = [*_equations(gradient)]
    dots = [eqn for eqn in every if _name(eqn) == "dot_general"]
    # A CPU that has no such product is given the same numbers in float32.
    casts = {x.outvars[0]: x.invars[0] for x in every if _name(x) == "convert_element_type"}
    both = lambda var: {str(x.aval.dtype) for x in (var, casts.get(var, var))}
    narrow = sum(all("bfloat16" in both(x) for x in eqn.invars) for eqn in dots)
    if form.stays:
        (forward,) = [eqn for eqn in _equations(own) if _name(eqn) == "dot_general"]
        same = {str(x.aval.dtype) for x in forward.invars} == {form.stays}
        return "kept" if same else "undone"
    found = f"{narrow} of {len(dots)} narrow"
    names = {_name(eqn) for eqn in _equations(own)}
    is_there = not form.equations or names.intersection(form.equations.split())
    return found if is_there else f"{found}, no {name}"


def main() -> None:
    print(f"JAX {jax.__version__}, Python {platform.python_version()}")
    tools = _tools()
    print("| form |", " | ".join(tools), "|")
    print("|---" * (len(tools) + 1) + "|")
    for name in FORMS:
        cells = [cell(name, tool) for tool in tools.values()]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
