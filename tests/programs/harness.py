"""Runs the programs: bare and guarded, as they are and with a mistake in them.

A program is a file beside this one with one function, `train(dtype, opt, step)`: `dtype` is
its own knob, `opt` stands where its author would write `dtypeguard.guard`, and `step` where
`dtypeguard.guard_step`. It returns its losses, its first carry, its last, and how often
what it hands to `jit` was traced.
"""

import contextlib
import functools
import importlib.util
import itertools
import pathlib
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from helpers import set_x64
from jax import tree_util
from mistakes import MISTAKES, Mistake

import dtypeguard

HERE = pathlib.Path(__file__).parent
PROGRAMS = (
    "equinox_rnn",
    "nnx_classifier",
    "haiku_rnn",
    "linen_lm",
    "svi",
    "neural_ode",
    "mixed_precision",
)
CONFIGURATIONS = {
    "float32": (jnp.float32, False),
    "bfloat16": (jnp.bfloat16, False),
    "x64": (jnp.float32, True),
}
_FAILING = {(m.program, m.configuration) for m in MISTAKES if not m.is_planted}
AS_THEY_ARE = [
    pair for pair in itertools.product(PROGRAMS, CONFIGURATIONS) if pair not in _FAILING
]


def _same(function: Any, **_: Any) -> Any:
    return function


WRAPS: dict[str, dict[str, Any]] = {
    "bare": {"opt": _same, "step": _same},
    "guard": {"opt": dtypeguard.guard, "step": _same},
    "guard_step": {"opt": _same, "step": dtypeguard.guard_step},
    "both": {"opt": dtypeguard.guard, "step": dtypeguard.guard_step},
}


class Run(NamedTuple):
    """What came of a program.

    Attributes:
        losses: as it returned them; None if it raised.
        types: dtype and shape of every array of its last carry, by path.
        drifts: the leaves that had chosen another dtype in the first carry.
        traces: how often what it jits was traced.
        error: what it raised.
        warned: what dtypeguard said.
    """

    losses: list[float] | None
    types: dict[str, tuple[str, tuple[int, ...]]]
    drifts: dict[str, str]
    traces: int
    error: Exception | None
    warned: list[str]

    @property
    def ok(self) -> bool:
        """Whether it ran, and everything kept its dtype."""
        return self.error is None and not self.drifts

    def differs_from(self, bare: "Run") -> list[str]:
        """In what it is not as good as a bare run that is ok."""
        differences = {
            "it fails": self.error is not None,
            "it drifts": bool(self.drifts),
            "it warns": bool(self.warned),
            "it has other losses": self.losses != bare.losses,
            "its last carry has other types": self.types != bare.types,
            "it is traced more often": self.traces > bare.traces,
        }
        return [name for name, is_so in differences.items() if is_so]


def load(path: pathlib.Path) -> Any:
    """The module of a file, made anew under a name of its own."""
    name = f"program_{path.stem}_{next(_NUMBERS)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Flax and Equinox look their classes' modules up
    try:
        spec.loader.exec_module(module)
        return module
    finally:
        del sys.modules[name]


_NUMBERS = itertools.count()


def run(path: pathlib.Path, configuration: str, wrap: str = "bare") -> Run:
    """Runs the program in a file in one of `CONFIGURATIONS`, with one of `WRAPS`."""
    dtype, x64 = CONFIGURATIONS[configuration]
    module = load(path)
    error, result = None, (None, {}, {}, 0)
    with set_x64(x64), quick_keys(), _warnings() as warned:
        try:
            result = module.train(dtype, **WRAPS[wrap])
        except (TypeError, ValueError) as raised:
            error = raised
    losses, first, last, traces = result
    before, after = _types(first), _types(last)
    chosen = {path: dtype for path, (dtype, _, is_weak) in before.items() if not is_weak}
    drifts = {
        path: f"{dtype} -> {after[path][0] if path in after else 'gone'}"
        for path, dtype in chosen.items()
        if path not in after or after[path][0] != dtype
    }
    types = {path: (dtype, shape) for path, (dtype, shape, _) in after.items()}
    return Run(losses, types, drifts, traces, error, warned)


