"""Audits the precision of a function: the lines that lose it, and what to compute wider."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._carry.call import SplitTree
from .._leaves.arguments import check_arrays, check_number, shown
from .._leaves.casts import Cast, shown as shown_casts
from .._leaves.compat import HAS_BARRIER, has_float64, set_x64
from .._leaves.dtypes import is_wide, kind
from .._leaves.files import short_path
from .._leaves.modules import gathered, spread
from .._leaves.public import public
from .._leaves.types import Args, Aval, DType, Function, Jaxpr, Leaf, PyTree
from .._program.graph import Graph, open_jaxpr
from .._program.origins import Origin, origin_of
from .costs import input_names, line_costs
from .finite import Birth
from .flow import Flow
from .meant import Meant
from .measure import Measures
from .mended import Mended
from .pair import Formats, Line, Paired, is_inexact, jaxprs_in
from .report import LineCost, LineLoss, PrecisionReport, Work
from .work import work_of

_LEAST_SHARE = 0.01
_NOT_TRACED = (
    "audit_precision got this error while it traced the function, as jax.make_jaxpr does: "
    "its arrays have no values there. Write jax.lax.cond or jnp.where in place of a branch "
    "on a value; give a number that decides what is traced as a Python int, and keep a "
    "float of that kind in functools.partial."
)


@public
def audit_precision(
    f: Function,
    *args: PyTree,
    kwargs: Mapping[str, PyTree] | None = None,
    wide: DType = None,
    narrow: DType = None,
    tolerance: float | None = None,
    x64: bool | None = None,
) -> PrecisionReport:
    """Measures which lines of a function lose precision, and which to compute wider.

    It runs the function with a wide value beside every value. The difference that an
    equation adds belongs to its line of source, and each line can be switched between its
    own dtype and the wide one. So errors are measured, and the fix was tried.

    It also counts what the program computes, by dtype, and finds what makes it compute
    wider than necessary: a cast, a constant, random numbers, an input. If an argument has a
    `jax.ShapeDtypeStruct`, it runs nothing and reports these costs alone.

    What it finds holds for the arguments that it is given. A loss is a poor subject, since
    the roundings in one number may cancel: give it a gradient, a train step, or some steps
    in a scan.

    Args:
        f: a function of arrays with floating outputs: a loss, a gradient, a train step.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Bools, ints, functions and
            strings among them stay; the rest is traced.
        kwargs: its keyword arguments.
        wide: the dtype to compare with: float32 if the program has anything narrower, and
            float64 otherwise.
        narrow: if given, the program is run as if all of it were in this dtype, and `fix`
            has the lines that must stay wide. Costs are what is wider than this; by default
            wider than the commonest floating dtype of the inputs.
        tolerance: the relative error that `fix` has to reach; by default what leaves a
            tenth of the squared error.
        x64: whether `jax_enable_x64` is on when `f` is traced; None leaves it alone.

    Returns:
        A `PrecisionReport`; print it.

    Raises:
        TypeError: if `f` is not callable or has no floating output, or an argument has the
            wrong type.
        ValueError: if an output is not finite in wide types either, with the line that
            makes it so; if `narrow` is not narrower than `wide`, or `tolerance` negative.
        NotImplementedError: before JAX 0.5.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> def average(mean, xs):
        ...     step = lambda mean, x: (0.999 * mean + 0.001 * x, None)
        ...     return jax.lax.scan(step, mean, xs)[0]
        >>> start, xs = jnp.ones(3, jnp.bfloat16), jnp.zeros((1000, 3), jnp.bfloat16)
        >>> report = dtypeguard.audit_precision(average, start, xs)
        >>> report.losses[0].constant, round(report.left, 2)
        ('0.999 -> 1', 0.0)
    """
    return audit_call(f, args, kwargs, wide, narrow, tolerance, x64)


def audit_call(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None = None,
    wide: DType = None,
    narrow: DType = None,
    tolerance: float | None = None,
    x64: bool | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> PrecisionReport:
    """`audit_precision` of a call; calls `tell` with what it is about to do."""
    if not HAS_BARRIER:
        raise NotImplementedError(
            "audit_precision needs JAX >= 0.5: older releases leave out roundings."
        )
    if not callable(f):
        raise TypeError(
            f"audit_precision got {shown(f)}. Write audit_precision(f, *args), with a "
            "function of arrays."
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(
            f"audit_precision got kwargs={shown(kwargs)}. Write a dict of the function's "
            'keyword arguments, such as kwargs={"train": True}.'
        )
    if tolerance is not None:
        remedy = "write a relative error from 0 up, such as 1e-3"
        check_number("audit_precision", "tolerance", tolerance, lambda x: x >= 0, remedy)
    given = SplitTree(spread((args, dict(kwargs or {}))), static=(bool, int))
    _check_given(given)
    with contextlib.nullcontext() if x64 is None else set_x64(x64):
        outputs: dict[str, Any] = {}

        def run(*arrays):
            args, kwargs = gathered(given.merged(arrays))
            result = SplitTree(spread((f(*args, **kwargs), args, kwargs)))
            # What the function changes in place is an output as well.
            made = [
                (path.removeprefix("[0]"), leaf)
                for path, leaf in zip(result.paths, result.arrays)
                if path.startswith("[0]") or not any(leaf is x for x in arrays)
            ]
            outputs["paths"] = [path for path, _ in made]
            return [leaf for _, leaf in made]

        tell("tracing")
        runs = not any(isinstance(x, jax.ShapeDtypeStruct) for x in given.arrays)
        # What JAX has traced before it does not trace again, and no number is seen.
        with _never_traced(), Meant() if runs else contextlib.nullcontext(Meant()) as meant:
            try:
                program = jax.make_jaxpr(run)(*given.arrays)
            except Exception as error:
                error.add_note(_NOT_TRACED)
                raise
    formats = Formats(*_formats(program, wide, narrow))
    paths = [p for p, x in zip(outputs["paths"], program.out_avals) if is_inexact(x)]
    if not paths:
        raise TypeError(
            f"audit_precision got {shown(f)}, which returns no floating array: give it a "
            "function that returns what is to be exact, such as a loss or a gradient."
        )
    graph = Graph(program)
    work = work_of(graph, narrow)
    flow = None
    if work.narrow is not None and work.wide:
        narrow_dtype = jnp.dtype(work.narrow)
        names = input_names(f, given.paths, given.arrays, narrow_dtype)
        flow = Flow(graph, narrow_dtype, names)
    if not runs:
        costs = line_costs(flow, lambda _: math.nan) if flow else ()
        return _costs_alone(formats, work, costs)
    needs_x64 = formats.wide == np.float64 or any(map(is_wide, _avals(program)))
    on = set_x64(True) if needs_x64 else contextlib.nullcontext()
    with on, jax.disable_jit(False):
        paired = Paired(program, formats, meant)
        tell("compiling")
        arrays = [jnp.asarray(x, v.dtype) for x, v in zip(given.arrays, program.in_avals)]
        measures = Measures(paired, arrays)
        is_known = math.isfinite(measures.total) and all(
            bool(jnp.isfinite(x).all()) for x in measures.exact
        )
        written, in_wide = ([], []) if is_known else measures.not_finite()
        if in_wide:
            wrong = [p for p, x in zip(paths, measures.exact) if not jnp.isfinite(x).all()]
            raise ValueError(
                f"audit_precision: {', '.join(filter(None, wrong)) or 'the output'} of "
                f"{shown(f)} is not finite in {formats.wide} either. First "
                f"{_cause(in_wide[0], given.paths)} is not. Give it arguments for which "
                "all are finite."
            )
        where = origin_of(written[0].stack) if written else None
        report = _report(paired, measures, formats, paths, tolerance, tell)
        tell("measuring costs")
        costs = line_costs(flow, _harms(program, flow, arrays)) if flow else ()
        return dataclasses.replace(report, not_finite=where, work=work, costs=costs)


def _cause(birth: Birth, paths: Sequence[str]) -> str:
    """The input or the line of source whose value is not finite."""
    if birth.number is not None:
        path = paths[birth.number]
        return f"the input {path.replace('[0]', 'args', 1).replace('[1]', 'kwargs', 1)}"
    made = birth.stack[0].primitive.name
    origin = origin_of(birth.stack)
    if origin is None:
        return f"what {made} makes, inside JAX,"
    return f"what {origin.place} makes ({made}), `{origin.users.code}`,"


def _costs_alone(
    formats: Formats, work: Work, costs: tuple[LineCost, ...]
) -> PrecisionReport:
    """A report on a program that was not run."""
    return PrecisionReport(
        error=math.nan,
        outputs={},
        losses=(),
        fix=(),
        left=math.nan,
        explained=None,
        lines=0,
        wide=str(formats.wide),
        narrow=None if formats.narrow is None else str(formats.narrow),
        work=work,
        costs=costs,
    )


def _harms(program: Jaxpr, flow: Flow, arrays: list[Leaf]) -> Callable[[int], float]:
    """The error that it adds if what a source makes wide is narrow."""

    @functools.cache
    def measures() -> tuple[Mended, Measures]:
        mended = Mended(program, flow.narrow, flow.plan())
        return mended, Measures(mended, arrays)

    def harm(source: int) -> float:
        mended, measured = measures()
        return measured.error([n for n, m in enumerate(mended.masks) if m >> source & 1])

    return harm


# A new one would be one more key for all that is jitted, whenever it is made.
_CONTEXT = jax.make_user_context() if hasattr(jax, "make_user_context") else None


def _never_traced() -> contextlib.AbstractContextManager[None]:
    """A context that is part of the keys of JAX's caches, and that no trace was made in."""
    return contextlib.nullcontext() if _CONTEXT is None else _CONTEXT(object())


