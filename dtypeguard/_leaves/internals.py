"""What dtypeguard knows of the insides of other libraries.

Any release may change it. `tests/leaves/test_internals.py` checks each entry on the oldest
and the newest release. The names of primitives stand where it is said what they do, in
`jaxprs.py` and `primitives.py`.
"""


class ForeignNames(frozenset[str]):
    """Names inside of a library, some with releases: `"scan pjit@jax<0.7"`."""

    releases: dict[str, str]  # by name; empty for all

    def __new__(cls, text: str):
        releases = {}
        for word in text.split():
            name, _, release = word.partition("@")
            releases[name] = release
        names = super().__new__(cls, releases)
        names.releases = releases
        return names

    def are_in(self, text: str) -> bool:
        """Returns whether one of the names is a part of another name."""
        return any(name in text for name in self)


# Those whose files are of a package however they came to be on the path.
PACKAGES_BY_NAME = ("jax", "jaxlib", "numpy", "optax", "equinox", "flax", "haiku")

# Those that keep a state outside of what a step takes and returns.
STATEFUL = ("brainstate",)

# Functions inside of JAX, known by the frames of a traceback: parts of their names ...
TRACING = ForeignNames("trace_to_jaxpr trace_to_subjaxpr@jax<0.7")
# The end of each trace, with what it closes over and its results.
TRACED = ForeignNames("JaxprStackFrame.to_jaxpr")
PROMOTING = ForeignNames("promote")
# What runs an operator of Python, such as `@`.
OPERATORS = ForeignNames("_forward_operator_to_aval")
# What calls a function that has a rule of its own.
WITH_RULES = ForeignNames("custom_jvp.__call__ custom_vjp.__call__ custom_vmap.__call__")
# ... and whole names.
CASTS = ForeignNames("astype _astype asarray convert_element_type _ScalarMeta.__call__")
COMPILING = ForeignNames("cache_miss")
# The function that `pmap` returns, where it is a `jit` of `shard_map`.
PMAP_WRAPPER = ForeignNames("pmap.<locals>.wrapped@jax>=0.10")
# How Optax calls the `update` of its optimizers.
UPDATES = ForeignNames("update update_fn")
# Functions of Optax and Equinox that add updates to params.
ADDING = ForeignNames("apply_updates")
# How the names of the modules of loops begin.
LOOPS_OF_JAX = "jax._src.lax.control_flow"
LOOPS_OF_EQUINOX = "equinox.internal._loop"
# What an equation has in its name stack.
TRANSPOSED = "transpose"
REPEATED = "rematted_computation"
# Parameters of primitives that hold a dtype.
DTYPES = ForeignNames("new_dtype preferred_element_type dtype")