@functools.cache
def run_once(program: str, configuration: str, wrap: str) -> Run:
    """A program as it is, run once for all tests of a process."""
    return run(HERE / f"{program}.py", configuration, wrap)


def differences(program: str, configuration: str, wrap: str) -> list[str]:
    """In what a guarded program is not as good as the bare one; both as they are."""
    bare, guarded = (run_once(program, configuration, each) for each in ("bare", wrap))
    if configuration == "x64" and wrap != "guard_step" and guarded.losses and bare.losses:
        # Optax computes some scalars in float64 there, and a guarded optimizer none.
        near = np.allclose(guarded.losses, bare.losses, rtol=1e-3, atol=0, equal_nan=True)
        guarded = guarded._replace(losses=bare.losses) if near else guarded
    return guarded.differs_from(bare)


def _types(tree: Any) -> dict[str, tuple[str, tuple[int, ...], bool]]:
    """Dtype, shape and weak type of every array and number, by path."""
    found = {}
    for path, leaf in tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, (int, float)) or hasattr(leaf, "shape"):
            dtype = getattr(leaf, "dtype", None) or jax.dtypes.result_type(leaf)
            is_number = isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
            is_weak = getattr(leaf, "weak_type", is_number)
            found[tree_util.keystr(path)] = str(dtype), np.shape(leaf), is_weak
    return found


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collects what dtypeguard warns of; any other warning is an error."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation")
        yield said
    said += [str(each.message) for each in caught]


# Threefry is a long program, and these of a few steps mostly compile.
quick_keys = functools.partial(jax.default_prng_impl, "rbg")


def written(mistake: Mistake, folder: pathlib.Path, is_fixed: bool = False) -> pathlib.Path:
    """Writes the program with the mistake, or with what is to mend it as well."""
    text = changed((HERE / f"{mistake.program}.py").read_text(), mistake.change)
    if is_fixed:
        text = changed(text, mistake.fix) if mistake.fix else wrapped(text, mistake.advice)
    if "dtypeguard." in text:
        text = text.replace("\nimport jax\n", "\nimport dtypeguard\nimport jax\n", 1)
    path = folder / f"{mistake.program}{'_fixed' if is_fixed else ''}.py"
    path.write_text(text)
    return path


def changed(text: str, changes: Sequence[tuple[str, str]]) -> str:
    """A program, some of its lines replaced."""
    for old, new in changes:
        if text.count(f"\n{old}\n") != 1:
            raise ValueError(f"not once in the program: {old}")
        text = text.replace(f"\n{old}\n", f"\n{new}\n")
    return text


def wrapped(text: str, advice: str) -> str:
    """A program with the guard that an advice names, in the place that it names."""
    kind, name = next(filter(None, (re.search(form, advice) for form in _GUARDS))).groups()
    place = rf"\bstep(?=(\(|\n +def |, .*\n +def ){name}\b)"
    place = r"(?<=[ (=])opt(?=\()" if kind == "guard" else place
    text, count = re.subn(place, f"dtypeguard.{kind}", text)
    if count != 1:
        raise ValueError(f"{count} places for: {advice}")
    return text


# What it is put around may stand in a wrapper of the program's, or be decorated.
_GUARDS = (
    re.compile(r"dtypeguard\.(guard|guard_step)\((?:[\w.]+\()?(\w+)"),
    re.compile(r"@dtypeguard\.(guard_step) directly above def (\w+)"),
)


def guarded_outside(program: str, folder: pathlib.Path) -> pathlib.Path:
    """Writes a program with the step outside of `jit`, where it was inside."""
    jits = r"(    @(?:jax|nnx|eqx)\.(?:filter_)?jit\n)"
    steps = r"(    @(?:step|functools\.partial\(step, .*\))\n)"
    text = re.sub(jits + steps, r"\2\1", (HERE / f"{program}.py").read_text())
    path = folder / f"{program}.py"
    path.write_text(text)
    return path
