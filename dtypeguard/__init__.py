"""dtypeguard: any Optax optimizer gives back the dtypes it was given.

A public name is imported where it is first used: `import dtypeguard` alone is quick, and a
guard does not import the audits.
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._audit.audit import audit as audit
    from ._audit.report import AuditReport as AuditReport
    from ._audit.step import audit_step as audit_step
    from ._autocast.autocast import autocast as autocast
    from ._autocast.plan import Plan as Plan
    from ._costs.costs import LineCost as LineCost
    from ._costs.work import Work as Work
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
    from ._precision.loss import LineLoss as LineLoss
    from ._precision.plan_search import PlanSearch as PlanSearch
    from ._precision.products import ProductsReport as ProductsReport
    from ._precision.records import LineDecision as LineDecision
    from ._precision.report import PrecisionReport as PrecisionReport
    from ._reference.difference import Difference as Difference, Divergence as Divergence
    from ._rounding.apply import apply_updates as apply_updates

__version__ = "0.1.0"

if not TYPE_CHECKING:  # so that type checkers see no name beside these
    # The same names by file. A test compares the two.
    _FILES = {
        "_audit.audit": ("audit",),
        "_audit.report": ("AuditReport",),
        "_audit.step": ("audit_step",),
        "_autocast.autocast": ("autocast",),
        "_autocast.plan": ("Plan",),
        "_costs.costs": ("LineCost",),
        "_costs.work": ("Work",),
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
        "_precision.products": ("ProductsReport",),
        "_reference.difference": ("Difference", "Divergence"),
        "_precision.loss": ("LineLoss",),
        "_precision.plan_search": ("PlanSearch",),
        "_precision.report": ("PrecisionReport",),
        "_precision.records": ("LineDecision",),
        "_rounding.apply": ("apply_updates",),
    }
    _FILE_OF = {name: file for file, names in _FILES.items() for name in names}
    __all__ = [*_FILE_OF]
    # What IPython asks for, which is no name for users.
    _FILE_OF |= dict.fromkeys(
        ("load_ipython_extension", "unload_ipython_extension"), "_hooks.ipython"
    )

    def __getattr__(name: str) -> object:
        if name not in _FILE_OF:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        value = getattr(importlib.import_module(f".{_FILE_OF[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "importlib", "sys"})
