"""For the tests of optimizers and steps: checks that they keep their types."""

import functools
import inspect
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._audit.audit import name_of
from ._audit.examine import check_x64
from ._audit.subjects import StepCall, guard_code, guard_step_code, policies_to_try
from ._guard.guard import guard
from ._leaves.arguments import (
    check_arrays,
    check_number,
    checked_names,
    is_transformation,
    shown,
)
from ._leaves.table import columns
from ._leaves.types import Function, Optimizer, Params, PyTree, Step, Updates
from ._lock.check import compared
from ._lock.lock_file import lock_text
from ._lock.step import lock_of
from ._precision.audit import audit_precision
from ._precision.curve import check_call
from ._precision.planned import inputs_of
from ._precision.prepared import check_progress, counted, status
from ._sweep.checks import (
    RULES as _RULES,
    STEP_RULES as _STEP_RULES,
    StepTrial,
    broken,
    broken_by_step,
    one_line,
)
from ._sweep.inputs import (
    CONFIGURATION_NAMES as _CONFIGURATION_NAMES,
    CONFIGURATIONS,
    Entry,
)

__all__ = [
    "check_contract",
    "check_lock",
    "check_precision",
    "check_step",
    "parametrize_with_checks",
]


_OPTIMIZER = (
    "Give it a gradient transformation (anything with `init` and `update`) or a function "
    "that returns an optimizer, such as lambda: optax.adam(1e-3)."
)


