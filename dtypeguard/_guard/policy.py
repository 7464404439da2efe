"""What a guard computes in, what it stores, what it may cast and what it says about it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.public import public
from .._leaves.types import DType, Leaf
from .._rounding.rounding import rounds

_Casting = Literal["same_kind", "unsafe"]
_OnDrift = Literal["cast", "warn", "error"]
_Rounding = Literal["nearest", "stochastic"]
_DTypeLike = DType  # a NumPy dtype, a JAX scalar type or their name
_StateRule = Mapping[str, _DTypeLike] | Callable[[str, Leaf], _DTypeLike | None]


@public
@dataclasses.dataclass(frozen=True)
class Policy:
    """What a guard computes in, what it stores, and what it casts with or without a word.

    With the defaults the inner optimizer sees what it is given and its state stays in the
    dtypes that it has. For params in bfloat16 that makes a step too small to be seen: b2 =
    0.999 *is* 1.0 there, and `nu` and the params stop moving. To train in bfloat16 alone
    and end where float32 does, compute in float32, store in bfloat16 and round
    stochastically, the state here and the params in [`dtypeguard.apply_updates`][].

    Args:
        compute_dtype: `jnp.float32` (or `jnp.float64`, under x64): the inner optimizer sees
            params, updates, floating extra args and its state in this dtype, in `init` and
            `update` alike, and so the hyperparameters of `optax.inject_hyperparams` live
            in it. A wider leaf is not narrowed: float64 stays float64. Complex leaves
            stay as they are. None: it sees them as they are.
        state_dtype: what the state is stored in from one update to the next: those of its
            floating leaves that follow the params (whose dtype in `init` changes with the
            dtype of the params). Others, say an accumulator that is float32 whatever the
            params are, keep the dtype that the inner optimizer gives them. Scalars are
            stored in at least float32. One of

            - a dtype, of the range of bfloat16 at least: float16 and 8 bits are refused,
              see below;
            - `"params"`: what `init` makes of params in their own dtypes, likewise;
            - a mapping of patterns to dtypes, `{"*.mu['w']": jnp.bfloat16}`: the first
              one that matches the path of the leaf in the inner state, where `*` stands
              for anything, `?` for one character and the rest for itself; a leaf that
              none matches is stored as by None. That a pattern matches no leaf at all is
              an error;
            - a function of the path and the leaf (a `jax.ShapeDtypeStruct`) that returns
              a dtype, or None;
            - None: as `init` makes it (of params in `compute_dtype`, if that is given).

            Below the range of bfloat16, which is float32's, only named leaves are stored,
            as in `{"*.mu*": jnp.float16}`. Adam's `nu` does not survive there: gradients of
            1e-5 have squares of 1e-10, the smallest float16 is 6e-8, and steps come out a
            hundred times too large; in 8 bits gradients of 0.01 are too small already.
            First moments and momentum hold in float16, and in float8_e5m2 for gradients
            from 0.01 up or so; of Lion, which takes the sign, in 8 bits too.

            It tells what `init` makes. `update` keeps each leaf of any state in the dtype
            in which it came, and shows it to the inner optimizer in `compute_dtype`, or
            in at least float32 where that is None and a `state_dtype` is given.
        updates_dtype: `"params"` (as None), `"grads"` or a dtype for the floating updates.
            float32 keeps what bfloat16 params cannot hold for
            `apply_updates(params, updates, key=key)`.
        rounding: `"nearest"`, or `"stochastic"`: where the state is stored below 32 bits it
            is rounded up or down at random, such that the mean is the value, also where
            only `rounding` is given and the state is in bfloat16 because the params are.
            The state is then a [`dtypeguard.RoundingState`][] around the inner one.
            What the inner optimizer casts by itself, as for `mu_dtype`, is beyond reach.
        casting: `"same_kind"` casts float to float, complex to complex, int to int and
            between bool and int, and refuses anything else with a
            [`dtypeguard.DtypeDriftError`][]; `"unsafe"` casts between all four kinds as
            `jax.lax.convert_element_type` does (float to int truncates, complex to real
            drops the imaginary part).
        on_drift: what happens when a leaf of the state changes its dtype or weak type
            in an update, or an update comes out in another dtype than asked for, seen
            from the inner optimizer: a cast that the policy asks for is no drift.
            `"cast"` brings it back; `"warn"` brings it back and names every such leaf
            in a `DtypeGuardWarning`, once; `"error"` names them in a `DtypeDriftError`.
        seed: where the noise of `rounding="stochastic"` starts, from 0 to 2**32 - 1.

    Raises:
        ValueError: for any other value.

    Example:
        >>> import dtypeguard, jax.numpy as jnp, optax
        >>> policy = dtypeguard.Policy(
        ...     compute_dtype=jnp.float32, state_dtype=jnp.bfloat16, rounding="stochastic"
        ... )
        >>> print(policy)
        Policy(compute_dtype=float32, state_dtype=bfloat16, rounding='stochastic')
        >>> opt = dtypeguard.guard(optax.adam(1e-4), policy=policy)
    """

    compute_dtype: _DTypeLike | None = None
    state_dtype: _DTypeLike | Literal["params"] | _StateRule | None = None
    updates_dtype: _DTypeLike | Literal["params", "grads"] | None = None
    rounding: _Rounding = "nearest"
    casting: _Casting = "same_kind"
    on_drift: _OnDrift = "cast"
    seed: int = 0

    def __post_init__(self):
        for name, allowed in (
            ("rounding", _Rounding),
            ("casting", _Casting),
            ("on_drift", _OnDrift),
        ):
            value = getattr(self, name)
            if value not in get_args(allowed):
                options = " or ".join(f'"{option}"' for option in get_args(allowed))
                raise _error(name, value, f"write {name}={options}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise _error("seed", self.seed, "write an int, such as seed=0")
        if not 0 <= self.seed < 2**32:
            raise _error("seed", self.seed, "write a seed from 0 to 2**32 - 1")
        for name, convert in (
            ("compute_dtype", _compute_dtype),
            ("state_dtype", _state_dtype),
            ("updates_dtype", _updates_dtype),
        ):
            if getattr(self, name) is not None:
                # Kept as scalar types: a NumPy dtype of float64 equals None.
                object.__setattr__(self, name, convert(getattr(self, name)))

    def __repr__(self):
        given = (
            f"{field.name}={_readable(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Policy({', '.join(given)})"

    @property
    def widens_updates(self) -> bool:
        """Whether updates may come out in other dtypes by the policy's own doing."""
        shows_a_wide_state = self.changes_precision and self.compute_dtype is None
        return shows_a_wide_state or float_dtype(self.updates_dtype) is not None

    @property
    def changes_precision(self) -> bool:
        """Whether the inner optimizer sees or stores anything but what it is given."""
        given = self.compute_dtype is not None or self.state_dtype is not None
        return given or self.rounding != "nearest"


