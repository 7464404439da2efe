"""dtypeguard: any Optax optimizer gives back the dtypes it was given."""

from ._errors import DtypeDriftError as DtypeDriftError, DtypeGuardWarning as DtypeGuardWarning

__version__ = "0.1.0"