def check_contract(
    opt_or_factory: Optimizer | Callable[[], Optimizer],
    params: Params = None,
    *,
    updates: Updates = None,
    extra_args: dict[str, Any] | None = None,
    configurations: str | Iterable[str] | None = None,
    rules: str | Iterable[str] | None = None,
    progress: bool | None = None,
) -> None:
    """Checks that an optimizer keeps its types wherever JAX needs it to.

    The rules: the first state is the same if `init` is traced; states and updates keep
    their types; `scan`, `cond` and `while_loop` accept the optimizer; a jitted step
    compiles once; its buffers can be donated; a checkpoint loads back into the
    tree of the state; no operation is 64-bit if no input is.

    Each rule is checked over dtypes of params and gradients, with `jax_enable_x64` off and
    on, and with `jax_explicit_x64_dtypes` at "allow" and "error" where JAX has it. The
    flags are restored; the last one belongs to the whole process. Nearly everything is
    traced and does not run.

    Args:
        opt_or_factory: a gradient transformation, or a function without arguments that
            returns one and runs again for every configuration.
        params: arrays or `jax.ShapeDtypeStruct`s; by default a matrix and a vector. Each
            configuration casts their floating leaves to its dtypes.
        updates: the gradients, cast likewise; by default `params`.
        extra_args: further keyword arguments of `update`, passed on as they are. By default
            those of Optax (`value`, `value_fn` and so on) that it needs.
        configurations: the names of those to run, "bf16", "bf16/f32" and so on; by
            default all of them. Those that the policy of a guard refuses do
            not count, such as float64 with x64 off, unless it refuses all of them.
        rules: the names of those to check, "scan" or "donation"; by default all.
        progress: whether to show what it is at; None for on a terminal alone.

    Raises:
        AssertionError: if a rule is broken. Names every broken rule, where and how.
        TypeError: if `opt_or_factory` is neither, its function returns something else, or
            an argument is of the wrong type.
        ValueError: if a rule or configuration is unknown.

    Example:
        >>> import dtypeguard, optax
        >>> check_contract(dtypeguard.guard(optax.adam(1e-3)), configurations=["bf16"])
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    rules = _chosen_names("rule", rules, _RULES)
    configurations = _chosen_names("configuration", configurations, _CONFIGURATION_NAMES)
    check_arrays("check_contract", "params", params)
    check_arrays("check_contract", "updates", updates)
    if extra_args is not None:
        extra_args = checked_names("check_contract", "extra_args", extra_args)
    check_progress("check_contract", progress)
    make = _maker(opt_or_factory)
    # An optimizer may hold arrays of its own: each configuration makes it under its flags.
    entry = Entry("optimizer", make, params, updates, extra_args)
    # A name stands for two configurations: with x64 off and on.
    chosen = [c for c in CONFIGURATIONS if c.name in configurations]
    with status(progress) as show_status:
        failures = broken(
            entry,
            rules,
            counted(chosen, show_status, "check_contract: configuration"),
        )
    if not failures:
        return
    rows = []
    for rule, places in failures.items():
        # One place shows the rule; a table of all would hide the cause.
        configuration, error = places[0]
        elsewhere = f" (and in {len(places) - 1} more)" if len(places) > 1 else ""
        rows.append((rule, configuration.where + elsewhere, one_line(error)))
    # Guards are tried where a rule is broken first.
    first_places = {places[0][0] for places in failures.values()}
    name = _name_in_report(opt_or_factory)
    attempts = []
    for policy in policies_to_try(make()):
        wrap = functools.partial(guard, policy=policy)
        remaining = broken(entry, failures, first_places, wrap)
        attempts.append((f"Wrap it: {guard_code(name, policy)}.", list(remaining)))
    # A guard alone comes first: with a policy the state takes more memory.
    write, remaining = min(attempts, key=lambda attempt: len(attempt[1]))
    raise _contract_error(name, "the contract", rows, "guard", write, remaining)


def check_step(
    step: Step,
    /,
    *args: Any,
    carry: int | str | tuple[int | str, ...] = 0,
    returned: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    rules: str | Iterable[str] | None = None,
) -> None:
    """Checks that a step keeps the types of its carry wherever JAX needs it to.

    The rules, under the flags as they are: one step keeps the types of the carry; `scan`,
    `cond` beside no step, and `while_loop` accept it; a jitted step compiles once; its
    buffers can be donated. Everything is traced and does not run.

    Args:
        step: a function that takes a carry and returns it, guarded or not.
        *args: its arguments, with arrays or `jax.ShapeDtypeStruct`s for leaves. Python
            numbers outside the carry, functions and strings are passed on as they are.
        carry: the argument that comes back, by position or name, or a tuple of them.
        returned: the item of the result that it comes back as, or a tuple of as many; by
            default as in [`dtypeguard.guard_step`][].
        kwargs: its arguments by name.
        rules: the names of those to check, "scan" or "donation"; by default all.

    Raises:
        AssertionError: if a rule is broken. Names every broken rule, how it is broken, and
            what to write.
        TypeError: if `step` is not callable, `carry` is no position or name, or `kwargs` no
            dict with strings as keys.
        ValueError: if a rule is unknown, or the step has no such argument.

    Example:
        >>> import dtypeguard, jax.numpy as jnp
        >>> def step(average, x):
        ...     return 0.9 * average + 0.1 * x, None
        >>> average, x = jnp.zeros(3, jnp.bfloat16), jnp.ones(3, jnp.float32)
        >>> check_step(dtypeguard.guard_step(step), average, x)
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    rules = _chosen_names("rule", rules, _STEP_RULES)
    kwargs = checked_names("check_step", "kwargs", kwargs)
    call = StepCall(step, args, kwargs, carry, returned, owner="check_step")
    trial = StepTrial(call)
    failures = broken_by_step(trial, rules)
    if not failures:
        return
    rows = [(rule, one_line(error)) for rule, error in failures.items()]
    # A guarded step leaves a weak first carry to the caller.
    remaining = broken_by_step(StepTrial(call.guarded().with_strong_carry()), rules)
    names = ", ".join(trial.names)
    names = f"({names})" if len(trial.names) > 1 else names
    begin = f"with dtypeguard.strong({names})."
    # The least that helps is said: no guard, if the first carry alone is at fault.
    if not broken_by_step(StepTrial(call.with_strong_carry()), rules):
        write = f"Begin {begin}"
        remaining = {}
    elif "traces" in remaining:
        reason = one_line(remaining["traces"]).rstrip(".")
        write = f"dtypeguard.guard_step does not fix this: {reason}."
        remaining = {}
    else:
        write = (
            f"Guard it, {guard_step_code(call.name, carry, returned)}, and begin {begin}"
        )
    raise _contract_error(
        call.name, "a step's contract", rows, "guard_step", write, list(remaining)
    )


