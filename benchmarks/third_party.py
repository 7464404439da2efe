"""Optimizers of other packages, bare and guarded, over dtypes and control flow.

Prints what the tests' sweep prints of Optax's: in how many configurations (six of dtypes
with x64 off, nine with x64 on, three with explicit float64 where JAX has it) the bare and
the guarded optimizer fail a check, which checks, and what fails guarded. Below it names the
checks that pass bare and fail guarded, and the configurations in which two jitted guarded
steps give other bits than bare ones that are stable. It exits 1 if there is one of these.

    pip install -e . psgdax rollfast python-somax aura-optax jax-privacy stam-optimizer
    python benchmarks/third_party.py

Others need an older Optax: in an environment of their own,

    pip install -e . jax==0.4.31 jaxlib==0.4.31 optax==0.2.3 'equinox<0.12' 'flax<0.10' \
        psgd-jax distributed-kron
    python benchmarks/third_party.py

Packages that are missing, or do not import with this Optax, are named below the table.

How many of the first 15 configurations fail, bare -> guarded; nothing that passes bare
fails guarded, and no bits differ. With Optax 0.2.8 and JAX 0.10.2:

    psgdax 0.1.1: kron 13 -> 3, kron[mu bf16] 13 -> 3, scale_by_kron 13 -> 3
    rollfast 0.2.1: adamw 11 -> 0, kron 11 -> 0, prism 11 -> 0, schedule_free_adam 0
        -> 0, schedule_free_kron 0 -> 0, schedule_free_prism 0 -> 0
    python-somax 1.0.1: sophia_tx 3 -> 0, build_optax_tx 3 -> 0
    aura-optax 0.1.0: adam_aura 3 -> 0, muon_aura 3 -> 0, scale_by_aura 6 -> 0
    jax-privacy 2.0.0: matrix_factorization_privatizer 3 -> 0
    stam-optimizer 0.1.0: stam 11 -> 0, stam_lite 11 -> 0

With Optax 0.2.3 and JAX 0.4.31, which has no scope that hides x64:

    psgd-jax 0.2.9: kron 11 -> 0, xmat 13 -> 9, affine 13 -> 9, low_rank_approximation
        13 -> 9
    distributed-kron 2.0.0: kron 9 -> 0

What still fails guarded mixes dtypes inside: the branches of a `cond` under float64 in
psgdax, float64 constants under x64 in psgd-jax. optax-adan imports with neither Optax, and
optax-shampoo does not run bare with either.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from dtypeguard import guard
from dtypeguard._leaves.arguments import is_transformation
from dtypeguard._leaves.compat import set_x64
from dtypeguard._sweep.checks import Fault, one_line, same_types
from dtypeguard._sweep.inputs import (
    CONFIGURATIONS,
    Configuration,
    Entry,
    Recipe,
    sample,
)

sys.path.append(str(pathlib.Path(__file__).parents[1]))

from tests.support.optimizer_sweep.catalog import Unbuilt
from tests.support.optimizer_sweep.report import report
from tests.support.optimizer_sweep.sweep import Outcome, sweep


class Package(NamedTuple):
    """A package of a registry: what `pip install` calls it, and its optimizers."""

    module: str
    optimizers: dict[str, Callable[[Any], Any]]
    shapes: dict[str, tuple[int, ...]] = {"b": (3,), "w": (4, 3)}  # noqa: RUF012 (a tuple's default)


def _privatizer(module: Any) -> Any:
    matrices = importlib.import_module("jax_privacy.matrix_factorization.toeplitz")
    noising = matrices.inverse_as_streaming_matrix(jnp.asarray([1.0, 0.5, 0.25]))
    return module.noise_addition.matrix_factorization_privatizer(
        noising, stddev=1.0, prng_key=jax.random.key(0)
    )


def _shampoo(module: Any) -> Any:
    return module.distributed_shampoo(0.1, 8, start_preconditioning_step=1)


PACKAGES = {
    "psgdax": Package(
        "psgdax",
        {
            "kron": lambda m: m.kron(0.1),
            "kron[mu bf16]": lambda m: m.kron(0.1, mu_dtype=jnp.bfloat16),
            "scale_by_kron": lambda m: m.scale_by_kron(),
        },
    ),
    "rollfast": Package(
        "rollfast",
        {
            "adamw": lambda m: m.adamw(0.1),
            "kron": lambda m: m.kron(0.1),
            "prism": lambda m: m.prism(0.1),
            "schedule_free_adam": lambda m: m.schedule_free_adam(0.1, 10),
            "schedule_free_kron": lambda m: m.schedule_free_kron(0.1, 10),
            "schedule_free_prism": lambda m: m.schedule_free_prism(0.1, 10),
        },
    ),
    "python-somax": Package(
        "somax",
        {
            "sophia_tx": lambda m: importlib.import_module(
                "somax.methods.sophia_g"
            ).sophia_tx(0.1),
            "build_optax_tx": lambda m: importlib.import_module(
                "somax.assembler"
            ).build_optax_tx(learning_rate=0.1, clip_norm=1.0, weight_decay=0.1),
        },
    ),
    "aura-optax": Package(
        "aura_optax",
        {
            "adam_aura": lambda m: m.adam_aura(0.1),
            "muon_aura": lambda m: m.muon_aura(0.1),
            "scale_by_aura": lambda m: m.scale_by_aura(),
        },
    ),
    "jax-privacy": Package("jax_privacy", {"matrix_factorization_privatizer": _privatizer}),
    "optax-shampoo": Package(
        "optax_shampoo.distributed_shampoo", {"distributed_shampoo": _shampoo}
    ),
    "stam-optimizer": Package(
        "stam_optimizer",
        {"stam": lambda m: m.stam(0.1), "stam_lite": lambda m: m.stam_lite(0.1)},
    ),
    "psgd-jax": Package(
        "psgd_jax",
        {
            "kron": lambda m: importlib.import_module("psgd_jax.kron").kron(0.1),
            "xmat": lambda m: importlib.import_module("psgd_jax.xmat").xmat(0.1),
            "affine": lambda m: importlib.import_module("psgd_jax.affine").affine(0.1),
            "low_rank_approximation": lambda m: importlib.import_module(
                "psgd_jax.low_rank_approximation"
            ).low_rank_approximation(0.1),
        },
    ),
    "distributed-kron": Package("distributed_kron", {"kron": lambda m: m.kron(0.1)}),
    "optax-adan": Package("optax_adan", {"adan": lambda m: m.adan(0.1)}),
}


def main() -> int:
    """Runs what is installed; 1 if the guard broke or changed what ran."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--filter", default="", help="a part of the package's name")
    chosen = parser.parse_args().filter
    warnings.simplefilter("ignore")
    start, left_out, outcomes, changed = time.monotonic(), [], [], []
    for name, package in PACKAGES.items():
        for entry in _entries(name, package, left_out) if chosen in name else ():
            with contextlib.redirect_stdout(io.StringIO()):  # some print their size
                found = sweep([entry], 1)
                changed += [*_broken(found), *_other_bits(entry)]
            outcomes += found
            print(entry.id, file=sys.stderr, flush=True)
    print(report(outcomes, left_out, time.monotonic() - start))
    for line in changed:
        print(f"- {line}")
    return 1 if changed else 0


