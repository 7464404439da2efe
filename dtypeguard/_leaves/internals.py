"""What dtypeguard knows of the insides of other libraries.

Any release may change it. `tests/leaves/test_internals.py` checks each entry on the oldest
and the newest release, and that the rooms read no other parameter of a primitive. The
names of primitives stand where it is said what they do, in `graph.py` and `primitives.py`.
"""

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any


class ForeignNames(frozenset[str]):
    """Names inside of a library, some with releases: `"scan pjit@jax<0.7"`."""

    releases: dict[str, str]

    def __new__(cls, text: str):
        parts = [each.partition("@") for each in text.split()]
        names = super().__new__(cls, (name for name, *_ in parts))
        names.releases = {name: releases for name, _, releases in parts if releases}
        return names

    def are_in(self, text: str) -> bool:
        """Whether one of the names is a part of another name."""
        return any(name in text for name in self)

    def codes(self) -> Iterator[CodeType]:
        """The code of functions, `module:name`, as far as their modules are imported."""
        for module, _, name in (each.partition(":") for each in self):
            code = getattr(getattr(sys.modules.get(module), name, None), "__code__", None)
            if code is not None:
                yield code

    def variables(self) -> Iterator[tuple[dict[str, Any], str]]:
        """The variables `module:name`, each with those of its module."""
        for module, _, name in (each.partition(":") for each in self):
            known = vars(sys.modules[module]) if module in sys.modules else {}
            if name in known:
                yield known, name


# Those whose files are of a package however they came to be on the path.
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "equinox", "flax", "haiku")

# Those that keep a state outside of what a step takes and returns.
STATEFUL = ("brainstate",)

# Functions inside of JAX, known by the frames of a traceback: parts of their names ...
TRACING = ForeignNames("trace_to_jaxpr trace_to_subjaxpr@jax<0.7")
# The end of each trace, with what it closes over and its results.
TRACED = ForeignNames("JaxprStackFrame.to_jaxpr")
PROMOTING = ForeignNames("promote")
LIKE = ForeignNames("_like")
# ... and whole names.
CASTS = ForeignNames("astype _astype asarray convert_element_type _ScalarMeta.__call__")
# What all of them call, which leaves out a cast to the dtype that an array has.
CASTING = ForeignNames("jax._src.lax.lax:_convert_element_type")
COMPILING = ForeignNames("cache_miss")
# How Optax calls the `update` of its optimizers.
UPDATES = ForeignNames("update update_fn")
# Functions that add updates to params.
ADDING = ForeignNames("optax:apply_updates equinox:apply_updates")
# Functions of Flax that cast values to a common dtype.
COMMON_DTYPE = ForeignNames(
    "flax.linen.dtypes:promote_dtype@flax>=0.12 flax.nnx.nn.dtypes:promote_dtype@flax>=0.12"
)
# How the names of the modules of loops begin.
LOOPS_OF_JAX = "jax._src.lax.control_flow"
LOOPS_OF_EQUINOX = "equinox.internal._loop"
# Variables of the frames of functions that call one of the user's.
VARIABLES = {
    "jax.jit": ForeignNames("args kwargs"),
    "jax.grad": ForeignNames("fun args has_aux holomorphic argnums"),
    "jax.lax.scan": ForeignNames("f init@jax<0.8 xs@jax<0.8 init_flat xs_flat"),
    "jax.lax.while_loop": ForeignNames("cond_fun body_fun init_val@jax<0.8"),
    "jax.lax.cond": ForeignNames("operands ops@jax<0.8"),
    "equinox.internal.while_loop": ForeignNames("body_fun val buffer_val buffer_val2"),
    "flax.nnx.while_loop": ForeignNames("body_fun init_val"),
    "flax.nnx.scan": ForeignNames("f args"),
    "flax.nnx.cond": ForeignNames("true_fun operands"),
}

# What an equation has in its name stack.
TRANSPOSED = "transpose"
REPEATED = "rematted_computation"
# The primitives that hold what a backward pass repeats.
REPEATING = ForeignNames("remat2")

# The parameters of primitives.
PARAMETERS = {
    "cond": ForeignNames("branches"),
    "scan": ForeignNames("jaxpr length reverse unroll"),
    "while": ForeignNames("body_jaxpr cond_jaxpr"),
    "jit": ForeignNames("jaxpr@jax>=0.7 name@jax>=0.7 donated_invars@jax>=0.7"),
    "pjit": ForeignNames("jaxpr@jax<0.7 name@jax<0.7"),
    "custom_jvp_call": ForeignNames("call_jaxpr"),
    "custom_vjp_call": ForeignNames("call_jaxpr@jax>=0.7 out_trees@jax>=0.7 bwd@jax>=0.7"),
    "custom_lin": ForeignNames("num_res"),
    "shard_map": ForeignNames(
        "jaxpr mesh in_specs@jax>=0.6.2 out_specs@jax>=0.6.2 check_vma@jax>=0.6.2 "
        "newly_manual_axes@jax>=0.10 manual_axes@jax>=0.6.2,<0.8 auto@jax<0.6"
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
    "conv_general_dilated": ForeignNames("dimension_numbers lhs_dilation precision"),
    "integer_pow": ForeignNames("y"),
}
DTYPES = ForeignNames("new_dtype preferred_element_type dtype")
