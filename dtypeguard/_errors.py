"""The one error and the one warning that dtypeguard raises about dtypes."""


class DtypeDriftError(TypeError):
    """A leaf cannot be brought back to its recorded dtype without losing something.

    Raised while the update is traced, so nothing has run and nothing is lost. Every
    offending leaf stands on a line of its own: its path, both dtypes, and what to
    write instead.
    """


class DtypeGuardWarning(UserWarning):
    """The guard changed how the inner optimizer runs, or saw a drift it was told of.

    Issued while the update is traced, once for the same message of the same guarded
    optimizer.
    """
