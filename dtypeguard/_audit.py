"""Audits one optimizer: which leaf drifts in an update, and on which line of source."""

import contextlib
import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import tree_util

from ._audit_report import AuditReport, Drift, TraceError, WideOperation
from ._blame import blame, source
from ._compat import set_x64
from ._constants import Watch
from ._dtypes import dtype_of, fits, is_weak, is_wide, promoted
from ._graph import Graph, Step
from ._origins import Origin, origin_of, origin_of_error
from ._report import by_path, describe, tree_rows, type_name

_FEW = 50


def audit(
    opt: Any,
    params: Any,
    *,
    updates: Any = None,
    extra_args: dict[str, Any] | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """Finds the leaves that change their types in one update, and the lines that do it.

    Nothing is computed and nothing of the size of `params` is allocated: `init` and
    `update` are traced for shapes and dtypes alone.

    Args:
        opt: a gradient transformation or an object with `init` and `update`. It is
            audited as it is: guarded, it should be clean.
        params: arrays or `jax.ShapeDtypeStruct`s.
        updates: the same for the gradients; of the shapes and dtypes of `params` by
            default.
        extra_args: further keyword arguments of `update`. Functions among them are called
            as they are.
        x64: whether `jax_enable_x64` is on; by default as the caller has it.

    Returns:
        An `AuditReport`; print it.

    Raises:
        TypeError: if `opt` has no `init` and `update`.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp, optax
        >>> params = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
        >>> grads = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
        >>> report = dtypeguard.audit(optax.adam(1e-3), params, updates=grads)
        >>> [(drift.path, drift.before, drift.after) for drift in report.drifts][0]
        ("[0].mu['w']", 'bfloat16', 'float32')
    """
    if not callable(getattr(opt, "init", None)) or not callable(
        getattr(opt, "update", None)
    ):
        raise TypeError(
            f"audit got {opt!r}. Give it a gradient transformation (anything with `init` "
            "and `update`, such as optax.adam(1e-3)), not the function that makes it."
        )
    updates = params if updates is None else updates
    flag = contextlib.nullcontext() if x64 is None else set_x64(x64)
    with flag, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the update warns of is said when it runs
        return _Audit(opt, params, updates, extra_args or {}).report()


class _Refused(Exception):
    """Init or update did not trace; carries why."""


class _Audit:
    """One audit: what was traced of an optimizer, and what the traces tell."""

    def __init__(self, opt: Any, params: Any, updates: Any, extra_args: dict[str, Any]):
        self.opt, self.params, self.updates = opt, params, updates
        self.extra_args = extra_args

    def report(self) -> AuditReport:
        make = functools.partial(AuditReport, name=_name_of(self.opt))
        # Watching costs time; for many leaves it is done only if a constant turns up.
        self.watch = Watch()
        watching = len(tree_util.tree_leaves(self.params)) <= _FEW
        try:
            with self.watch if watching else contextlib.nullcontext():
                self._trace()
        except _Refused as refused:
            return make(error=_trace_error(refused.__cause__))
        self.inputs = tree_util.tree_leaves((self.params, self.updates, self.extra_args))
        drifts = (*self._state_drifts(), *self._update_drifts())
        state_is_stable = not any(drift.where == "state" for drift in drifts)
        return make(
            drifts=drifts,
            wide_operations=tuple(self._wide_operations()),
            compilations=1 if state_is_stable else 2,
        )

    def _trace(self) -> None:
        opt = self.opt

        def init(params, updates, arrays):
            try:
                state = opt.init(params)
            except Exception as error:
                raise _Refused from error
            self.state = _Parts(state)

            def update(params, updates, state_arrays, arrays):
                state = self.state.merged(state_arrays)
                extra_args = self._extra.merged(arrays)
                try:
                    new = opt.update(updates, state, params, **extra_args)
                except Exception as error:
                    raise _Refused from error
                self.new_updates, self.new_state = map(_Parts, new)
                return self.new_state.arrays, self.new_updates.arrays

            arguments = params, updates, self.state.arrays, self._extra.arrays
            self.update = Graph(jax.make_jaxpr(update)(*arguments))
            return self.state.arrays

        self._extra = _Parts(self.extra_args)
        closed = jax.make_jaxpr(init)(self.params, self.updates, self._extra.arrays)
        self.init = Graph(closed)

    def _state_drifts(self) -> Iterator[Drift]:
        first = len(tree_util.tree_leaves((self.params, self.updates)))
        before = dict(zip(self.state.paths, self.update.inputs[first:]))
        after = dict(zip(self.new_state.paths, self.update.outputs))
        if self.state.treedef != self.new_state.treedef or before.keys() != after.keys():
            rows = tree_rows("", self.state.tree, self.new_state.tree, "")
            for row in rows:
                yield Drift(row.path, "structure", row.before, row.after, "state")
        for path in before:
            if path in after:
                yield from self._state_drift(path, before[path], after[path])

    def _state_drift(self, path: str, old: int, new: int) -> Iterator[Drift]:
        was, is_now = self.update.avals[old], self.update.avals[new]
        drift = functools.partial(Drift, path, where="state")
        if was.dtype != is_now.dtype:
            lines = self._lines(new, lambda aval: aval.dtype == is_now.dtype, 1 << old)
            yield drift("dtype", str(was.dtype), str(is_now.dtype), **lines)
        if was.shape != is_now.shape:
            lines = self._lines(new, lambda aval: aval.shape == is_now.shape, 1 << old)
            yield drift("shape", describe(was), describe(is_now), **lines)
        elif was.dtype == is_now.dtype and is_weak(was) != is_weak(is_now):
            if is_weak(was):
                lines = {"origin": self._maker_in_init(path)}
            else:
                lines = self._lines(new, is_weak, 1 << old)
            yield drift("weak_type", type_name(was), type_name(is_now), **lines)

    def _update_drifts(self) -> Iterator[Drift]:
        """The updates that change the dtype of their param under `p + u`."""
        avals = self.update.avals
        numbered = {path: n for n, path in enumerate(by_path(self.params))}
        first = len(numbered)
        incoming = {p: first + n for n, p in enumerate(by_path(self.updates))}
        outputs = self.update.outputs[len(self.new_state.arrays) :]
        for path, output in zip(self.new_updates.paths, outputs):
            update = avals[output]
            param = avals[numbered[path]] if path in numbered else None
            if param is None or not _promotes(param, update):
                continue
            gradient = incoming.get(path)
            lines = {}
            if gradient is None or avals[gradient].dtype != update.dtype:
                leaves = 1 << numbered[path] | (0 if gradient is None else 1 << gradient)
                matches = lambda aval, dtype=update.dtype: aval.dtype == dtype
                lines = self._lines(output, matches, leaves)
            yield Drift(
                path, "dtype", str(param.dtype), str(update.dtype), "updates", **lines
            )

    def _lines(
        self, output: int, matches: Callable[[Any], bool], leaves: int
    ) -> dict[str, Origin | None]:
        found = blame(self.update, output, matches, leaves)
        cause = _origin(found.cause)
        if cause is not None and found.constant:
            cause = self._watched().maker(cause, matches)
        return {"origin": _origin(found.promotion), "cause": cause}

    def _maker_in_init(self, path: str) -> Origin | None:
        output = self.init.outputs[self.state.paths.index(path)]
        made = _origin(source(self.init, output, is_weak))
        if made is None:
            watch = self._watched()
            made = watch.made(self.state.arrays[self.state.paths.index(path)])
        return made

    def _watched(self) -> Watch:
        if not self.watch.entered:
            with self.watch:
                self._trace()
        return self.watch

    def _wide_operations(self) -> Iterator[WideOperation]:
        if any(map(is_wide, self.inputs)):
            return
        for graph in (self.init, self.update):
            for value, step in graph.made_by.items():
                aval = graph.avals[value]
                if str(getattr(aval, "dtype", "")) in ("float64", "complex128"):
                    yield WideOperation(
                        step.primitive, describe(aval).removesuffix(",weak"),
                        aval.shape != (), _origin(step)
                    )


class _Parts:
    """A tree, its array leaves, and the way back to it from other such leaves."""

    def __init__(self, tree: Any):
        self.tree = tree
        leaves, self.treedef = tree_util.tree_flatten_with_path(tree)
        is_array = [_is_array(leaf) for _, leaf in leaves]
        self.arrays = [leaf for (_, leaf), array in zip(leaves, is_array) if array]
        self.paths = [
            tree_util.keystr(path) for (path, _), array in zip(leaves, is_array) if array
        ]
        self._others = [(array, leaf) for (_, leaf), array in zip(leaves, is_array)]

    def merged(self, arrays: Sequence[Any]) -> Any:
        """The tree with these for its array leaves."""
        remaining = iter(arrays)
        leaves = [next(remaining) if array else leaf for array, leaf in self._others]
        return tree_util.tree_unflatten(self.treedef, leaves)


def _is_array(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    is_extended = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)
    return is_extended or dtype_of(leaf) is not None


def _promotes(param: Any, update: Any) -> bool:
    if dtype_of(param) is None or dtype_of(update) is None or param.dtype == update.dtype:
        return False
    if is_weak(update) and fits(update.dtype, param.dtype):
        return False
    return promoted(param.dtype, update.dtype) != param.dtype


def _origin(step: Step | None) -> Origin | None:
    return None if step is None else origin_of(step.equations)


# How JAX tells of two types: in a loop or branch, in a function, in an older loop.
_TYPE = r"(?:ShapedArray\()?((?:[a-z_]+\d*\w*)?(?:\[[\w,]*\]|\([\d, ]*\))?)"
_PAIRS = tuple(
    re.compile(pattern.replace("TYPE", _TYPE), re.DOTALL)
    for pattern in (
        r"has type TYPE.{1,80}? has type TYPE",
        r"DIFFERENT TYPE.{1,20}? vs\. TYPE",
        r"dtypes \('TYPE', '(?!')TYPE'\)",
        r"(?:got|broadcasting:) TYPE, TYPE",
    )
)


def _trace_error(error: BaseException | None) -> TraceError:
    message = str(error).strip()
    found = filter(None, (pair.search(message) for pair in _PAIRS))
    types = next((tuple(match.groups()) for match in found), ())
    first = f"{type(error).__name__}: {message.partition(chr(10))[0]}"
    return TraceError(first, types, None if error is None else origin_of_error(error))


# Made by these, an optimizer is better called by what the user wrote.
_COMBINING = {"chain", "named_chain", "with_extra_args_support", "guard", "wrap"}


def _name_of(opt: Any) -> str:
    factory, _, rest = getattr(opt.init, "__qualname__", "").partition(".<locals>")
    if not rest or not factory.isidentifier() or factory in _COMBINING:
        return "opt"
    return f"{factory}(...)"
