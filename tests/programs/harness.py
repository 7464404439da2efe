"""Runs the programs: bare and guarded, as they are and with a mistake in them.

A program is a file beside this one with one function, `train(dtype, opt, step)`: `dtype` is
its own knob, `opt` stands where its author would write `dtypeguard.guard`, and `step` where
`dtypeguard.guard_step`. It returns its losses, its first carry, its last, and how often
what it hands to `jit` was traced.

The mistakes that people make are in `mistakes.txt` as changes to lines of a program, one
after the other, below where it shows and what mends it best: "guard", "guard_step", or
"source" where only an edit of the program does. The line at fault ends with the comment
`# the mistake`. A program that fails as it is has no lines to change.
"""

import contextlib
import functools
import importlib.util
import itertools
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from helpers import set_x64
from jax import tree_util

import dtypeguard

HERE = pathlib.Path(__file__).parent
PROGRAMS = (
    "equinox_rnn",
    "nnx_classifier",
    "haiku_rnn",
    "linen_lm",
    "svi",
    "mixed_precision",
)
CONFIGURATIONS = {
    "float32": (jnp.float32, False),
    "bfloat16": (jnp.bfloat16, False),
    "x64": (jnp.float32, True),
}


def _same(function: Any, **_: Any) -> Any:
    return function


WRAPS: dict[str, dict[str, Any]] = {
    "bare": {"opt": _same, "step": _same},
    "guard": {"opt": dtypeguard.guard, "step": _same},
    "guard_step": {"opt": _same, "step": dtypeguard.guard_step},
}


class Mistake(NamedTuple):
    """A program that fails or drifts."""

    program: str
    configuration: str
    remedy: str
    name: str
    text: str


def mistakes(file: str = "mistakes.txt") -> Iterator[tuple[str, str, list[str]]]:
    """The head of each mistake of a file, its name, and the lines that change."""
    for text in (HERE / file).read_text().split("== ")[1:]:
        head, *lines = text.strip("\n").splitlines()
        kind, _, name = head.partition(": ")
        yield kind, name, lines


def changed(path: pathlib.Path, lines: list[str]) -> str:
    """The text of a program with lines after "- " replaced by those after "+ " below."""
    text = f"\n{path.read_text()}"
    runs = [
        "".join(f"\n{line[2:]}" for line in some) + "\n"
        for _, some in itertools.groupby(lines, key=lambda line: line[0])
    ]
    for old, new in zip(runs[::2], runs[1::2]):
        if text.count(old) != 1:
            raise ValueError(f"not once in {path.name}: {old}")
        text = text.replace(old, new)
    return text[1:]


MISTAKES = [
    Mistake(*kind.split(), name, changed(HERE / f"{kind.split()[0]}.py", lines))
    for kind, name, lines in mistakes()
]


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
    # Threefry is a long program, and these of a few steps mostly compile.
    with set_x64(x64), jax.default_prng_impl("rbg"), _warnings() as warned:
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