def _contract_error(
    name: str,
    contract: str,
    rows: Sequence[Sequence[str]],
    guard_name: str,
    write: str,
    remaining: Sequence[str],
) -> AssertionError:
    """Returns the error about the rules that an optimizer or a step breaks.

    It advises what to write, which leaves the remaining rules broken.
    """
    rules = "1 rule" if len(rows) == 1 else f"{len(rows)} rules"
    advice = write
    if len(remaining) == len(rows):
        advice = f"dtypeguard.{guard_name} does not fix this."
    elif remaining:
        advice = f"{write} What it does not fix: {', '.join(remaining)}."
    lines = [f"{name} breaks {rules} of {contract}:"]
    lines.extend(f"  {line}" for line in columns(rows))
    lines.append(f"{advice} dtypeguard.audit names the lines of source.")
    return AssertionError("\n".join(lines))


def check_precision(
    f: Function,
    *args: PyTree,
    max_error: float | None = None,
    max_wide_work: float | None = None,
    reference: PyTree = None,
    plan: str | os.PathLike[str] | None = None,
    **options: Any,
) -> None:
    """Checks that a function is precise, and that it computes no wider than necessary.

    Or that rounding explains how it differs from a reference, which needs no tolerance; or
    that it is within the tolerance of a plan when it runs by that.

    Args:
        f: a function of arrays with floating outputs, as for
            [`dtypeguard.audit_precision`][].
        *args: its arguments. `jax.ShapeDtypeStruct`s suffice without `max_error`.
        max_error: the relative error that is allowed, `PrecisionReport.error`: that of two
            plain runs, as written and in wide types.
        max_wide_work: the share of the operations of matrix products and convolutions that
            may run wider than the inputs or `narrow`, `PrecisionReport.work.wide`.
        reference: what the outputs should be, for `dtypeguard.audit_precision`: no
            output's verdict may be "differs". What is "undecidable" passes.
        plan: the file of a plan for [`dtypeguard.autocast`][]: the function runs by it and
            in wide types. `max_error` is then by default the tolerance of the plan, and of
            the other options `kwargs` and `held_out` apply, tuples of more arguments.
        **options: further arguments of `dtypeguard.audit_precision`.

    Raises:
        AssertionError: if the error or the share is greater, integers do not fit their
            dtype, or the reference is another computation; names the outputs. It has the
            report. Of a plan it names the narrow lines that lose most.
        ValueError: if the file is no plan, or an entry matches nothing in the function;
            names the nearest line.

    Example:
        >>> import jax.numpy as jnp
        >>> from dtypeguard.testing import check_precision
        >>> check_precision(jnp.tanh, jnp.ones(3, jnp.bfloat16), max_error=0.01)
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    _check_bound("max_error", max_error)
    _check_bound("max_wide_work", max_wide_work)
    if plan is not None:
        return _check_plan(f, args, plan, max_error, **options)
    if max_error is None and max_wide_work is None and reference is None:
        raise TypeError(
            "check_precision got nothing to check. Write max_error=1e-2, the relative "
            "error that is allowed, max_wide_work=0.1, the share of work that may be "
            "wide, reference=, what the outputs should be, or plan=, the file of a plan."
        )
    audit = functools.partial(audit_precision, f, *args, reference=reference, **options)
    # No bound is of a line: only the report of a failure has them.
    report = audit(seconds=0)
    # The first fault that matters: numbers of another computation need no bound.
    wrong = [x.name for x in report.differences if x.verdict == "differs"]
    fault = ""
    if report.integers:
        fault = "makes integers that do not fit their dtype"
    elif wrong:
        fault = f"is another computation than the reference in {', '.join(wrong)}"
    # Shapes alone have no error, which is within no bound.
    elif max_error is not None and not report.error <= max_error:
        fault = f"has a relative error of {report.error:.2g}, more than {max_error:g}"
    elif max_wide_work is not None and report.work.wide > max_wide_work:
        fault = (
            f"has {100 * report.work.wide:.3g}% of its matrix products wider than needed, "
            f"more than {100 * max_wide_work:g}%"
        )
    if fault:
        raise AssertionError(f"{getattr(f, '__name__', 'f')} {fault}.\n{audit()}")


def _check_bound(name: str, bound: float | None) -> None:
    if bound is not None:
        check_number(
            "check_precision",
            name,
            bound,
            lambda number: number >= 0,
            "write a relative error or a share from 0 up, such as 0.01",
        )


def check_lock(
    step: Step,
    /,
    *args: PyTree,
    path: str | os.PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
    x64: bool | None = None,
) -> None:
    """Checks that a step computes in the types that a file says.

    The file lists, for each function, the types that products, sums, casts and other
    arithmetic take and give, and those of inputs and outputs. It holds no lines and
    no shapes: moved lines, other batch sizes and other releases of JAX leave it as it is.
    The step is traced and does not run. With `pytest --dtypeguard-lock-update`, or
    `DTYPEGUARD_UPDATE=1` in the environment, the file is written instead.

    Args:
        step: a function of arrays.
        *args: its arguments, with arrays or `jax.ShapeDtypeStruct`s for leaves.
        path: of the file. Source files are named relative to its folder.
        kwargs: its arguments by name.
        x64: whether `jax_enable_x64` is on; by default the caller's setting.

    Raises:
        AssertionError: if the step computes otherwise, or there is no such file. Names each
            line that changed with its types, and how to update the file.
        ValueError: if the file is damaged, or of another step.
        TypeError: if an argument is of the wrong type.

    Example:
        >>> import jax.numpy as jnp
        >>> from dtypeguard.testing import check_lock
        >>> x = jnp.ones(3, jnp.bfloat16)
        >>> try:
        ...     check_lock(jnp.tanh, x, path="tanh.lock")
        ... except AssertionError as error:
        ...     print(str(error).partition(". ")[0])
        check_lock found no tanh.lock
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    kwargs = checked_names("check_lock", "kwargs", kwargs)
    check_x64("check_lock", x64)
    file = os.fspath(path)
    how = (
        "run the test with DTYPEGUARD_UPDATE=1 in the environment or pytest "
        "--dtypeguard-lock-update"
    )
    is_update = os.environ.get("DTYPEGUARD_UPDATE", "") not in ("", "0")
    if not (is_update or os.path.exists(file)):
        raise AssertionError(f"check_lock found no {file}. To write it, {how}.")
    lock_now = lock_of(step, args, kwargs, file, x64, "check_lock")
    # A damaged file is refused also where it is to be written again.
    locked = compared(lock_now, file) if os.path.exists(file) else None
    if is_update:
        # The same bytes on every system.
        pathlib.Path(file).write_text(lock_text(lock_now.lock), "utf-8", newline="\n")
    elif locked and not locked.holds:
        raise AssertionError(locked.report(how))