def _report(
    paired: Paired,
    measures: Measures,
    formats: Formats,
    paths: list[str],
    tolerance: float | None,
    tell: Callable[[str], None],
) -> PrecisionReport:
    numbers = range(measures.lines if measures.total else 0)
    shares = []
    for number in numbers:
        tell(f"measuring line {number + 1} of {measures.lines}")
        shares.append(measures.share(number))
    is_finite = bool(np.isfinite(shares).all())
    one = functools.cache(measures.alone)
    if not is_finite:  # what overflows first, then by the error alone
        alone = [one(number) for number in numbers]
        worst = max((x for x in alone if np.isfinite(x)), default=1.0) or 1.0
        squares = [min(x / worst, 1e3) ** 2 for x in alone]
        shares = [x / (sum(squares) or 1.0) for x in squares]
    # Where roundings cancel, a share depends on the lines before.
    cancel = sum(map(abs, shares)) > 2
    weight = one if cancel else lambda number: abs(shares[number])
    order = sorted(numbers, key=lambda number: -weight(number))
    tell("looking for a small set of lines")
    fix = measures.fix(order, tolerance)
    losses = {
        number: _loss(
            paired.lines[number],
            formats,
            share=shares[number],
            alone=one(number),
            left=measures.left([number]),
        )
        for number in order
        if abs(shares[number]) > _LEAST_SHARE or number in fix
    }
    return PrecisionReport(
        error=measures.total,
        outputs=dict(zip(paths, measures.by_output)),
        losses=tuple(losses.values()),
        fix=tuple(losses[number] for number in fix),
        left=measures.left(fix),
        explained=float(sum(shares)) if is_finite else None,
        lines=measures.lines,
        wide=str(formats.wide),
        narrow=None if formats.narrow is None else str(formats.narrow),
        tolerance=tolerance,
        not_examined=tuple(sorted(paired.unknown)),
    )


