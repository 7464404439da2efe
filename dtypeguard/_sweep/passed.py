"""Remembers which checks updates of some types have passed."""

from collections.abc import Hashable, Mapping

from .checks import Check, OptimizerSubject


class Passed:
    """Checks that an update has passed; another one of the same types passes them, too.

    A check for which the update was traced with other types than those of the training step
    depends on more, and is not remembered.
    """

    def __init__(self):
        self._known: set[Hashable] = set()

    def skipping(
        self, checks: Mapping[str, Check], subject: OptimizerSubject, *flags: object
    ) -> dict[str, Check]:
        """The checks, except those that are known to pass under these flags.

        Each of the others is remembered once it passes.
        """
        types = subject.types()
        if types is None:
            return dict(checks)
        found = {name: (name, types, flags) for name in checks}
        left = {name: x for name, x in checks.items() if found[name] not in self._known}

        def remembered(name: str, check: Check) -> Check:
            def run(subject: OptimizerSubject) -> None:
                before = subject.traces
                check(subject)
                if subject.traces == before:
                    self._known.add(found[name])

            return run

        return {name: remembered(name, check) for name, check in left.items()}
