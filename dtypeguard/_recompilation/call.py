"""Reads a call that compiles a function from JAX's frames, without its arrays.

JAX reports each compilation to listeners (`jax.monitoring`) in the thread that compiles,
and the frame of jit's own `cache_miss` stands on the stack with the function and its
arguments. So nothing of JAX's is replaced, and a compiled function costs nothing. A release
that names them otherwise leaves the report empty, and nothing else.

What is read of the user's objects is read by `inert.py`, which runs nothing of theirs.
Trees are flattened as JAX flattens them for the same call.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Sequence
from types import FrameType, FunctionType, MethodType
from typing import Any

from .._carry.modules import spread
from .._leaves.dtypes import is_python_number
from .._leaves.internals import COMPILING, PMAP_WRAPPER
from .._leaves.key_path import KeyPath, by_path
from .._leaves.types import Args, Function, Jaxpr, Kwargs, Leaf, PyTree, PyTreeDef
from .._recording.values import is_concrete
from .._source.files import is_users, package
from .._source.inert import code_of, package_of, static
from .._source.origin import Origin, callers, origin_of_frame
from .._tracebacks.sites import bound_arguments

WRAPPERS = ("equinox", "flax")  # whose `jit` wraps JAX's


@dataclasses.dataclass(frozen=True)
class CompilingCall:
    """A call that compiles a function.

    Attributes:
        cached: the function that JAX was given, by which it finds what it has compiled.
        function: the function that the user gave.
        args: the arguments by position.
        kwargs: the arguments by name.
        static_positions: the positions of the arguments that are constants of the program.
        static_names: the names of the arguments that are constants of the program.
        jaxpr: the program.
        out_tree: the structure of its results.
        wrapper: the package that defines the function; if it is Equinox or Flax, its own
            `jit` wraps JAX's.
        caller: the line outside of JAX and the wrapper that called it.
    """

    cached: Function
    function: Function
    args: Args
    kwargs: Kwargs
    static_positions: Sequence[int]
    static_names: Sequence[str]
    jaxpr: Jaxpr
    out_tree: PyTreeDef
    wrapper: str
    caller: Origin

    @functools.cached_property
    def arguments(self) -> dict[str, PyTree]:
        """The arguments by the names of the parameters."""
        function = self.function
        method = static(type(function), "__call__")
        # To ask the object for its signature may run a function of the user's.
        # That of a `custom_jvp` binds to no names.
        is_of_jax = package_of(type(function)) in ("jax", "jaxlib")
        if type(method) is FunctionType and not is_of_jax:
            function = MethodType(method, function)
        by_name = bound_arguments(function, self.args, self.kwargs)
        return by_name or {"args": self.args, "kwargs": self.kwargs}

    def leaves(self) -> dict[KeyPath, Leaf]:
        """Returns the inputs of the program by path."""
        leaves = {}
        for position, (name, argument) in enumerate(self.arguments.items()):
            # JAX knows no name of an argument that is given by position alone.
            if position in self.static_positions or name in self.static_names:
                continue
            for path, leaf in by_path(spread(argument), name).items():
                # Equinox makes a constant of a Python number.
                is_number = is_python_number(leaf) and self.wrapper != "equinox"
                if is_number or is_concrete(leaf):
                    leaves[path] = leaf
        return leaves


def call_that_compiles(frame: FrameType) -> CompilingCall | None:
    """Returns the call that compiles, from a frame inside of it."""
    traced: Any = None
    outside = iter([frame, *callers(frame)])
    for inner in outside:
        if is_users(inner.f_code.co_filename):
            return None  # compiled ahead of time, or a backward pass
        variables = inner.f_locals
        # JAX's record of the call, with the program.
        if hasattr(variables.get("p"), "out_tree"):
            traced = variables["p"]
        if inner.f_code.co_name in COMPILING:
            return _call_around(variables, traced, outside)
    return None


def _call_around(
    cached_call: dict[str, Any], traced: Any, outside: Iterator[FrameType]
) -> CompilingCall | None:
    """Returns the call as the user wrote it, from the variables of JAX's own one."""
    settings = cached_call["jit_info"]
    cached = cached_call["fun"]
    function = cached
    variables = cached_call
    static_positions = settings.static_argnums
    code = code_of(cached)
    wrapper = package(code.co_filename) if code else ""
    caller = None
    for frame in outside:
        file = frame.f_code.co_filename
        # It jits a function of its own, and holds the user's in a closure.
        if frame.f_code.co_qualname in PMAP_WRAPPER:
            variables = frame.f_locals
            mapped = inspect.getclosurevars(variables["infer_params"]).nonlocals
            function = mapped["wrapped_fun"].f
            static_positions = mapped["static_broadcasted_tuple"]
        elif wrapper in WRAPPERS and package(file) == wrapper:
            wrapping: Any = frame.f_locals.get("self")
            if package_of(type(wrapping)) == wrapper and hasattr(wrapping, "__wrapped__"):
                function = wrapping.__wrapped__
                variables = frame.f_locals
        elif is_users(file):
            caller = origin_of_frame(frame)
            break
    if caller is None:
        return None
    if wrapper == "equinox":
        static_positions = ()  # of the arguments of a function of its own
    return CompilingCall(
        cached=cached,
        function=function,
        args=variables["args"],
        kwargs=variables["kwargs"],
        static_positions=static_positions,
        static_names=settings.static_argnames,
        jaxpr=traced.params["jaxpr"],
        out_tree=traced.out_tree,
        wrapper=wrapper,
        caller=caller,
    )
