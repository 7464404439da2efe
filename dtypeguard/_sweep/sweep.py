"""Every optimizer, bare and guarded, in every configuration of dtypes."""

import contextlib
import dataclasses
import multiprocessing
import textwrap
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent import futures
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._audit.audit import audit
from .._guard.guard import guard
from .._leaves.compat import HAS_EXPLICIT_X64, set_explicit_x64, set_x64
from .._leaves.errors import DtypeGuardWarning
from .._leaves.types import Params, Updates
from . import catalog, checks
from .checks import CHECKS, NAMES, Fault, Skip, Subject
from .entry import Entry, Inputs
from .recipes import NO_EXPLICIT_FLOAT64

_MIXED = (jnp.bfloat16, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Dtypes and the x64 flag.

    Attributes:
        name: the dtype of the params, and of the gradients if it is another.
        params: the dtype of the params, or several dealt out over the leaves in turn.
        grads: the same for the gradients.
        x64: whether `jax_enable_x64` is on.
        explicit: `jax_explicit_x64_dtypes`: what asking for float64 means with x64 off.
    """

    name: str
    params: Params
    grads: Updates
    x64: bool
    explicit: str = "warn"

    @property
    def leaves_out(self) -> tuple[str, ...]:
        """Checks that fail for no fault of the optimizer's.

        optax.MultiSteps makes zeros by eval_shape, where an explicit float64 is a float32.
        """
        return ("MultiSteps",) if self.explicit == "allow" else ()

    @contextlib.contextmanager
    def flags(self) -> Iterator[None]:
        """A context with both flags, and JAX's standard promotion, which Optax needs."""
        with (
            set_x64(self.x64),
            set_explicit_x64(self.explicit),
            jax.numpy_dtype_promotion("standard"),
        ):
            yield


_NARROW = (
    ("bf16", jnp.bfloat16, jnp.bfloat16),
    ("f16", jnp.float16, jnp.float16),
    ("f32", jnp.float32, jnp.float32),
    ("mixed", _MIXED, _MIXED),
    ("bf16/f32", jnp.bfloat16, jnp.float32),
    ("f32/bf16", jnp.float32, jnp.bfloat16),
)
_WIDE = (
    ("f64", jnp.float64, jnp.float64),
    ("f64/f32", jnp.float64, jnp.float32),
    ("f32/f64", jnp.float32, jnp.float64),
)
# float64 arrays while x64 is off, and an error for whoever asks for one: only dtypes that
# it makes a difference to.
_EXPLICIT = (
    Configuration("f64 allow", jnp.float64, jnp.float64, False, "allow"),
    Configuration("f32/f64 allow", jnp.float32, jnp.float64, False, "allow"),
    Configuration("bf16/f32 error", jnp.bfloat16, jnp.float32, False, "error"),
)
CONFIGURATIONS = (
    *(Configuration(*dtypes, x64=False) for dtypes in _NARROW),
    *(_EXPLICIT if HAS_EXPLICIT_X64 else ()),
    *(Configuration(*dtypes, x64=True) for dtypes in (*_NARROW, *_WIDE)),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one optimizer in one configuration, bare or guarded.

    Attributes:
        failures: the reason of each failed check, in one line, by the check's name.
        skipped: the same for checks that do not apply.
        rescues: how many warnings of a guard that it ran the update in wider dtypes.
        origins: the leaves that drift, each with the lines of source that make it; only
            where they were asked for and a check failed.
    """

    id: str
    configuration: str
    x64: bool
    guarded: bool
    failures: dict[str, str]
    skipped: dict[str, str]
    rescues: int
    origins: list[str] = dataclasses.field(default_factory=list)


def sweep_entry(entry: Entry, origins: bool = False) -> list[Outcome]:
    """One optimizer in every configuration, bare and guarded."""
    return [
        examine(entry, configuration, guarded, origins)
        for configuration in CONFIGURATIONS
        for guarded in (False, True)
    ]


def examine(
    entry: Entry, configuration: Configuration, guarded: bool, origins: bool = False
) -> Outcome:
    """Runs every check on one optimizer in one configuration; of it, only `init` runs."""
    failures: dict[str, str] = {}
    skipped: dict[str, str] = {}
    if configuration.explicit == "allow" and entry.name in NO_EXPLICIT_FLOAT64:
        skipped["explicit float64"] = NO_EXPLICIT_FLOAT64[entry.name]
        return Outcome(entry.id, configuration.name, False, guarded, failures, skipped, 0)
    make = lambda: guard(entry.build()) if guarded else entry.build()

    def judge(name, check, *args):
        try:
            check(*args)
        except Skip as reason:
            skipped[name] = str(reason)
        except Exception as error:
            failures[name] = one_line(error)

    with configuration.flags(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inputs = entry.inputs(configuration.params, configuration.grads)

        def run_checks(inputs):
            try:
                subject = Subject(make(), inputs)
            except Exception as error:
                failures.update(dict.fromkeys(NAMES, f"init: {one_line(error)}"))
                return
            if "init" not in failures:
                judge("init", checks.init, eager, subject.carry.state)
            for name, check in CHECKS.items():
                if name not in configuration.leaves_out:
                    judge(name, check, subject)

        try:
            eager = make().init(checks.some_zeros(inputs.params))
        except Exception as error:
            failures["init"] = one_line(error)
        eqx.filter_eval_shape(run_checks, inputs)
        found = _origins(make, inputs) if origins and failures else []
    return Outcome(
        entry.id,
        configuration.name,
        configuration.x64,
        guarded,
        failures,
        skipped,
        rescues=sum(issubclass(w.category, DtypeGuardWarning) for w in caught),
        origins=found,
    )


def _origins(make: Callable[[], Any], inputs: Inputs) -> list[str]:
    try:
        params, updates, extra_args = inputs
        return audit(make(), params, updates=updates, extra_args=extra_args).lines()
    except Exception as error:
        return [one_line(error)]


def sweep(
    chosen: Sequence[Entry], jobs: int, origins: bool = False
) -> Generator[list[Outcome], None, None]:
    """The outcomes of each entry, as they come.

    Args:
        chosen: entries of the catalogue.
        jobs: the number of worker processes, which build the entries anew by their ids;
            1 stays in this process, where entries need not be in the catalogue.
        origins: whether each failure is audited for the lines that it comes from.
    """
    if jobs == 1:
        for entry in chosen:
            yield sweep_entry(entry, origins)
        return
    spawn = multiprocessing.get_context("spawn")
    pool = futures.ProcessPoolExecutor(jobs, spawn, initializer=_off_the_accelerator)
    try:
        tasks = [pool.submit(_sweep_id, entry.id, origins) for entry in chosen]
        for task in futures.as_completed(tasks):
            yield task.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _sweep_id(entry_id: str, origins: bool) -> list[Outcome]:
    return sweep_entry(catalog.find(entry_id), origins)


def _off_the_accelerator() -> None:
    # Nothing is computed, and every worker would take a share of its memory.
    jax.config.update("jax_platforms", "cpu")


def one_line(error: Exception) -> str:
    """An error without its explanations: its first line, and the first leaf it names."""
    if isinstance(error, Fault):
        return str(error)
    first, *others = [line.strip() for line in str(error).strip().splitlines()] or [""]
    leaf = next((line for line in others if " has type " in line or "->" in line), "")
    line = f"{type(error).__name__}: {first} {leaf.removeprefix('* ')}".strip()
    return textwrap.shorten(line, 400, placeholder=" ...")