def _loss(line: Line, formats: Formats, **measured: float) -> LineLoss:
    return LineLoss(
        origin=line.origin,
        **measured,
        dtypes=tuple(sorted(line.dtypes)),
        constant=_constant(line),
        remedy=_remedy(line, formats),
        cast=shown_casts([*line.casts]) if line.casts else None,
    )


def _constant(line: Line) -> str | None:
    if not line.constants:
        return None
    change = lambda number: abs(line.constants[number] - number) / abs(number)
    meant = max(line.constants, key=change)
    return f"{meant:g} -> {line.constants[meant]:g}"


_APPLY_UPDATES = (
    os.path.join("optax", "_src", "update.py"),
    os.path.join("equinox", "_update.py"),
)
_STOCHASTICALLY = "dtypeguard.apply_updates(params, updates, key=key)"


def _remedy(line: Line, formats: Formats) -> str:
    """What to write for a line."""
    wide = f"jnp.{formats.wide}"
    if line.origin is None:
        return f"Keep the inputs in {wide}."
    if line.casts:
        is_stochastic = not line.primitives.isdisjoint(("jit", "pjit"))
        return _remedy_of_casts(line.origin, [*line.casts], is_stochastic, wide)
    if not line.origin.file:
        made = ", ".join(sorted(line.primitives))
        return f"Call it with {wide}: no line outside JAX leads to {made}."
    where = line.origin.place
    if short_path(line.origin.file) in _APPLY_UPDATES:
        return (
            f"{where} rounds the new params: write {_STOCHASTICALLY}, which rounds them "
            f"stochastically, or keep them in {wide}."
        )
    is_narrow = any(jnp.dtype(dtype).itemsize < 4 for dtype in line.dtypes)
    is_cast = line.primitives == {"convert_element_type"}
    if line.origin.is_of_optimizer and is_narrow and not is_cast:
        return (
            f"{where} rounds inside the optimizer: write dtypeguard.guard(opt, policy="
            f"dtypeguard.Policy(compute_dtype={wide})), which computes and keeps its state "
            f"in {formats.wide}. {_STORED}"
        )
    if line.primitives == {"dot_general"}:
        how = f"jnp.dot(..., preferred_element_type={wide})"
    else:
        how = f"x.astype({wide})"
        if "iota" in line.primitives:  # a cast of what is rounded brings nothing back
            how = f"dtype={wide}"
    text = f"Compute {where} in {formats.wide}, and keep what it makes so: {how}."
    if is_cast:
        text = f"Leave out the cast on {where}, or cast to {wide}."
    if line.is_in_loop:
        text += f" Where a loop carries it, start the carry in {formats.wide} as well."
    if formats.wide == np.float64 and not has_float64():
        text += " That needs jax_enable_x64."
    return text


