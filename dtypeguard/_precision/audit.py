"""Audits the precision of a function: the lines that lose it, and what to compute wider."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from .._costs.costs import NO_WORK, input_names, work_of
from .._leaves.arguments import check_number, shown
from .._leaves.types import Args, DType, Function, Kwargs, PyTree, public
from .._numbers.formats import Formats, checked_products
from .._numbers.subject import Subject, formats_of
from .._program.aligned import NO_ALIGNMENT
from .._program.graph import Graph
from .._reference.comparison import comparison
from .curve import search_in_time
from .integers import misfits, narrowed_bits
from .losses import with_losses
from .planned import BUDGET, PlannedInputs, has_plan, inputs_of
from .prepared import (
    Show,
    check_progress,
    first_bad_line,
    prepared_program,
    status,
)
from .report import PrecisionReport
from .rounded import unknown_in_program
from .rows import OutputError, PlainRun
from .time_limit import TimeLimit


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
    reference: PyTree = None,
    progress: bool | None = None,
    also: Sequence[Args] = (),
    held_out: Sequence[Args] = (),
    budget: int = BUDGET,
    seconds: float | None = 60,
) -> PrecisionReport:
    """Measures which lines of a function lose precision, and which to compute wider.

    It runs the function equation by equation, as written and in wider dtypes. The
    difference that an equation adds belongs to its line of source, and each line can run in
    its own dtype or in the wide one. So errors are measured, and the fix was tried.

    It also counts what the program computes, by dtype, and finds what makes it compute
    wider than necessary: a cast, a constant, random numbers, an input. If an argument has a
    `jax.ShapeDtypeStruct`, it runs nothing and reports these costs alone.

    Given a reference, it says whether rounding explains how the outputs differ from it, and
    of a function also at which lines the two begin to differ.

    What it finds holds for the arguments that it is given. A loss is a poor subject, since
    the roundings in one number may cancel: give it a gradient, a train step, or some steps
    in a scan.

    Args:
        f: a function of arrays with floating outputs: a loss, a gradient, a train step. Of
            one that returns ints and bools alone, it is counted how many differ.
            A Flax NNX module, or a method of one, is the first argument of itself. What it
            changes in place in an argument is an output: `[1][0].mean` is of the first one.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Bools, ints, functions and
            strings among them stay; the rest is traced.
        kwargs: its keyword arguments.
        wide: the dtype to compare with: float32 if the program has anything narrower, and
            float64 otherwise.
        narrow: if given, the program is run as if all of it were in this dtype, and `fix`
            has the lines that must stay wide. Costs are what is wider than this; by default
            wider than the commonest floating dtype of the inputs.
        tolerance: the relative error that `fix` has to reach; by default what leaves a
            tenth of the squared error. With `narrow`, `plan` and `search` have the plan
            within it in place of `fix`, for [`dtypeguard.autocast`][].
        x64: whether `jax_enable_x64` is on when `f` is traced; None leaves it alone.
        matmul_precision: if given, the program is compared with itself, its products and
            convolutions of float32 operands rounded as another device rounds them: "tpu"
            (bfloat16 operands), "a100" or "h100" (TF32); or "bfloat16", "bfloat16_3x",
            "tensorfloat32", "float32". A product that asks for a higher precision is not
            rounded. Costs are left out.
        reference: what the outputs should be: a tree of arrays of the shapes of the
            outputs, of NumPy or what `numpy.asarray` takes; a dict of them by path; or a
            function of the same arguments. `PrecisionReport.differences` has the verdicts.
        progress: whether to show what it is at; None for on a terminal alone.
        also: tuples of more arguments, of the same types and shapes: the plan is within the
            tolerance on these as well.
        held_out: tuples of arguments that the search for the plan does not see. Their
            errors stand beside the others.
        budget: how many runs this search may make; 0 for no plan.
        seconds: after so many seconds no more lines are measured, of which the most
            important ones come first; None for all of them, 0 for none. A plan is searched
            in half of that time. The error is measured before, and does not depend on it.

    Returns:
        A `PrecisionReport`; print it.

    Raises:
        TypeError: if `f` is not callable, has no floating output and computes nothing with
            floats, or an argument has the wrong type.
        ValueError: if an output is not finite in wide types either, with the line that
            makes it so; if `narrow` is not narrower than `wide`, or `tolerance` negative;
            if `matmul_precision` is unknown, or given with `wide` or `narrow`;
            if `reference` has another tree or other shapes than the outputs.
        NotImplementedError: before JAX 0.8.

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
    check_progress("audit_precision", progress)
    inputs = inputs_of("audit_precision", also, held_out, kwargs, budget)
    if seconds is not None:
        check_number(
            "audit_precision",
            "seconds",
            seconds,
            lambda x: x >= 0,
            "write how many seconds, 0 for none, or None for as many as it takes",
        )
    with status(progress) as show:
        report = audit_call(
            f,
            args,
            kwargs,
            wide,
            narrow,
            tolerance,
            matmul_precision,
            reference,
            show,
            inputs,
            seconds,
            x64,
        )
    if report.unreached is not None and report.unreached.is_interrupted:
        # An exception returns nothing, and the user has waited for these figures.
        print(report)
        raise KeyboardInterrupt
    return report


