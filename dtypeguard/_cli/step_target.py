"""The step that a command line names: found, given what its inputs are, and audited."""

from typing import Any

from .._audit.report import AuditReport
from .._audit.step import Arguments, audit_made_step
from .._leaves.compat import set_x64
from .._program.trace import TraceFailed
from .target import UsageError, load


def audit_step_target(
    target: str,
    inputs: str,
    carry: int | str | tuple[int | str, ...],
    returned: Any,
    x64: bool,
) -> AuditReport:
    """Audits the step that `MODULE:NAME` or `FILE.py:NAME` stands for.

    Args:
        target: a function that takes what it carries and returns it.
        inputs: a function that returns its arguments, named likewise, or the arguments
            themselves.
        carry: as of `audit_step`.
        returned: likewise.
        x64: whether `jax_enable_x64` is on; the inputs are made under it too.

    Raises:
        UsageError: if any of these cannot be used.
    """
    name = target.rpartition(":")[2]
    modules: dict[str, Any] = {}  # both may be in one file, whose classes are one
    with set_x64(x64):
        step, made = load(target, modules), load(inputs, modules)
        make = lambda: _arguments(made() if callable(made) else made)
        try:
            return audit_made_step(step, make, carry, returned, name)
        except TraceFailed as failed:
            error = failed.__cause__
            raise UsageError(
                f"{inputs} cannot be called: {type(error).__name__}: {error}. Let it "
                "return the arguments of the step: a tuple of them, a dict of them by "
                "name, or the only one."
            ) from error
        except (TypeError, ValueError) as error:  # of the carry
            raise UsageError(
                f"{error} Here these are --carry and --returned, such as --carry 0,1 or "
                "--carry params,opt_state."
            ) from error


def _arguments(made: Any) -> Arguments:
    # A state is often a tuple with names: it is the only argument then.
    if type(made) is tuple:
        return made, {}
    return ((), made) if type(made) is dict else ((made,), {})
