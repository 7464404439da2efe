"""dtypeguard: any Optax optimizer gives back the dtypes it was given."""

from ._apply import apply_updates as apply_updates
from ._audit import audit as audit
from ._audit_report import AuditReport as AuditReport
from ._errors import (
    DtypeDriftError as DtypeDriftError,
    DtypeGuardWarning as DtypeGuardWarning,
)
from ._fromage import FromageState as FromageState, fromage as fromage
from ._guard import guard as guard
from ._multi_steps import multi_steps as multi_steps
from ._policy import Policy as Policy
from ._precision import RoundingState as RoundingState
from ._prodigy import ProdigyState as ProdigyState, prodigy as prodigy
from ._record import record as record, restore as restore

__version__ = "0.1.0"