def _check_plan(
    f: Function,
    args: Sequence[PyTree],
    path: str | os.PathLike[str],
    tolerance: float | None,
    kwargs: Mapping[str, Any] | None = None,
    held_out: Sequence[tuple[PyTree, ...]] = (),
) -> None:
    """Checks that a function by the plan of a file is within the tolerance of the plan."""
    __tracebackhide__ = True
    checked_names("check_precision", "kwargs", kwargs)
    inputs = inputs_of("check_precision", (), held_out, kwargs)
    with status() as show_status:
        checked = check_call(f, tuple(args), kwargs, path, tolerance, inputs, show_status)
    if not checked.is_within:
        raise AssertionError(str(checked))


def parametrize_with_checks(
    optimizers: Iterable[Optimizer] | Mapping[str, Optimizer], **options: Any
) -> Any:
    """Makes one pytest test of every optimizer and rule.

    Args:
        optimizers: transformations, or functions without arguments that return one; a
            dict names them.
        **options: of `check_contract`, for all of them.

    Returns:
        A decorator for a test with the two parameters `optimizer` and `check`. Its ids
        read `adamw-scan`. An optimizer without a name is called after the function that
        made it, or `opt` where that is unknown, as for a chain.

    Raises:
        TypeError: if `optimizers` is a single optimizer.

    Example:
        >>> import dtypeguard, optax
        >>> @parametrize_with_checks([dtypeguard.guard(optax.sgd(1e-3))])
        ... def test_contract(optimizer, check):
        ...     check(optimizer)
    """
    import pytest  # a user of the checks alone need not have it

    if is_transformation(optimizers) or not isinstance(optimizers, Iterable):
        raise TypeError(
            f"parametrize_with_checks got {shown(optimizers)}. Write a list, "
            'parametrize_with_checks([my_optimizer]), or a dict, {"name": my_optimizer}.'
        )
    if isinstance(optimizers, Mapping):
        opt_of_name = list(optimizers.items())
    else:
        # Without brackets, which pytest's -k does not take. Not a dict: two optimizers may
        # have one name.
        opt_of_name = [(_name_in_report(opt).partition("(")[0], opt) for opt in optimizers]
    rules = _chosen_names("rule", options.pop("rules", None), _RULES)
    # Errors in the options belong here, not in each test.
    inspect.signature(check_contract).bind(None, **options)
    params = []
    for name, opt in opt_of_name:
        for rule in rules:
            check = functools.partial(check_contract, rules=(rule,), **options)
            params.append(pytest.param(opt, check, id=f"{name}-{rule}"))
    return pytest.mark.parametrize(("optimizer", "check"), params)


