"""For the test-suites of people who write optimizers or steps: the types that they keep."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import tree_util

from ._audit.audit import name_of
from ._carry.carry import carry_of
from ._guard.guard import guard
from ._guard.guard_step import guard_step
from ._leaves.arguments import check_arrays, check_extra_args, shown
from ._leaves.dtypes import cast, dtype_of, kind
from ._leaves.functions import is_transformation, parameters, required
from ._leaves.rows import columns
from ._leaves.types import Leaf, Params, PyTree, Updates
from ._sweep.contract import (
    RULES as _RULES,
    STEP_RULES as _STEP_RULES,
    Broken,
    StepTrial,
    broken,
    broken_rules,
)
from ._sweep.entry import Entry, Inputs
from ._sweep.recipes import Recipe
from ._sweep.sweep import CONFIGURATIONS, Configuration

RULES = tuple(_RULES)
"""The names of the rules that `check_contract` checks."""

STEP_RULES = tuple(_STEP_RULES)
"""The names of the rules that `check_step` checks."""

_NAMES = tuple(dict.fromkeys(c.name for c in CONFIGURATIONS))


def check_contract(
    opt_or_factory: Any,
    params: Params = None,
    *,
    updates: Updates = None,
    extra_args: dict[str, Any] | None = None,
    configurations: str | Iterable[str] | None = None,
    rules: str | Iterable[str] = RULES,
) -> None:
    """Checks that an optimizer keeps its types wherever JAX needs it to.

    Over the dtypes of params and gradients, with `jax_enable_x64` off and on, and where JAX
    has `jax_explicit_x64_dtypes` with that at "allow" and "error" (flags are restored; this
    one is the whole process's): one first state whether `init` is traced or not, the types
    of the state and of the updates, `scan`, `cond`, `while_loop`, accumulation in
    `optax.MultiSteps`, one compilation of a jitted step, buffers that can be donated, a
    checkpoint loaded back into the tree of the state, and no 64-bit operation where no
    input is 64-bit. Nearly all of it is traced and not run.

    Args:
        opt_or_factory: a gradient transformation, or a function without arguments that
            returns one and is called again for every configuration.
        params: the params to use, arrays or `jax.ShapeDtypeStruct`s; by default a matrix
            and a vector. Their floating leaves are cast to the dtypes of each
            configuration.
        updates: the gradients, cast likewise; by default `params`.
        extra_args: further keyword arguments of `update`, handed on as they are. By
            default those of Optax (`value`, `value_fn` and so on) that it asks for.
        configurations: the names of those to run, "bf16", "bf16/f32" and so on; by
            default all of `dtypeguard audit`.
        rules: which of `RULES` to check.

    Raises:
        AssertionError: if a rule is broken. One error that names every such rule, where
            and how.
        TypeError: if `opt_or_factory` is neither, its function returns something else, or
            an argument is of the wrong type.
        ValueError: if a rule or configuration is not known.

    Example:
        >>> import dtypeguard, optax
        >>> check_contract(dtypeguard.guard(optax.adam(1e-3)), configurations=["bf16"])
    """
    rules = _known("rules", rules, RULES)
    configurations = _known("configurations", configurations, _NAMES)
    for name, tree in (("params", params), ("updates", updates)):
        check_arrays("check_contract", name, tree)
    if extra_args is not None:
        check_extra_args("check_contract", extra_args)
    make = _maker(opt_or_factory)
    inputs = _feeder(make, params, updates, extra_args)
    chosen = [c for c in CONFIGURATIONS if c.name in configurations]
    found = broken(make, inputs, rules, chosen)
    if failures := list(found):
        mended = lambda failure: (
            not any(
                broken(
                    lambda: guard(make()), inputs, [failure.rule], [failure.configuration]
                )
            )
        )
        raise AssertionError(_tell(_name(opt_or_factory), failures, mended))


def check_step(
    step: Callable[..., Any],
    /,
    *args: Any,
    carry: int | str | tuple[int | str, ...] = 0,
    returned: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    rules: str | Iterable[str] = STEP_RULES,
) -> None:
    """Checks that a step keeps the types of what it carries wherever JAX needs it to.

    Under the flags as they are: the types of one step, the carry in `scan`, in `cond`
    beside no step and in `while_loop`, one compilation of a jitted step, and buffers that
    can be donated. All of it is traced and not run.

    Args:
        step: a function that takes what it carries and returns it, guarded or not.
        *args: its arguments, with arrays or `jax.ShapeDtypeStruct`s for leaves. Python
            numbers that are not carried, functions and strings are handed on as they are.
        carry: the argument that comes back, by position or name, or a tuple of them.
        returned: the item of the result that it comes back as, or a tuple of as many; by
            default as in [`dtypeguard.guard_step`][].
        kwargs: its arguments by name.
        rules: which of `STEP_RULES` to check.

    Raises:
        AssertionError: if a rule is broken. One error that names every such rule and how,
            and what to write.
        TypeError: if `step` or `carry` is nothing of the kind.
        ValueError: if a rule is not known, or the step has no such argument.

    Example:
        >>> import dtypeguard, jax.numpy as jnp
        >>> def step(average, x):
        ...     return 0.9 * average + 0.1 * x, None
        >>> average, x = jnp.zeros(3, jnp.bfloat16), jnp.ones(3, jnp.float32)
        >>> check_step(dtypeguard.guard_step(step), average, x)
    """
    rules = _known("rules", rules, STEP_RULES)
    resolved = carry_of("check_step", step, carry, returned)
    named = dict(kwargs or {})
    trial = StepTrial(step, resolved, args, named)
    if failures := [*broken_rules(trial, rules)]:
        guarded = guard_step(step, carry=carry, returned=returned)
        guarded_trial = StepTrial(guarded, resolved, args, named).begun_strongly()
        left = [*broken_rules(guarded_trial, rules)]
        options = "" if carry == 0 else f", carry={carry!r}"
        options += "" if returned is None else f", returned={returned!r}"
        lines = "\n".join(f"  {line}" for line in columns(failures))
        first = ", ".join(trial.names)
        first = f"({first})" if len(trial.names) > 1 else first
        begin = f"egin with dtypeguard.strong({first})."
        wrap = f"Guard it, dtypeguard.guard_step({resolved.step}{options}), and b{begin}"
        left_over = {failure.rule for failure in left}
        if not [*broken_rules(trial.begun_strongly(), rules)]:
            wrap = f"B{begin}"
        elif "traces" in left_over or left_over >= {rule for rule, _ in failures}:
            wrap = f"dtypeguard.guard_step does not mend this: {left[0].reason}."
        elif left:
            wrap += f" What that does not mend: {', '.join(sorted(left_over))}."
        broken_ones = "1 rule" if len(failures) == 1 else f"{len(failures)} rules"
        raise AssertionError(
            f"{resolved.step} breaks {broken_ones} of a step's contract:\n{lines}\n{wrap} "
            "dtypeguard.audit_step tells the lines of source."
        )


def parametrize_with_checks(
    optimizers: Iterable[Any] | Mapping[str, Any], **options: Any
) -> Any:
    """A decorator that makes one pytest test of every optimizer and rule.

    Args:
        optimizers: transformations or functions without arguments that return one; in a
            dict by the names that they are to have.
        **options: of `check_contract`, for all of them.

    Returns:
        The decorator, for a test of the two parameters `optimizer` and `check`. Its ids
        read `adamw-scan`. What is given no name has that of the function that made it,
        or is called `opt`, since of a chain nothing tells.

    Raises:
        TypeError: if `optimizers` is a single one.

    Example:
        >>> import dtypeguard, optax
        >>> @parametrize_with_checks([dtypeguard.guard(optax.sgd(1e-3))])
        ... def test_contract(optimizer, check):
        ...     check(optimizer)
    """
    import pytest

    if is_transformation(optimizers) or not isinstance(optimizers, Iterable):
        raise TypeError(
            f"parametrize_with_checks got {shown(optimizers)}. Write a list, "
            'parametrize_with_checks([my_optimizer]), or a dict, {"name": my_optimizer}.'
        )
    taken = [*parameters(check_contract)][1:]
    if unknown := [name for name in options if name not in taken]:
        raise TypeError(
            f"parametrize_with_checks takes no {unknown[0]}; it takes {', '.join(taken)}."
        )
    if not isinstance(optimizers, Mapping):
        optimizers = _by_name(optimizers)
    for opt in optimizers.values():
        _maker(opt)
    rules = _known("rules", options.pop("rules", None), RULES)
    _known("configurations", options.get("configurations"), _NAMES)
    return pytest.mark.parametrize(
        ("optimizer", "check"),
        [
            pytest.param(opt, _check(rule, options), id=f"{name}-{rule}")
            for name, opt in optimizers.items()
            for rule in rules
        ],
    )


def _check(rule: str, options: dict[str, Any]) -> Callable[[Any], None]:
    def check(optimizer: Any) -> None:
        check_contract(optimizer, rules=(rule,), **options)

    return check


def _maker(opt_or_factory: Any) -> Callable[[], Any]:
    if is_transformation(opt_or_factory) and not inspect.isclass(opt_or_factory):
        return lambda: opt_or_factory
    if not callable(opt_or_factory):
        raise TypeError(
            f"check_contract got {opt_or_factory!r}. Give it a gradient transformation "
            "(anything with `init` and `update`) or a function without arguments that "
            "returns one."
        )
    if missing := required(opt_or_factory):
        name = _name(opt_or_factory).removesuffix("()")
        raise TypeError(
            f"check_contract got {name}, which needs {', '.join(missing)}. Write "
            f"check_contract(lambda: {name}(...)) or check_contract({name}(...))."
        )
    return functools.partial(_make, opt_or_factory)


def _make(factory: Any) -> Any:
    made = factory()
    if not is_transformation(made):
        raise TypeError(
            f"check_contract called {_name(factory)}, which returned {shown(made)}. Give "
            "it a function that returns an optimizer, such as lambda: optax.adam(1e-3)."
        )
    return made


def _feeder(
    make: Callable[[], Any],
    params: Params,
    updates: Updates,
    extra_args: dict[str, Any] | None,
) -> Callable[[Configuration], Inputs]:
    params, updates = tree_util.tree_map(_as_array, (params, updates))
    entry = Entry("optimizer", make)
    if params is not None:
        leaves, structure = tree_util.tree_flatten(params)
        shapes = {f"{number:06}": jnp.shape(leaf) for number, leaf in enumerate(leaves)}
        rebuild = lambda plain: tree_util.tree_unflatten(
            structure, [plain[name] for name in shapes]
        )
        entry = Entry("optimizer", make, Recipe(None, shapes, rebuild, rebuild))
    if extra_args is not None:
        vars(entry)["extra_names"] = ()

    updates = params if updates is None else updates

    def inputs(configuration: Configuration) -> Inputs:
        made = entry.feed(configuration.params, configuration.grads)
        if params is not None:
            made = made._replace(params=_in(configuration.params, params))
        if updates is not None:
            made = made._replace(updates=_in(configuration.grads, updates))
        return made if extra_args is None else made._replace(extra_args=extra_args)

    return inputs


def _as_array(leaf: Leaf) -> Any:
    is_struct = isinstance(leaf, jax.ShapeDtypeStruct)
    return jnp.ones(leaf.shape, leaf.dtype) if is_struct else leaf


def _in(dtypes: Any, tree: PyTree) -> Any:
    """A tree with its floating leaves in the dtypes of a configuration, dealt in turn."""
    dtypes = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    leaves, structure = tree_util.tree_flatten(tree)
    leaves = [
        cast(leaf, dtypes[number % len(dtypes)])
        if kind(dtype_of(leaf)) == "float"
        else leaf
        for number, leaf in enumerate(leaves)
    ]
    return tree_util.tree_unflatten(structure, leaves)


def _tell(
    name: str, failures: Sequence[Broken], is_mended: Callable[[Broken], bool]
) -> str:
    """Each rule once, with the first place where it is broken and how often it is."""
    by_rule: dict[str, list[Broken]] = {}
    for failure in failures:
        by_rule.setdefault(failure.rule, []).append(failure)
    rows = []
    for rule, places in by_rule.items():
        first = places[0]
        where = (
            f"{first.configuration.name}, x64 {'on' if first.configuration.x64 else 'off'}"
        )
        more = f" (and in {len(places) - 1} more)" if len(places) > 1 else ""
        rows.append((rule, where + more, first.reason))
    lines = "\n".join(f"  {line}" for line in columns(rows))
    rules = "1 rule" if len(rows) == 1 else f"{len(rows)} rules"
    left = [rule for rule, places in by_rule.items() if not is_mended(places[0])]
    wrap = f"Wrap it: dtypeguard.guard({name})."
    if len(left) == len(by_rule):
        wrap = "dtypeguard.guard does not mend this."
    elif left:
        wrap += f" What it does not mend: {', '.join(left)}."
    return (
        f"{name} breaks {rules} of the contract:\n{lines}\n{wrap} "
        "dtypeguard.audit tells the lines of source."
    )


def _name(opt_or_factory: Any) -> str:
    if is_transformation(opt_or_factory):
        return name_of(opt_or_factory)
    name = getattr(opt_or_factory, "__name__", "")
    return f"{name}()" if name.isidentifier() else "opt"


def _by_name(optimizers: Iterable[Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for opt in optimizers:
        name = first = _name(opt).partition("(")[0]
        number = 1
        while name in named:
            number += 1
            name = f"{first}_{number}"
        named[name] = opt
    return named


def _known(what: str, given: Iterable[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """The names that were asked for, all by default."""
    if given is None:
        return tuple(known)
    if not isinstance(given, Iterable):
        raise TypeError(f"got {what}={given!r}. Write a list, such as {what}={[known[0]]}.")
    names = (given,) if isinstance(given, str) else tuple(given)
    if unknown := [name for name in names if name not in known]:
        one = what.removesuffix("s")
        raise ValueError(f"no {one} is called {unknown[0]!r}; there are {', '.join(known)}")
    return names
