"""Remembers which checks updates of some types have passed."""

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
from jax import tree_util

from dtypeguard._testing.checks import Check, OptimizerSubject


class ArgumentTypes(NamedTuple):
    """The types of an update.

    Attributes:
        around: what goes in and comes out besides the state, and the effects.
        of_state: the types before and after of the leaves of the state.
    """

    around: Hashable
    of_state: frozenset[Hashable]


class Passed:
    """Checks that an update has passed; another one of the same types passes them, too.

    Control flow and MultiSteps ask of each leaf of a state by itself whether it keeps its
    type. So a state passes if its leaves have passed, in whatever states.

    A check for which the update was traced with other types than those of the training step
    depends on more, and is not remembered.
    """

    def __init__(self):
        self._known: dict[Hashable, set[Hashable]] = {}

    def skipping(
        self, checks: Mapping[str, Check], subject: OptimizerSubject, *flags: object
    ) -> dict[str, Check]:
        """The checks, except those that are known to pass under these flags.

        Each of the others is remembered once it passes.
        """
        types = _types(subject)
        if types is None:
            return dict(checks)
        keys = {name: (name, types.around, flags) for name in checks}

        def is_known(key: Hashable) -> bool:
            return key in self._known and self._known[key] >= types.of_state

        def remembered(key: Hashable, check: Check) -> Check:
            def run(subject: OptimizerSubject) -> None:
                before = subject.traces
                check(subject)
                if subject.traces == before:
                    self._known.setdefault(key, set()).update(types.of_state)

            return run

        return {
            name: remembered(keys[name], check)
            for name, check in checks.items()
            if not is_known(keys[name])
        }


def _types(subject: OptimizerSubject) -> ArgumentTypes | None:
    """All that a check can see of the update, or None.

    None if the update raises or changes the tree of the state, if numbers go in that
    are no arrays, if a tree has metadata without a hash, or if JAX is too old to give
    the trace of a jitted function.
    """
    arrays = eqx.filter(subject.extra_args, eqx.is_array)
    given = subject.grads, subject.carry.state, subject.carry.params, arrays
    leaves, treedef = tree_util.tree_flatten(given)
    if not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return None
    try:
        traced = subject._update.trace(*given)
        jaxpr, out = traced.jaxpr, tree_util.tree_structure(traced.out_info)
        grads, state, *others = tree_util.tree_unflatten(treedef, jaxpr.in_avals)
        updates, new_state = tree_util.tree_unflatten(out, jaxpr.out_avals)
        old, structure = tree_util.tree_flatten(state)
        new, new_structure = tree_util.tree_flatten(new_state)
        if new_structure != structure:
            return None
        avals, trees = tree_util.tree_flatten((grads, others, updates))
        effects = frozenset(map(str, jaxpr.effects))
        around = trees, tuple(avals), tuple(subject.extra_args), effects
        hash(around)
        return ArgumentTypes(around, frozenset(zip(old, new)))
    except Exception:  # which the checks report
        return None
