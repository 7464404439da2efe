"""Evaluates the user's own expressions again, changed as a note says, on types alone."""

import ast
import contextlib
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType

import jax
import jax.numpy as jnp
from jax import tree_util
from jax.core import Tracer

from .._carry.modules import objects
from .._leaves.compat import set_x64
from .._leaves.dtypes import is_weak
from .._leaves.types import Aval, PyTree
from .._lines.retrace import traced_again
from .._lines.sites import Argument, Site
from .._program.trace import strong_type
from .._source.syntax import evaluated
from .messages import names_a_type
from .pure import is_pure
from .rewritten import changed, computed, evaluable

# The first trials take place however long they take, more of them for so many seconds.
_FIRST, _SECONDS = 2, 1.0

# True if it mends, False if it does not, None if it was not tried.
Outcome = bool | None


class Reruns:
    """Tries the expressions of one error, as long as that takes little time."""

    def __init__(self) -> None:
        self._count, self._spent = 0, 0.0

    def expression(
        self,
        site: Site,
        changes: Mapping[ast.expr, str] = MappingProxyType({}),
        *,
        known: Sequence[Argument] = (),
        x64: bool | None = None,
        is_lowered: bool = False,
        names: Mapping[str, object] = MappingProxyType({}),
    ) -> Outcome:
        """Whether an expression that raised an error does not, once it is changed.

        Args:
            site: with the expression.
            changes: other text for parts of it.
            known: its arguments. What they are computed from does not run again.
            x64: the flag around it; None leaves it.
            is_lowered: whether to lower it as well.
            names: of what the other text uses.
        """
        frame, node = site.frame, evaluable(site.node)
        if node is None:
            return None
        node = changed(node, changes)
        given = {f"given_{n}": x for n, x in enumerate(known) if x.source and x.is_whole}
        sources = {ast.dump(x.source): name for name, x in given.items() if x.source}
        ours = {"jax": jax, "jnp": jnp, "dtypeguard": sys.modules["dtypeguard"]}
        known_values = ours | frame.f_globals | frame.f_locals | dict(names)
        known_values |= {name: argument.value for name, argument in given.items()}
        read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        is_traced = any(
            isinstance(leaf, Tracer)
            for leaf in tree_util.tree_leaves([frame.f_locals.get(x) for x in read])
        )
        # What JAX traces has no effects.
        may_run = lambda call: is_traced or is_pure(call, frame, names)
        if (node := computed(node, sources, may_run)) is None:
            return None
        read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        values = {name: known_values[name] for name in read & known_values.keys()}
        if objects([*values.values()]):
            return None  # which it may change
        leaves, tree = tree_util.tree_flatten(values)
        is_given = lambda x: isinstance(x, jax.Array) and (x.ndim or isinstance(x, Tracer))
        arrays = [type_of(leaf) for leaf in leaves if is_given(leaf)]
        code = compile(ast.Expression(node), site.file, "eval")

        def run(arrays):
            left = iter(arrays)
            given = [next(left) if is_given(x) else x for x in leaves]
            return eval(code, frame.f_globals | tree_util.tree_unflatten(tree, given))

        def trace() -> None:
            with contextlib.nullcontext() if x64 is None else set_x64(x64):
                traced_again(run, (arrays,))
                if is_lowered:
                    jax.jit(run).lower(arrays)

        return self.tried(trace)

    def given(
        self, site: Site, convert: Callable[[PyTree], PyTree], x64: bool | None = None
    ) -> Outcome:
        """Whether a call does not raise an error if its arguments are converted.

        Args:
            site: of the call.
            convert: makes an argument of another.
            x64: the flag around it; None leaves it.
        """
        node = site.node
        if not isinstance(node, ast.Call):
            return None
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        given = [x.value if isinstance(x, ast.Starred) else x for x in given]
        owner = getattr(node.func, "value", None)  # of a method
        is_object = not isinstance(evaluated(owner, site.frame), (ModuleType, type(None)))
        given += [owner] if is_object and isinstance(owner, ast.expr) else []
        given = [x for x in given if not isinstance(x, ast.Lambda)]
        changes = {each: f"convert({ast.unparse(each)})" for each in given}
        return self.expression(site, changes, names={"convert": convert}, x64=x64)

    def wrapped(self, site: Site) -> Outcome:
        """Whether the `update` of a guarded optimizer raises no error."""
        function = getattr(site.node, "func", None)
        if not isinstance(function, ast.Attribute):
            return None
        text = f"dtypeguard.guard({ast.unparse(function.value)})"
        return self.expression(site, {function.value: text})

    def tried(self, trace: Callable[[], object]) -> Outcome:
        """What a trace means, if there is time left for it."""
        if self._count >= _FIRST and self._spent > _SECONDS:
            return None
        self._count, start = self._count + 1, time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it has printed before
                trace()
        except Exception as error:
            return outcome_of(error)
        finally:
            self._spent += time.perf_counter() - start
        return True


def outcome_of(error: Exception) -> Outcome:
    """What an error in a trial means: not over types, it was not the remedy that failed."""
    needs_values = isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError))
    is_of_types = isinstance(error, (TypeError, ValueError, AssertionError))
    needs_values |= "Tracer" in str(error)
    is_of_types = is_of_types and names_a_type(str(error))
    return False if is_of_types and not needs_values else None


def type_of(leaf: Aval) -> jax.ShapeDtypeStruct:
    """The type of an array, weak if it is."""
    with contextlib.suppress(TypeError):  # older releases have no weak ones
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=is_weak(leaf))
    return strong_type(leaf)
