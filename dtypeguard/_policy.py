"""What a guard may cast, and what it says when it does."""

import dataclasses
from typing import Literal, get_args

_Casting = Literal["same_kind", "unsafe"]
_OnDrift = Literal["cast", "warn", "error"]


@dataclasses.dataclass(frozen=True)
class Policy:
    """What a guard may cast, and what it says when it does.

    Args:
        casting: `"same_kind"` casts float to float, complex to complex, int to int and
            between bool and int, and refuses anything else with a
            [`DtypeDriftError`][]; `"unsafe"` casts between all four kinds as
            `jax.lax.convert_element_type` does (float to int truncates, complex to real
            drops the imaginary part).
        on_drift: what happens when a leaf of the state changes its dtype or weak type
            in an update, or an update comes out in another dtype than its param's.
            `"cast"` brings it back; `"warn"` brings it back and names every such leaf
            in a `DtypeGuardWarning`, once; `"error"` names them in a `DtypeDriftError`.

    Raises:
        ValueError: for any other value of either.

    Example:
        >>> import dtypeguard, optax
        >>> loud = dtypeguard.Policy(on_drift="error")
        >>> opt = dtypeguard.guard(optax.adam(1e-3), policy=loud)
    """

    casting: _Casting = "same_kind"
    on_drift: _OnDrift = "cast"

    def __post_init__(self):
        for name, allowed in (("casting", _Casting), ("on_drift", _OnDrift)):
            value = getattr(self, name)
            if value not in get_args(allowed):
                options = " or ".join(f'"{option}"' for option in get_args(allowed))
                raise ValueError(f"Policy({name}={value!r}): write {name}={options}.")
