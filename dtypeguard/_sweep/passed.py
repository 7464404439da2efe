"""Remembers which checks updates of some types have passed."""

from collections.abc import Hashable, Mapping

from .checks import Check, OptimizerSubject


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
        types = subject.types()
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
