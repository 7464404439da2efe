"""dtypeguard: any Optax optimizer gives back the dtypes it was given.

A public name is imported where it is first used: `import dtypeguard` alone is quick, and a
guard does not import the audits.
"""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._audit.audit import audit as audit
    from ._audit.report import AuditReport as AuditReport
    from ._autocast.autocast import autocast as autocast
    from ._autocast.plan import Plan as Plan
    from ._explain.explain import explain as explain
    from ._guard.guard import guard as guard
    from ._guard.guard_step import guard_step as guard_step
    from ._guard.policy import Policy as Policy
    from ._guard.precision import RoundingState as RoundingState
    from ._guard.record import record as record, restore as restore
    from ._guard.strong import strong as strong
    from ._leaves.errors import (
        DtypeDriftError as DtypeDriftError,
        DtypeGuardWarning as DtypeGuardWarning,
    )
    from ._optimizers.fromage import FromageState as FromageState, fromage as fromage
    from ._optimizers.multi_steps import multi_steps as multi_steps
    from ._optimizers.prodigy import ProdigyState as ProdigyState, prodigy as prodigy
    from ._precision.audit import audit_precision as audit_precision
    from ._precision.report import PrecisionReport as PrecisionReport
    from ._rounding.rounding import apply_updates as apply_updates

__version__ = "0.2.0"

if not TYPE_CHECKING:  # so that type checkers see no name beside these
    # The same names by file. A test compares the two.
    _FILES = {
        "_audit.audit": ("audit",),
        "_audit.report": ("AuditReport",),
        "_autocast.autocast": ("autocast",),
        "_autocast.plan": ("Plan",),
        "_explain.explain": ("explain",),
        "_guard.guard": ("guard",),
        "_guard.guard_step": ("guard_step",),
        "_guard.policy": ("Policy",),
        "_guard.precision": ("RoundingState",),
        "_guard.record": ("record", "restore"),
        "_guard.strong": ("strong",),
        "_leaves.errors": ("DtypeDriftError", "DtypeGuardWarning"),
        "_optimizers.fromage": ("FromageState", "fromage"),
        "_optimizers.multi_steps": ("multi_steps",),
        "_optimizers.prodigy": ("ProdigyState", "prodigy"),
        "_precision.audit": ("audit_precision",),
        "_precision.report": ("PrecisionReport",),
        "_rounding.rounding": ("apply_updates",),
    }
    _FILE_OF = {name: file for file, names in _FILES.items() for name in names}
    __all__ = list(_FILE_OF)
    # What IPython asks for, which is no name for users.
    _FILE_OF["load_ipython_extension"] = "_hooks.ipython"
    _FILE_OF["unload_ipython_extension"] = "_hooks.ipython"
    # What 0.1.0 had and a later minor version has not: the file, and what to use instead.
    _DEPRECATED = {"audit_step": ("_audit.audit", "dtypeguard.audit(step, *args)")}
    # Names that never were in a release, and where the same is found.
    _GONE = {
        "LineCost": "a row of PrecisionReport.work.costs",
        "Work": "PrecisionReport.work",
        "LineDecision": "a row of PrecisionReport.decisions.lines",
        "LineLoss": "a row of PrecisionReport.losses",
        "PlanSearch": "PrecisionReport.search",
        "ProductsReport": "PrecisionReport",
        "Difference": "a row of PrecisionReport.differences",
        "Divergence": "PrecisionReport.divergence",
    }

    def __getattr__(name: str) -> object:
        if name in _DEPRECATED:
            file, instead = _DEPRECATED[name]
            message = f"dtypeguard.{name} is deprecated. Use {instead}."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return _imported(file, name)
        if name in _FILE_OF:
            globals()[name] = _imported(_FILE_OF[name], name)
            return globals()[name]
        message = f"module {__name__!r} has no attribute {name!r}"
        if name in _GONE:
            message = f"dtypeguard.{name} is gone. Use {_GONE[name]}."
        raise AttributeError(message, name=name, obj=sys.modules[__name__])

    def _imported(file: str, name: str) -> object:
        return getattr(importlib.import_module(f".{file}", __name__), name)

    def __dir__() -> list[str]:
        imported = {"TYPE_CHECKING", "importlib", "sys", "warnings"}
        return sorted({*globals(), *__all__} - imported)