def audit_call(
    f: Function,
    args: Args,
    kwargs: Kwargs | None,
    wide: DType,
    narrow: DType,
    tolerance: float | None,
    matmul_precision: object,
    reference: PyTree,
    show: Show,
    inputs: PlannedInputs,
    seconds: float | None,
    x64: bool | None = None,
) -> PrecisionReport:
    """`audit_precision` of a call; shows what it is about to do."""
    # From here on, since the user waits for the trace and the first runs as well.
    limit = TimeLimit(seconds)
    if tolerance is not None:
        check_number(
            "audit_precision",
            "tolerance",
            tolerance,
            lambda x: x >= 0,
            "write a relative error from 0 up, such as 1e-3",
        )
    subject = Subject(f, args, kwargs, x64)
    products = None
    if matmul_precision is not None:
        products = checked_products(matmul_precision)
        if wide is not None or narrow is not None:
            raise ValueError(
                f"audit_precision got matmul_precision={products!r} with wide or narrow. "
                "It compares the program in its own dtypes with itself, and rounds "
                "products alone. Leave out the others, or audit twice."
            )
        subject.check_values("matmul_precision", "round")
    show("tracing")
    traced = subject.traced(is_planned=tolerance is not None and narrow is not None)
    if not traced.paths:
        raise TypeError(
            f"audit_precision got {shown(f)}, which returns no floating array, and nothing "
            "that floats decide: give it a function that returns what is to be exact, such "
            "as a loss or a gradient."
        )
    graph = Graph(traced.program)
    work = NO_WORK
    if products is not None:
        # Both sides compute in the program's own dtypes, and differ in their products
        # alone.
        formats = Formats(np.dtype("float32"), products=products)
    else:
        formats = formats_of(traced.avals, wide, narrow)
        work = work_of(graph, input_names(subject.call, subject.given.key_paths), narrow)
    compare = None
    if reference is not None:
        # Before anything runs: a reference of other shapes is refused at once.
        subject.check_values("reference", "compare")
        compare = comparison(reference, subject, traced, formats)
    run = PlainRun(
        wide=str(formats.wide),
        narrow=formats.narrow and str(formats.narrow),
        tolerance=tolerance,
        matmul_precision=products,
    )
    # Types are enough to count costs, and nothing can be run.
    if not subject.has_values:
        return PrecisionReport(work=work, run=run)
    with prepared_program(subject, traced, graph, formats, show) as prepared:
        measures = prepared.measures
        runs = prepared.runs
        show("comparing with the reference")
        compared = {} if compare is None else compare(measures.arrays)
        show("looking at integers")
        report = PrecisionReport(
            error=runs.total,
            outputs={
                path: OutputError(
                    error=runs.by_output[number],
                    unmoved=runs.unmoved(number),
                    vanishes=number in runs.vanishing,
                )
                for number, path in enumerate(traced.paths)
            },
            not_finite=first_bad_line(prepared),
            work=work,
            rounded=prepared.rounded,
            unknown=unknown_in_program(measures.program),
            is_traced_wide=traced.traces.wide is not NO_ALIGNMENT,
            integers=misfits(measures),
            narrowed=tuple(narrowed_bits(measures)),
            run=run._replace(
                compiled=runs.compiled(),
                is_of_integers=not measures.are_floats,
                raises=measures.raises,
            ),
            **compared,
        )
        # The truth comes first: nothing of it depends on the time for lines.
        show.headline(f"precision: {report.headline}")
        # Each run asks, so that a phase ends between two runs wherever it is.
        measures.before_run = limit.check
        if tolerance is not None and inputs.budget and has_plan(formats):
            search = search_in_time(prepared, tolerance, inputs, limit)
            report = dataclasses.replace(report, search=search)
        return with_losses(report, prepared, limit)
