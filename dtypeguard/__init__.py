"""dtypeguard: any Optax optimizer gives back the dtypes it was given."""

from ._audit.audit import audit as audit
from ._audit.report import AuditReport as AuditReport
from ._audit.step import audit_step as audit_step
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
from ._precision.report import (
    LineCost as LineCost,
    LineLoss as LineLoss,
    PrecisionReport as PrecisionReport,
    Work as Work,
)
from ._rounding.apply import apply_updates as apply_updates

__version__ = "0.1.0"
