"""The dtypes a guard computes in and stores, what it may cast, and what it reports."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.types import DType, public
from .._rounding.rounding import rounds

_Casting = Literal["same_kind", "unsafe"]
_OnDrift = Literal["cast", "warn", "error"]
_Rounding = Literal["nearest", "stochastic"]
_OPTIONS = {"rounding": _Rounding, "casting": _Casting, "on_drift": _OnDrift}
_DTypeLike = DType  # a NumPy dtype, a JAX scalar type or their name
_StateRule = Mapping[str, _DTypeLike]


@public
@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes a guard computes in and stores, what it may cast, and what it reports.

    By default, the inner optimizer sees its inputs as they are, and its state keeps its
    dtypes. In bfloat16 small steps then vanish: b2 = 0.999 rounds to 1.0, and `nu` and the
    params stop moving. To train in bfloat16 alone and reach the loss of float32, compute in
    float32, store in bfloat16 and round stochastically: the state here, and the params in
    [`dtypeguard.apply_updates`][].

    Args:
        compute_dtype: `jnp.float32` (or `jnp.float64`, under x64). The inner optimizer sees
            params, updates, floating extra args and its state in this dtype, in `init` and
            in `update`, so the hyperparameters of `optax.inject_hyperparams` have it too.
            Wider leaves are not narrowed: float64 stays float64. Complex leaves stay as
            they are. With None, everything stays as it is.
        state_dtype: how to store the state from one update to the next. It applies to
            floating leaves that follow the params: those whose dtype in `init` changes with
            the dtype of the params. Other leaves, such as an accumulator that is always
            float32, keep the dtype that the inner optimizer gives them. Scalars are stored
            in at least float32. One of

            - a dtype with at least the range of bfloat16: float16 and 8 bits are refused,
              see below;
            - `"params"`: the dtypes that `init` makes of params in their own dtypes, with
              the same restriction;
            - a mapping of patterns to dtypes, `{"*.mu['w']": jnp.bfloat16}`. The first
              pattern that matches the path of a leaf in the inner state counts; `*` stands
              for anything, `?` for one character, and everything else for itself. A leaf
              that no pattern matches is stored as with None. A pattern that matches no
              leaf to which `state_dtype` applies is an error;
            - None: as `init` makes it (of params in `compute_dtype`, if that is given).

            Only named leaves, as in `{"*.mu*": jnp.float16}`, are stored in dtypes with a
            smaller range than bfloat16 and float32. Adam's `nu` does not survive there:
            gradients of 1e-5 have squares of 1e-10, the smallest float16 is 6e-8, and steps
            become a hundred times too large; in 8 bits, gradients of 0.01 are already too
            small. First moments and momentum hold in float16, and in float8_e5m2 for
            gradients from about 0.01; those of Lion, which takes the sign, in 8 bits too.

            `state_dtype` describes the result of `init`. `update` keeps each leaf of any
            state in its incoming dtype, and passes it to the inner optimizer in
            `compute_dtype`, or in at least float32 if only `state_dtype` is given.
        updates_dtype: `"params"` (like None), `"grads"` or a dtype for floating updates.
            float32 keeps for `apply_updates(params, updates, key=key)` what bfloat16
            updates would lose.
        rounding: `"nearest"`, or `"stochastic"`, which rounds the stored state up or down
            at random wherever it has fewer than 32 bits, so that the mean is the value.
            This includes a state that is in bfloat16 only because the params are. The
            state is then a [`dtypeguard.RoundingState`][] around the inner one. Casts
            inside the inner optimizer, as for `mu_dtype`, still round to nearest.
        casting: `"same_kind"` casts float to float, complex to complex, int to int and
            between bool and int, and refuses anything else with a
            [`dtypeguard.DtypeDriftError`][]. `"unsafe"` casts between all four kinds as
            `jax.lax.convert_element_type` does: float to int truncates, complex to real
            drops the imaginary part.
        on_drift: what to do if the inner optimizer changes the dtype or weak type of a leaf
            of the state, or returns an update in another dtype than its param. `"cast"`
            casts the leaf back; `"warn"` casts it back and names every such leaf in one
            `DtypeGuardWarning`; `"error"` names them in a `DtypeDriftError`. Where a policy
            asks for a dtype or stochastic rounding, casts between floats are no drifts.
        seed: the first seed of `rounding="stochastic"`, from 0 to 2**32 - 1.

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

    def __post_init__(self) -> None:
        for name, allowed in _OPTIONS.items():
            value = getattr(self, name)
            if value not in get_args(allowed):
                options = " or ".join(f'"{option}"' for option in get_args(allowed))
                raise _error(name, value, f"write {name}={options}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise _error("seed", self.seed, "write a seed from 0 to 2**32 - 1")
        for name, convert in _CONVERTERS.items():
            if getattr(self, name) is not None:
                # Keep scalar types: np.dtype("float64") == None is True.
                object.__setattr__(self, name, convert(name, getattr(self, name)))

    def __repr__(self) -> str:
        given = (
            f"{field.name}={_readable(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Policy({', '.join(given)})"


def asks_wide(policy: Policy) -> bool:
    """Whether the optimizer is to compute, or its updates to come, in float64."""
    # The scalar type: a dtype of float64 equals None.
    asked = map(float_dtype, (policy.compute_dtype, policy.updates_dtype))
    return any(dtype == np.float64 for dtype in asked)


def changes_precision(policy: Policy) -> bool:
    """Whether the inner optimizer sees or stores other dtypes than it is given."""
    given = policy.compute_dtype is not None or policy.state_dtype is not None
    return given or policy.rounding != "nearest"


def changes_dtypes(policy: Policy) -> bool:
    """Whether floats may come in other dtypes than they were given, due to a policy."""
    return changes_precision(policy) or policy.updates_dtype not in (None, "params")


class _Rule(dict[str, DType]):
    """Patterns and dtypes, hashable. Equality respects order: the first match counts."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]: a dict has none
        return hash(tuple(self.items()))


