"""Audits the precision of a function: the lines that lose it, and what to compute wider."""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._carry.call import SplitTree
from .._carry.modules import gathered, spread
from .._costs.costs import Figures, figures_of, input_names, line_costs
from .._costs.flow import Flow
from .._costs.work import work_of
from .._leaves.arguments import check_arrays, check_kwargs, check_number, shown
from .._leaves.compat import HAS_BARRIER, has_float64, set_x64, traced_anew
from .._leaves.dtypes import is_wide, kind
from .._leaves.public import public
from .._leaves.types import Args, Aval, DType, Function, Jaxpr, Leaf, PyTree
from .._lines.equations import origin_of
from .._paired.finite import Birth
from .._paired.measure import Measures
from .._paired.pair import Paired
from .._paired.primitives import is_inexact
from .._paired.products import products_named
from .._paired.python_numbers import PythonNumbers
from .._paired.values import Formats
from .._program.graph import Graph, jaxprs_in, open_jaxpr
from .._source.origin import Origin
from .losses import line_losses
from .products import ProductRuns, formats_of, product_losses
from .report import PrecisionReport
from .runs import Runs
from .updates import unmoved

_NOT_TRACED = (
    "audit_precision got this error while it traced the function, as jax.make_jaxpr does."
)
_NO_VALUES = (
    " Arrays have no values there. Write jax.lax.cond or jnp.where in place of a branch on "
    "a value; give a number that decides what is traced as a Python int, and keep a float "
    "of that kind in functools.partial."
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
    matmul_precision: object = None,
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
        matmul_precision: if given, the program is compared with itself, its products and
            convolutions of float32 operands rounded as another device rounds them: "tpu"
            (bfloat16 operands), "a100" or "h100" (TF32); a name of
            `jax.default_matmul_precision`, or "bfloat16_3x"; or a
            `jax.lax.DotAlgorithmPreset` with float32 sums, or its name. A product that asks
            for a higher precision is not rounded. Costs are left out.

    Returns:
        A `PrecisionReport`; print it. With `matmul_precision`, a `ProductsReport`.

    Raises:
        TypeError: if `f` is not callable or has no floating output, or an argument has the
            wrong type.
        ValueError: if an output is not finite in wide types either, with the line that
            makes it so; if `narrow` is not narrower than `wide`, or `tolerance` negative;
            if `matmul_precision` is unknown, or given with `wide` or `narrow`.
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

    References:
        JAX documentation, "Matmul precision", https://docs.jax.dev/en/latest/201/precision.html:
        float32 products are in bfloat16 on a TPU and in TF32 on recent GPUs by default.
        NVIDIA, "NVIDIA A100 Tensor Core GPU Architecture", 2020, and "NVIDIA H100 Tensor
        Core GPU Architecture", 2022: TF32 has the 8 bits of exponent of float32 and 10 bits
        of mantissa.
    """
    return audit_call(f, args, kwargs, wide, narrow, tolerance, x64, matmul_precision)


def audit_call(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None = None,
    wide: DType = None,
    narrow: DType = None,
    tolerance: float | None = None,
    x64: bool | None = None,
    matmul_precision: object = None,
    show_status: Callable[[str], None] = lambda _: None,
) -> PrecisionReport:
    """`audit_precision` of a call; calls `show_status` with what it is about to do."""
    if not HAS_BARRIER:
        raise NotImplementedError(
            "audit_precision needs JAX >= 0.5: older releases leave out roundings."
        )
    if not callable(f):
        raise TypeError(
            f"audit_precision got {shown(f)}. Write audit_precision(f, *args), with a "
            "function of arrays."
        )
    check_kwargs("audit_precision", {} if kwargs is None else kwargs)
    if tolerance is not None:
        right = "write a relative error from 0 up, such as 1e-3"
        check_number("audit_precision", "tolerance", tolerance, lambda x: x >= 0, right)
    given = SplitTree(spread((args, dict(kwargs or {}))), static=(bool, int))
    check_arrays("audit_precision", "args", list(given.arrays))
    if any(isinstance(leaf, Tracer) for leaf in given.arrays):
        raise TypeError(
            "audit_precision needs values and got tracers: call it outside of jax.jit, "
            "jax.grad and other transformations, with the transformed function."
        )
    runs = not any(isinstance(x, jax.ShapeDtypeStruct) for x in given.arrays)
    products = None
    if matmul_precision is not None:
        products = products_named(matmul_precision)
        if not runs:
            raise TypeError(
                "audit_precision got matmul_precision and jax.ShapeDtypeStructs, which "
                "have no values to round. Give it arrays."
            )
    show_status("tracing")
    program, paths, numbers, has_double = _traced(f, given, x64, runs)
    graph = Graph(program)
    if products is not None:
        formats, numbers = formats_of(products, wide, narrow), PythonNumbers()
    else:
        formats = _formats(list(_avals(program)), wide, narrow)
    if not paths:
        raise TypeError(
            f"audit_precision got {shown(f)}, which returns no floating array: give it a "
            "function that returns what is to be exact, such as a loss or a gradient."
        )
    work = work_of(graph, narrow) if products is None else None
    flow = None
    if work is not None and work.narrow is not None and work.wide:
        flow = Flow(graph, jnp.dtype(work.narrow), input_names(f, given.paths))
    figures: list[Figures] = []
    if flow is not None:
        figures += figures_of(flow, functools.partial(_again, f, given, x64, flow))
    if not runs:
        costs = line_costs(figures, lambda *_: math.nan)
        return PrecisionReport(**formats.names, work=work, costs=costs)
    needs_x64 = formats.wide == np.float64 or any(map(is_wide, _avals(program)))
    on = set_x64(True) if needs_x64 else contextlib.nullcontext()
    with on, jax.disable_jit(False):
        show_status("compiling")
        arrays = [jnp.asarray(x, v.dtype) for x, v in zip(given.arrays, program.in_avals)]
        measures = Measures(Paired(program, formats, numbers), arrays)
        not_finite = _checked(f, measures, given.paths, paths)
        show_status("running it plainly")
        make_runs = Runs if products is None else ProductRuns
        runs = make_runs(program, measures.paired, arrays)
        vanishing = {n: runs.by_output[n] for n in runs.vanishing()}
        left_out = [*vanishing] if len(vanishing) < len(paths) else []
        if left_out:
            measures.leave_out(left_out)
            runs.leave_out(left_out)
        make: Callable[..., PrecisionReport] = PrecisionReport
        if isinstance(runs, ProductRuns):
            found = product_losses(measures, runs, tolerance, show_status)
            make = runs.report
        else:
            found = line_losses(measures, runs, has_double, tolerance, show_status)
        show_status("measuring costs")
        harm = _harms(flow, runs) if flow else lambda *_: math.nan
        costs = line_costs(figures, harm)
        stuck = unmoved(graph, arrays, runs.written, runs.exact) if work else {}
    errors = dict(zip(paths, runs.by_output))
    return make(
        **found._asdict(),
        **formats.names,
        error=runs.total,
        flipped=runs.flipped(measures.total),
        decisions=runs.decisions,
        turns_differ=runs.turns_differ,
        compiled=runs.compiled,
        once=runs.once,
        outputs={p: x for n, (p, x) in enumerate(errors.items()) if n not in left_out},
        unmoved={paths[n]: share for n, share in stuck.items() if n not in left_out},
        is_of_gradients=runs.has_gradients and not stuck and work is not None,
        lines=measures.lines,
        tolerance=tolerance,
        not_examined=tuple(sorted(measures.paired.unknown)),
        vanishing={paths[n]: error for n, error in vanishing.items()},
        not_finite=not_finite,
        work=work,
        costs=costs,
    )


class _Traced(NamedTuple):
    """A traced function.

    Attributes:
        program: its jaxpr.
        paths: of its floating outputs.
        numbers: the Python numbers that it gave to JAX; none if it does not run.
        has_float64: whether JAX makes a float64 array for the caller who names that dtype.
    """

    program: Jaxpr
    paths: list[str]
    numbers: PythonNumbers
    has_float64: bool


def _traced(
    f: Function,
    given: SplitTree,
    x64: bool | None,
    runs: bool,
    arrays: Sequence[Leaf] | None = None,
) -> _Traced:
    outputs: list[str] = []

    def run(*arrays):
        args, kwargs = gathered(given.merged(arrays))
        result = SplitTree(spread((f(*args, **kwargs), args, kwargs)))
        # What the function changes in place is an output as well.
        made = [
            (path.removeprefix("[0]"), leaf)
            for path, leaf in zip(result.paths, result.arrays)
            if path.startswith("[0]") or not any(leaf is x for x in arrays)
        ]
        outputs[:] = [path for path, _ in made]
        return [leaf for _, leaf in made]

    numbers = PythonNumbers()
    with contextlib.ExitStack() as stack:
        if x64 is not None:
            stack.enter_context(set_x64(x64))
        # What JAX has traced before it does not trace again, and no number is seen.
        stack.enter_context(traced_anew())
        if runs:
            stack.enter_context(numbers)
        try:
            program = jax.make_jaxpr(run)(*(given.arrays if arrays is None else arrays))
        except Exception as error:
            of_values = jax.errors.JAXTypeError, jax.errors.JAXIndexError
            is_of_value = isinstance(error, of_values) or "hashable" in str(error)
            error.add_note(_NOT_TRACED + (_NO_VALUES if is_of_value else ""))
            raise
        has_double = has_float64()
    paths = [path for path, x in zip(outputs, program.out_avals) if is_inexact(x)]
    return _Traced(program, paths, numbers, has_double)


def _checked(
    f: Function, measures: Measures, given: Sequence[str], outputs: Sequence[str]
) -> Origin | None:
    """The line that makes the first value that is not finite as written, if there is one.

    Raises:
        ValueError: if a value is not finite in wide types either, or the program returns
            other numbers each time.
    """
    unknown = measures.paired.unknown
    if unknown and not measures.is_repeatable():
        raise ValueError(
            f"audit_precision: {shown(f)} returns other numbers each time it runs on "
            f"the same arguments, and {', '.join(sorted(unknown))} runs as written. Draw "
            "random numbers with jax.random and a key, and let a callback return the same "
            "for the same arguments."
        )
    wrong = [p for p, x in zip(outputs, measures.exact) if not jnp.isfinite(x).all()]
    if math.isfinite(measures.total) and not wrong:
        return None
    written, in_wide = measures.not_finite()
    if in_wide:
        raise ValueError(
            f"audit_precision: {', '.join(filter(None, wrong)) or 'the output'} of "
            f"{shown(f)} is not finite in {measures.paired.formats.wide} either. First "
            f"{_cause(in_wide[0], given)} is not. Give it arguments for which all are "
            "finite."
        )
    return origin_of(written[0].stack) if written else None


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


def _again(
    f: Function,
    given: SplitTree,
    x64: bool | None,
    flow: Flow,
    inputs: Collection[int],
) -> Flow | None:
    """What makes a function wide if some of its inputs are narrow.

    None if it does not trace so, or is another program then: it may ask for dtypes, or keep
    something from one trace to the next.
    """
    shapes = [
        jax.ShapeDtypeStruct(jnp.shape(x), flow.narrow) if n in inputs else x
        for n, x in enumerate(given.arrays)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first trace has warned
        try:
            program = _traced(f, given, x64, False, shapes).program
            found = Flow(Graph(program), flow.narrow, flow.inputs)
        except Exception:
            return None
    work, same_work = (sum(each.work.values()) for each in (found, flow))
    return found if math.isclose(work, same_work) else None


def _harms(flow: Flow, runs: Runs) -> Callable[[Flow, int], float]:
    """The error that it adds if what a source makes wide is narrow.

    Not a number for a source that shows only in another program.
    """
    plan = flow.plan()

    @functools.cache
    def of(equations: frozenset[tuple[int, ...]]) -> float:
        return runs.harm(equations, flow.narrow)

    def harm(known: Flow, source: int) -> float:
        if known is not flow:
            return math.nan
        return of(frozenset(key for key, mask in plan.items() if mask >> source & 1))

    return harm


def _formats(avals: Sequence[Aval], wide: DType, narrow: DType) -> Formats:
    """The dtypes of an audit of a program with these values.

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
    narrower = None if narrow is None else jnp.dtype(narrow)
    has_narrow = narrower is not None and narrower.itemsize < 4
    has_narrow = has_narrow or any(map(is_narrow, avals))
    default = np.dtype("float32" if has_narrow else "float64")
    target = default if wide is None else jnp.dtype(wide)
    if target.itemsize < 4:
        raise ValueError(
            f"audit_precision got wide={target}, which rounds. Write wide=jnp.float32 or "
            "wide=jnp.float64."
        )
    if narrower is not None and narrower.itemsize >= target.itemsize:
        beside = f"the {target} that it compares with" if wide is None else f"wide={target}"
        wider = ", or wide=jnp.float64" if narrower.itemsize < 8 else ""
        raise ValueError(
            f"audit_precision got narrow={narrower}, which is not narrower than {beside}. "
            f"Write a narrower dtype for narrow, such as narrow=jnp.bfloat16{wider}."
        )
    return Formats(target, narrower)


def _avals(jaxpr: Jaxpr) -> Iterator[Aval]:
    """The abstract values of a jaxpr and of all inside it.

    A `Graph` leaves out the condition of a loop, and what a scatter applies.
    """
    jaxpr = open_jaxpr(jaxpr)
    yield from (var.aval for var in (*jaxpr.invars, *jaxpr.constvars))
    for eqn in jaxpr.eqns:
        yield from (var.aval for var in eqn.outvars)
        for inside in jaxprs_in(eqn.params):
            yield from _avals(inside)
