"""The catalogue: its entries, that none is missing, and their inputs."""

import inspect
import operator

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import tree_util
from optimizer_sweep import catalog

import dtypeguard
from dtypeguard._sweep.inputs import loss

ENTRIES, UNBUILT = catalog.entries()


def _factory(entry_id):
    root, _, names = entry_id.partition("[")[0].partition(".")
    return operator.attrgetter(names)({"optax": optax, "dtypeguard": dtypeguard}[root])


def _annotated_factories():
    for module in (optax, optax.contrib):
        for name, member in vars(module).items():
            if name.startswith("_") or inspect.isclass(member) or not callable(member):
                continue
            try:
                annotation = str(inspect.signature(member).return_annotation)
            except ValueError:
                continue
            if "GradientTransformation" in annotation:
                yield f"{module.__name__}.{name}", member


def test_every_factory_of_optax_is_in_the_catalogue_or_left_out():
    known = {id(_factory(x.id)) for x in (*ENTRIES, *UNBUILT)}
    promised = dict(_annotated_factories())
    assert len(promised) > 50
    assert [name for name, factory in promised.items() if id(factory) not in known] == []
    # Of these no annotation tells.
    names = {x.id for x in (*ENTRIES, *UNBUILT)}
    assert names >= {"optax.MultiSteps", "optax.scale_by_factored_rms"}


def test_inputs_have_the_dtypes_asked_for_and_are_gradients_of_the_loss():
    entry = catalog.find("optax.adam")
    params, updates, extra_args = entry.inputs((jnp.bfloat16, jnp.float32), jnp.float16)
    dtypes = {name: leaf.dtype for name, leaf in params.items()}
    assert dtypes == {"b": jnp.bfloat16, "w": jnp.float32}
    assert {leaf.dtype for leaf in tree_util.tree_leaves(updates)} == {jnp.dtype("float16")}
    assert extra_args == {}
    params, updates, _ = entry.inputs(jnp.float32, jnp.float32)
    pairs = zip(*map(tree_util.tree_leaves, (jax.grad(loss)(params), updates)))
    assert all(jnp.allclose(grad, update, rtol=1e-6) for grad, update in pairs)