class Unavailable(ValueError):
    """A policy does not go with the x64 flag, or with the dtypes of the params."""


def check_policy(owner: str, policy: object) -> None:
    """Raises a TypeError for anything but a policy or None."""
    if not (policy is None or isinstance(policy, Policy)):
        raise TypeError(
            f"{owner} got policy={shown(policy)}. Write a dtypeguard.Policy, such as "
            'policy=dtypeguard.Policy(on_drift="error").'
        )


def float_dtype(value: _DTypeLike) -> DType:
    """The NumPy dtype of a floating dtype in any notation; None for anything else."""
    is_array = isinstance(value, jax.Array)  # jnp.dtype would return its dtype
    try:
        dtype = None if value is None or is_array else jnp.dtype(value)
    except TypeError:
        return None
    return dtype if kind(dtype) == "float" else None


def dtype_of_update(
    updates_dtype: _DTypeLike | None, param: DType, gradient: DType
) -> DType:
    """The dtype that `Policy.updates_dtype` gives to the floating update of a param."""
    if isinstance(updates_dtype, str):
        return gradient if updates_dtype == "grads" else param
    return param if updates_dtype is None else jnp.dtype(updates_dtype)


def storable(value: _DTypeLike) -> DType:
    """Like `float_dtype`, but None for formats without sign or zero, or below 8 bits."""
    dtype = float_dtype(value)
    return dtype if dtype is not None and (dtype.itemsize >= 4 or rounds(dtype)) else None


_REMEDIES = {
    "compute_dtype": "write compute_dtype=jnp.float32",
    "narrow compute_dtype": "an optimizer's own scalars (0.999, a step count) do not "
    "survive in it. Write compute_dtype=jnp.float32, and state_dtype for what is stored",
    "state_dtype": 'write state_dtype="params", a floating dtype such as jnp.bfloat16, or '
    'a mapping such as {"*.mu*": jnp.bfloat16}',
    "patterns": 'map path patterns to dtypes, such as {"*.mu*": jnp.bfloat16}',
    "updates_dtype": 'write updates_dtype="params", "grads" or a dtype such as jnp.float32',
}
_WORDS = {"state_dtype": ("params",), "updates_dtype": ("params", "grads")}


def _compute_dtype(name: str, value: _DTypeLike) -> DType:
    dtype = float_dtype(value)
    if dtype is None:
        raise _error(name, value, _REMEDIES[name])
    if dtype.itemsize < 4:
        raise _error(name, dtype, _REMEDIES[f"narrow {name}"])
    return dtype.type


def _stored_dtype(name: str, value: _DTypeLike) -> DType:
    """Of the state or of updates, which may also be words."""
    is_word = isinstance(value, str) and value in _WORDS[name]
    if storable(value) is None and not is_word:
        raise _error(name, value, _REMEDIES[name])
    return value if is_word else storable(value).type


def _state_dtype(name: str, value: _DTypeLike) -> DType:
    if isinstance(value, Mapping):
        rule = _Rule()
        for pattern, wanted in value.items():
            if not isinstance(pattern, str) or storable(wanted) is None:
                raise _error(name, {pattern: wanted}, _REMEDIES["patterns"])
            rule[pattern] = storable(wanted).type
        return rule
    made = _stored_dtype(name, value)
    if made != "params":
        refuse_blanket(jnp.dtype(made))
    return made


_CONVERTERS = {
    "compute_dtype": _compute_dtype,
    "state_dtype": _state_dtype,
    "updates_dtype": _stored_dtype,
}


def refuse_blanket(dtype: DType, given: object = None) -> None:
    """Raises `Unavailable` if all of a state would be stored in float16 or 8 bits."""
    if jnp.finfo(dtype).minexp <= jnp.finfo(jnp.bfloat16).minexp:
        return
    remedy = (
        f"second moments are below the range of {dtype} most of the time, and steps blow "
        "up where they are read as 0. Write state_dtype=jnp.bfloat16, or name the leaves "
        f'that are to be so narrow, such as {{"*.mu*": jnp.{dtype}}}'
    )
    raise _error("state_dtype", dtype if given is None else given, remedy, Unavailable)


def _error(
    name: str, value: object, remedy: str, kind: type[ValueError] = ValueError
) -> ValueError:
    return kind(f"Policy({name}={_readable(value)}): {remedy}.")


def _readable(value: object) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{key!r}: {_readable(dtype)}" for key, dtype in value.items())
        return f"{{{inside}}}"
    if not isinstance(value, str) and float_dtype(value) is not None:
        return str(float_dtype(value))
    return getattr(value, "__name__", None) or repr(value)