def _entries(name: str, package: Package, left_out: list[Unbuilt]) -> Iterator[Entry]:
    """The optimizers of a package that run."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        left_out.append(Unbuilt(name, f"not installed: pip install {name}"))
        return
    try:
        module = importlib.import_module(package.module)
    except Exception as error:
        left_out.append(Unbuilt(f"{name} {version}", f"no import: {one_line(error)}"))
        return
    for optimizer, make in package.optimizers.items():
        recipe = Recipe(params=sample(package.shapes))
        name_and_version = f"{name} {version} {optimizer}"
        entry = Entry(name_and_version, lambda make=make: make(module), recipe)
        try:
            with set_x64(False), contextlib.redirect_stdout(io.StringIO()):
                if not is_transformation(entry.build()):
                    raise TypeError("is no transformation")
                _ = entry.extra_names  # runs it bare, in float32
        except Exception as error:
            left_out.append(Unbuilt(entry.id, one_line(error)))
            continue
        yield entry


def _broken(outcomes: list[Outcome]) -> Iterator[str]:
    """The checks that pass bare and fail guarded."""
    for bare, guarded in zip(outcomes[::2], outcomes[1::2]):
        for check in guarded.failures.keys() - bare.failures.keys() - bare.skipped.keys():
            place = f"{guarded.id}, {guarded.where}, {check}"
            yield f"broken by the guard: {place}: {guarded.failures[check]}"


def _other_bits(entry: Entry) -> Iterator[str]:
    """The configurations of stable bare steps for which the guarded one gives other bits.

    With x64 on, guarded optimizers compute in 32 bits, and bare ones do not: x64 off only.
    """
    for configuration in CONFIGURATIONS:
        if not configuration.x64:
            with set_x64(False):
                steps = [_two_steps(entry, configuration, flag) for flag in (False, True)]
            if steps[0] is not None and not _equal(*steps):
                yield f"other bits: {entry.id}, {configuration.name}"


def _two_steps(entry: Entry, configuration: Configuration, guarded: bool) -> Any:
    """Params and state after two jitted steps; None where the bare one is not stable."""
    params, updates, extra_args = entry.inputs(configuration.params, configuration.grads)
    opt = guard(entry.build()) if guarded else entry.build()

    @jax.jit
    def step(params, state):
        new_updates, state = opt.update(updates, state, params, **extra_args)
        return optax.apply_updates(params, new_updates), state, new_updates

    try:
        state = opt.init(params)
        for _ in range(2):
            before = state
            params, state, new_updates = step(params, state)
            same_types("state", before, state)
            same_types("updates", params, new_updates)
    except (Fault, TypeError, ValueError):
        return None
    return params, state


def _equal(one: Any, other: Any) -> bool:
    def bits(leaf: Any) -> bytes:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf).tobytes()

    pair = [[bits(leaf) for leaf in tree_util.tree_leaves(tree)] for tree in (one, other)]
    return pair[0] == pair[1]


if __name__ == "__main__":
    sys.exit(main())