def _name_in_report(opt_or_factory: Optimizer | Callable[[], Optimizer]) -> str:
    """Returns how a message names an optimizer or the function that makes one."""
    if is_transformation(opt_or_factory):
        return name_of(opt_or_factory)
    # The name of a lambda is no identifier.
    name = getattr(opt_or_factory, "__name__", "")
    if name.isidentifier():
        return f"{name}()"
    return "opt"


def _maker(opt_or_factory: Optimizer | Callable[[], Optimizer]) -> Callable[[], Optimizer]:
    """Returns a function that makes an optimizer, or raises a `TypeError`."""
    if is_transformation(opt_or_factory) and not inspect.isclass(opt_or_factory):
        return lambda: opt_or_factory
    if not callable(opt_or_factory):
        raise TypeError(f"check_contract got {shown(opt_or_factory)}. {_OPTIMIZER}")

    def make() -> Optimizer:
        opt = opt_or_factory()
        if not is_transformation(opt):
            raise TypeError(
                f"check_contract got {shown(opt)} from its function. {_OPTIMIZER}"
            )
        return opt

    return make


def _chosen_names(
    noun: str, names: str | Iterable[str] | None, available: Iterable[str]
) -> tuple[str, ...]:
    """Returns the names that the caller chose; all by default."""
    available = tuple(available)
    if names is None:
        return available
    # A single name is a string, of which the letters are no names.
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name not in available:
            raise ValueError(
                f"no {noun} is called {name!r}; there are {', '.join(available)}"
            )
    return names


# Names of 0.1 that go with a later minor version.
_DEPRECATED = {"RULES": tuple(_RULES), "STEP_RULES": tuple(_STEP_RULES)}

if not TYPE_CHECKING:  # so that type checkers see no name beside those above

    def __getattr__(name: str) -> object:
        if name == "check_plan":
            raise AttributeError("check_plan is gone. Use check_precision(f, plan=path).")
        if name not in _DEPRECATED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(
            f"dtypeguard.testing.{name} is deprecated. Use the names that an unknown rule "
            "is answered with.",
            DeprecationWarning,
            stacklevel=2,
        )
        return _DEPRECATED[name]