_STORED = (
    'With state_dtype=jnp.bfloat16, rounding="stochastic" it is stored in bfloat16 and '
    "rounded at random."
)


def _remedy_of_casts(
    origin: Origin, casts: list[Cast], is_stochastic: bool, wide: str
) -> str:
    """What to write where dtypeguard itself rounds."""
    owner = casts[0].owner
    begin = f"On {origin.place}, {shown_casts(casts)} rounds"
    if owner == "apply_updates":
        at_random = "" if is_stochastic else f"write {_STOCHASTICALLY}, or "
        return f"{begin} the new params: {at_random}keep them in {wide}."
    policy = f"dtypeguard.Policy(compute_dtype={wide}"
    if owner == "guard" and casts[0].path.startswith("updates"):
        return (
            f"{begin}: write policy={policy}, updates_dtype={wide}) and {_STOCHASTICALLY}."
        )
    if owner == "guard" and is_stochastic:
        return f"{begin} at random: to keep it in {wide}, leave out state_dtype."
    if owner == "guard":
        return (
            f"{begin}: write policy={policy}), which keeps the state in {wide}. {_STORED}"
        )
    return (
        f"{begin}: start it in {wide}, or let it round at random: "
        "dtypeguard.apply_updates(average, change, key=key)."
    )


def _check_given(given: SplitTree) -> None:
    """Checks that there are arrays or shapes, and no tracers."""
    check_arrays("audit_precision", "args", list(given.arrays))
    if any(isinstance(leaf, Tracer) for leaf in given.arrays):
        raise TypeError(
            "audit_precision needs values and got tracers: call it outside of jax.jit, "
            "jax.grad and other transformations, with the transformed function."
        )


def _formats(
    program: Jaxpr, wide: DType, narrow: DType
) -> tuple[np.dtype, np.dtype | None]:
    """The wide and the narrow dtype of an audit.

    Raises:
        TypeError: if one is not a floating dtype.
        ValueError: if the narrow one is not narrower.
    """
    for name, dtype in (("wide", wide), ("narrow", narrow)):
        try:
            is_float = dtype is None or kind(jnp.dtype(dtype)) == "float"
        except TypeError:
            is_float = False
        if not is_float:
            raise TypeError(
                f"audit_precision got {name}={shown(dtype)}. Write a floating dtype, such "
                f"as {name}=jnp.{'float32' if name == 'wide' else 'bfloat16'}."
            )
    is_narrow = lambda x: is_inexact(x) and x.dtype.itemsize < 4
    has_narrow = narrow is not None or any(map(is_narrow, _avals(program)))
    default = np.dtype("float32" if has_narrow else "float64")
    formats = default if wide is None else jnp.dtype(wide)
    narrower = None if narrow is None else jnp.dtype(narrow)
    if formats.itemsize < 4 or (
        narrower is not None and narrower.itemsize >= formats.itemsize
    ):
        raise ValueError(
            f"audit_precision got wide={formats} and narrow={narrower}. Write "
            "wide=jnp.float32 or jnp.float64, and a narrower dtype for narrow."
        )
    return formats, narrower


def _avals(jaxpr: Jaxpr) -> Iterator[Aval]:
    """The abstract values of a jaxpr and of those inside it."""
    jaxpr = open_jaxpr(jaxpr)
    yield from (var.aval for var in (*jaxpr.invars, *jaxpr.constvars))
    for eqn in jaxpr.eqns:
        yield from (var.aval for var in eqn.outvars)
        for inside in jaxprs_in(eqn.params):
            yield from _avals(inside)