class _Rule(dict[str, DType]):
    """Patterns and dtypes. A policy hashes; and the first match counts, so order does."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]: a dict has none
        return hash(tuple(self.items()))


def check_policy(owner: str, policy: object) -> None:
    """Refuses what is neither a policy nor None."""
    if not (policy is None or isinstance(policy, Policy)):
        raise TypeError(
            f"{owner} got policy={shown(policy)}. Write a dtypeguard.Policy, such as "
            'policy=dtypeguard.Policy(on_drift="error").'
        )


def float_dtype(value: _DTypeLike) -> DType:
    """The NumPy dtype of a floating dtype, however written; None for anything else."""
    is_array = isinstance(value, jax.Array)  # not to be taken for its own dtype
    try:
        dtype = None if value is None or is_array else jnp.dtype(value)
    except TypeError:
        return None
    return dtype if kind(dtype) == "float" else None


def storable(value: _DTypeLike) -> DType:
    """As `float_dtype`; None too for what holds no sign or no zero, or has under 8 bits."""
    dtype = float_dtype(value)
    return dtype if dtype is not None and (dtype.itemsize >= 4 or rounds(dtype)) else None


def _compute_dtype(value: _DTypeLike) -> DType:
    dtype = float_dtype(value)
    if dtype is None:
        raise _error("compute_dtype", value, "write compute_dtype=jnp.float32")
    if dtype.itemsize < 4:
        remedy = (
            "an optimizer's own scalars (0.999, a step count) do not survive in it. Write "
            "compute_dtype=jnp.float32, and state_dtype for what is stored"
        )
        raise _error("compute_dtype", dtype, remedy)
    return dtype.type


def _state_dtype(value: _DTypeLike) -> DType:
    if isinstance(value, Mapping):
        rule = _Rule()
        for pattern, wanted in value.items():
            if not isinstance(pattern, str) or storable(wanted) is None:
                remedy = 'map path patterns to dtypes, such as {"*.mu*": jnp.bfloat16}'
                raise _error("state_dtype", {pattern: wanted}, remedy)
            rule[pattern] = storable(wanted).type
        return rule
    dtype = storable(value)
    if dtype is not None:
        refuse_blanket(dtype)
        return dtype.type
    if value == "params" if isinstance(value, str) else _is_function(value):
        return value
    remedy = (
        'write state_dtype="params", a floating dtype such as jnp.bfloat16, a mapping '
        'such as {"*.mu*": jnp.bfloat16}, or a function of path and leaf'
    )
    raise _error("state_dtype", value, remedy)


def refuse_blanket(dtype: DType, given: object = None) -> None:
    """Raises a ValueError for a whole state in float16 or 8 bits.

    Args:
        dtype: what the state would be stored in.
        given: the `state_dtype` that comes to it, if that is not the dtype itself.
    """
    if jnp.finfo(dtype).minexp <= jnp.finfo(jnp.bfloat16).minexp:
        return
    remedy = (
        f"second moments are below the range of {dtype} most of the time, and steps blow "
        "up where they are read as 0. Write state_dtype=jnp.bfloat16, or name the leaves "
        f'that are to be so narrow, such as {{"*.mu*": jnp.{dtype}}}'
    )
    raise _error("state_dtype", dtype if given is None else given, remedy)


def _updates_dtype(value: _DTypeLike) -> DType:
    if isinstance(value, str) and value in ("params", "grads"):
        return value
    dtype = storable(value)
    if dtype is None:
        options = 'write updates_dtype="params", "grads" or a dtype such as jnp.float32'
        raise _error("updates_dtype", value, options)
    return dtype.type


def _is_function(value: object) -> bool:
    """Whether it can be called and is no dtype: jnp.int32 and its like are callable."""
    return callable(value) and not (isinstance(value, type) or hasattr(value, "dtype"))


def _error(name: str, value: object, remedy: str) -> ValueError:
    return ValueError(f"Policy({name}={_readable(value)}): {remedy}.")


def _readable(value: object) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{key!r}: {_readable(dtype)}" for key, dtype in value.items())
        return f"{{{inside}}}"
    if not isinstance(value, str) and float_dtype(value) is not None:
        return str(float_dtype(value))
    return getattr(value, "__name__", None) or repr(value)
