"""Whole programs of public packages, bare and guarded: trainers, samplers, solvers.

    python -m venv .programs
    .programs/bin/pip install . rejax brax gymnax six jumanji omegaconf numpyro blackjax \
        flowjax gpjax optimistix diffrax jaxopt penzai evosax dynamax tfp-nightly \
        flowMC bayex ott-jax mpax mctx mutax wandb moviepy einops scikit-learn \
        e3nn-jax frozendict
    .programs/bin/pip install --no-deps navix dopamax qdax jax-md jraph
    .programs/bin/python benchmarks/programs.py

The programs, small, are in `public_programs.py`. The last line of pip takes packages that
ask for an older JAX, or for what their programs do not need. Scripts and notebooks are read
from checkouts of the repositories that `public_scripts.py` names, in `.programs/sources`;
they need distrax, dp-accounting, dm-haiku and ml_collections besides.

Each runs bare, and then guarded in four ways: as its user would, who guards an optimizer
that it is handed, a step that is overridden in a subclass, or a jitted step; inside of
`jit`, where a script jits a step; with `guard_step` around the body of *every* `lax.scan`,
`while_loop` and `fori_loop` (and Equinox's) that it or a package below it calls; and with
`guard` around every optimizer that it makes of Optax. Then it runs bare within `explain`,
which may change nothing. It does so with x64 off and on, and, where its data may be of any
dtype, with float32 data under x64 and with bfloat16 data.

A program that runs bare has to run guarded, give the same bits in the same types, and
compile no function of its own more often. The script names each that does not, and exits 1.
An optimizer may give others where it has something to cast (gradients wider than the
params), and under x64, which it hides from the optimizer. A program that raises over types
bare is mended if it runs guarded.

Packages run in processes of their own, one after the other; programs that a guarded side
compiles to the same program are compiled once. What is missing or fails bare is named.
"""

import argparse
import collections
import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, monitoring, tree_util
from jax.core import Tracer

import dtypeguard

BARE, BY_HAND, INSIDE, LOOPS = "bare", "by hand", "inside jit", "every loop"
OPTIMIZERS, EXPLAINED = "every optimizer", "explained"
GUARDED = (BY_HAND, INSIDE, LOOPS, OPTIMIZERS, EXPLAINED)


class Setting(NamedTuple):
    """Whether x64 is on, and the dtype of the data that a program is given, if any."""

    x64: bool
    dtype: str | None


SETTINGS = {
    "x64 off": Setting(False, None),
    "x64 on": Setting(True, None),
    "x64 on, float32 data": Setting(True, "float32"),
    "bfloat16 data": Setting(False, "bfloat16"),
}


class Call(NamedTuple):
    """The first call of a step."""

    step: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


class Guards:
    """What of a program is guarded: nothing, what its user hands in, or all of a kind.

    Attributes:
        side: `BARE`, or one of `GUARDED`.
        dtype: that of the program's data; None for what it has by itself.
        counts: what has been seen of each kind, guarded or not.
        took_data: whether the program takes its data in any dtype.
        outputs: what the steps of a script returned.
        calls: the first call of each step of a script.
    """

    def __init__(self, dtype: str | None = None):
        self.side = BARE
        self.dtype = dtype
        self.counts: collections.Counter[str] = collections.Counter()
        self.took_data = False
        self.outputs: list[Any] = []
        self.calls: dict[str, Call] = {}

    def step(self, step: Any, **options: Any) -> Any:
        """A step that a program's user would guard."""
        self.counts[BY_HAND] += 1
        return dtypeguard.guard_step(step, **options) if self.side == BY_HAND else step

    def jitted(self, jit: Callable[[Any], Any], step: Any, **options: Any) -> Any:
        """A step that a script jits, guarded outside of `jit` or inside."""
        self.counts.update((BY_HAND, INSIDE))
        inner = dtypeguard.guard_step(step, **options) if self.side == INSIDE else step
        made = jit(inner)
        if self.side == BY_HAND:
            made = dtypeguard.guard_step(made, **options)
        name = getattr(step, "__name__", "step")

        @functools.wraps(step)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(x, Tracer) for x in tree_util.tree_leaves(args)):
                return made(*args, **kwargs)
            if name not in self.calls:
                self.calls[name] = Call(step, _copied(args), _copied(kwargs), options)
            out = made(*args, **kwargs)
            self.outputs.append((name, _kept(out), _kept(_states(args))))
            return out

        return recorded

    def optimizer(self, opt: Any) -> Any:
        """An optimizer that a program's user would guard."""
        self.counts[BY_HAND] += 1
        return _guarded(opt) if self.side == BY_HAND else opt

    @contextlib.contextmanager
    def replaced(self, owner: Any, name: str, **options: Any) -> Iterator[None]:
        """Has a class hold its step guarded, as a subclass of its user's would."""
        is_own, step = name in vars(owner), getattr(owner, name)
        setattr(owner, name, self.step(step, **options))
        try:
            yield
        finally:
            setattr(owner, name, step) if is_own else delattr(owner, name)

    def data(self, tree: Any) -> Any:
        """A program's data, its floating arrays in the dtype of the setting."""
        self.took_data = True
        if self.dtype is None:
            return tree
        return tree_util.tree_map(
            lambda x: x.astype(self.dtype) if _is_floating(x) else x, tree
        )

    def install(self) -> None:
        """Puts itself before the loops of JAX and Equinox, and the factories of Optax.

        Whatever is imported after this, and looks them up in `jax.lax`, finds them so.
        """
        internal = importlib.import_module("equinox.internal")
        for module, name, position, carry in (
            (lax, "scan", 0, 0),
            (lax, "while_loop", 1, 0),
            (lax, "fori_loop", 2, 1),
            (internal, "while_loop", 1, 0),
            (internal, "scan", 0, 0),
        ):
            setattr(module, name, self._loop(getattr(module, name), position, carry))
        for module in map(importlib.import_module, ("optax", "optax.contrib")):
            for name in dir(module):
                factory = getattr(module, name)
                if callable(factory) and not isinstance(factory, type):
                    setattr(module, name, self._factory(factory))

    def _loop(self, loop: Any, position: int, carry: int) -> Any:
        """A loop that guards its body: the argument at a position."""
        name = "body_fun" if position else "f"

        @functools.wraps(loop)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.counts[LOOPS] += 1
            if self.side != LOOPS:
                return loop(*args, **kwargs)
            body = kwargs.get(name, (*args, None, None, None)[position])
            body = dtypeguard.guard_step(body, carry=carry)
            if name in kwargs:
                return loop(*args, **{**kwargs, name: body})
            return loop(*args[:position], body, *args[position + 1 :], **kwargs)

        return guarded

    def _factory(self, factory: Any) -> Any:
        """A function that guards what it returns if that is an optimizer."""

        @functools.wraps(factory)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            made = factory(*args, **kwargs)
            if not (hasattr(made, "init") and hasattr(made, "update")):
                return made
            self.counts[OPTIMIZERS] += 1
            return _guarded(made) if self.side == OPTIMIZERS else made

        return guarded


def _copied(tree: Any) -> Any:
    """A tree whose arrays outlive a donation, its NNX modules those of before a step."""
    nnx = sys.modules.get("flax.nnx")
    if nnx and _states(tree):
        with contextlib.suppress(Exception):
            tree = nnx.clone(tree)
    return tree_util.tree_map(lambda x: x.copy() if isinstance(x, jax.Array) else x, tree)


def _states(tree: Any) -> list[Any]:
    """The variables of the NNX modules among arguments."""
    nnx = sys.modules.get("flax.nnx")
    return [nnx.state(x) for x in tree if isinstance(x, nnx.Module)] if nnx else []


def _kept(tree: Any) -> list[tuple[str, str, bytes]]:
    """The leaves of a tree: path, type and bytes."""
    leaves, _ = tree_util.tree_flatten_with_path(tree)
    return [(tree_util.keystr(path), *_bits(leaf)) for path, leaf in leaves]


def _guarded(opt: Any) -> Any:
    """A guarded optimizer that warns where it casts what the bare one returns."""
    return dtypeguard.guard(opt, policy=dtypeguard.Policy(on_drift="warn"))


class Run(NamedTuple):
    """What became of a program on one side.

    Attributes:
        error: None if it ran.
        traceback: where it was raised.
        compilations: of its functions, by name, single operations of JAX aside.
        leaves: of its results: path, type and bytes.
        casts: whether a guarded optimizer had something to cast.
    """

    error: Exception | None
    traceback: str
    compilations: collections.Counter[str]
    leaves: list[tuple[str, str, bytes]]
    casts: bool = False


class Result(NamedTuple):
    """One line of the table: a program in one setting.

    Attributes:
        package: its name and version.
        program: the program's name.
        setting: one of `SETTINGS`.
        outcomes: what became of it, by side: "runs" or what it raises for the bare one;
            for a guarded one "same" for the same bits, or what else there is.
        broken: the sides on which a guard broke or changed what runs bare.
        mended: those that run where the bare one raises over types.
        compilations: of its functions, by side.
    """

    package: str
    program: str
    setting: str
    outcomes: dict[str, str]
    broken: list[str]
    mended: list[str]
    compilations: dict[str, int]


def main() -> int:
    """Runs what is installed; 1 if a guard broke or changed what ran."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    packages = [*_packages()]
    parser.add_argument("--only", nargs="+", default=packages, choices=packages)
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _run_package(*options.child)
        return 0
    results, left_out = [], []
    for package in options.only:
        name = _version(package)
        if name is None:
            left_out.append(f"{package} is not here: see the head of this file")
            continue
        for setting in options.settings:
            for result in _in_a_process(package, setting, left_out):
                results.append(result._replace(package=name))
                _print_line(results[-1], header=len(results) == 1)
    return _print_end(results, left_out)


def _version(package: str) -> str | None:
    """A package or repository with its version; None if it is not here."""
    folder = package.removesuffix(" scripts")
    if folder != package:
        scripts = importlib.import_module("public_scripts")
        is_here = (scripts.SOURCES / folder).is_dir()
        return scripts.REPOSITORIES[folder] if is_here else None
    name = _packages()[package]
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> dict[str, str]:
    """What `--only` takes, and the names under which pip knows it."""
    module = importlib.import_module("public_programs")
    return {name: module.PIP.get(name, name) for name in module.PACKAGES}


_LIMIT_S = 1800


def _in_a_process(package: str, setting: str, left_out: list[str]) -> Iterator[Result]:
    """The results of a package, each crash costing one program alone."""
    done: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "results")
        while True:
            out.write_text("\n".join([json.dumps(done), ""]))
            flags = {"JAX_ENABLE_X64": str(int(SETTINGS[setting].x64))}
            flags["JAX_COMPILATION_CACHE_DIR"] = str(pathlib.Path(folder, "cache"))
            if package.endswith(" scripts"):  # some shard over eight devices
                devices = "--xla_force_host_platform_device_count=8"
                flags["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
            command = [sys.executable, __file__, "--child", package, setting, str(out)]
            try:
                ended = subprocess.run(
                    command,
                    env=os.environ | _CACHE_ALL | flags,
                    capture_output=True,
                    text=True,
                    timeout=_LIMIT_S,
                )
                code, said = ended.returncode, ended.stderr
            except subprocess.TimeoutExpired:
                code, said = -1, f"{_LIMIT_S} s are over"
            started = None
            for line in out.read_text().splitlines()[1:]:
                kind, _, rest = line.partition(" ")
                if kind == "start":
                    started = rest
                    done.append(rest)
                elif kind == "result":
                    started = None
                    yield Result(*json.loads(rest))
                elif kind == "left_out":
                    started = None
                    left_out.append(rest)
            if not code:
                return
            last = (said.strip().splitlines() or [""])[-1]
            left_out.append(f"{package} {started or ''}, {setting}: crashed: {last[:300]}")
            if started is None:
                return


# Guarded sides that lower to a program that the bare one has compiled need not compile it.
_CACHE_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def _run_package(package: str, setting: str, out: str) -> None:
    """Runs the programs of a package and appends what became of each to a file."""
    warnings.simplefilter("ignore")
    guards = Guards(SETTINGS[setting].dtype)
    guards.install()
    monitoring.register_event_duration_secs_listener(_count)
    with open(out, "a+", buffering=1) as file:
        file.seek(0)
        done = json.loads(file.readline())
        programs = importlib.import_module("public_programs").PACKAGES[package]()
        for name, program in programs:
            if name in done:
                continue
            print("start", name, file=file)
            result = _result(program, guards, setting)
            if isinstance(result, str):
                line = f"{package} {name}, {setting}: {result}"
                print("left_out", line, file=file) if result else None
            else:
                result = result._replace(package=package, program=name)
                print("result", json.dumps(result), file=file)


def _result(program: Callable[[Guards], Any], guards: Guards, setting: str) -> Any:
    """A `Result`, or why there is none; "" if the setting makes no difference."""
    guards.took_data = False
    bare = _run(program, guards, BARE)
    if guards.dtype and not guards.took_data:
        return ""
    counts = guards.counts.copy()
    if bare.error and not _is_over_types(bare.error):
        return f"fails bare: {_one_line(bare.error)}"
    outcomes = {BARE: _one_line(bare.error) if bare.error else "runs"}
    compilations = {BARE: bare.compilations.total()}
    broken, mended = [], []
    for side in GUARDED:
        if side != EXPLAINED and not counts[side]:
            outcomes[side] = "-"
            continue
        run = _run(program, guards, side)
        outcomes[side] = _outcome(bare, run)
        compilations[side] = run.compilations.total()
        new = run.compilations - bare.compilations
        # An optimizer's updates come back in the dtypes of its params, x64 hidden from it.
        is_meant = run.casts or (SETTINGS[setting].x64 and side != LOOPS)
        is_changed = outcomes[side].startswith("other") and not is_meant
        if bare.error is None and (run.error or is_changed):
            broken.append(side)
        elif bare.error is None and compilations[side] > compilations[BARE]:
            broken.append(side)
            outcomes[side] += f", compiles {', '.join(map(str, new))} again"
        elif bare.error and not run.error:
            mended.append(side)
        if run.error and not bare.error:
            print(run.traceback, file=sys.stderr)
    return Result("", "", setting, outcomes, broken, mended, compilations)


def _outputs(outputs: list[Any]) -> list[tuple[str, str, bytes]]:
    return [
        (f"call {n} of {name}{path}", *rest)
        for n, (name, *parts) in enumerate(outputs)
        for part in parts
        for path, *rest in part
    ]


def _outcome(bare: Run, run: Run) -> str:
    if run.error:
        return _one_line(run.error)
    if bare.error:
        return "runs"
    if [path for path, *_ in bare.leaves] != [path for path, *_ in run.leaves]:
        return "other tree"
    pairs = [(old, new) for old, new in zip(bare.leaves, run.leaves) if old != new]
    for (path, old, _), (_, new, _) in pairs:
        if old != new:
            return f"other types: {path} {old} -> {new}"
    if pairs:
        return f"other bits: {len(pairs)} of {len(bare.leaves)} leaves, {pairs[0][0][0]}"
    return "same"


def _run(program: Callable[[Guards], Any], guards: Guards, side: str) -> Run:
    """Runs a program on one side, all that JAX has traced forgotten before."""
    jax.clear_caches()
    guards.side = side
    guards.counts.clear()
    guards.outputs, guards.calls = [], {}
    _compilations.clear()
    explain = dtypeguard.explain if side == EXPLAINED else contextlib.nullcontext
    try:
        with _quiet() as warned, explain():
            out = program(guards)
        leaves = _outputs(guards.outputs) if out is guards.outputs else _kept(out)
    except Exception as error:
        return Run(error, traceback.format_exc(), collections.Counter(), [])
    own = {name: n for name, n in _compilations.items() if not _is_one_operation(name)}
    casts = any("changed the dtype" in str(each.message) for each in warned)
    return Run(None, "", collections.Counter(own), leaves, casts)


@contextlib.contextmanager
def _quiet() -> Iterator[list[Any]]:
    """Keeps what is printed to itself, and returns what is warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        with contextlib.redirect_stdout(io.StringIO()):
            yield warned


_compilations: collections.Counter[str] = collections.Counter()


def _count(event: str, duration_secs: float, **metadata: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        name = str(metadata.get("fun_name", ""))
        _compilations[name.removeprefix("jit(").removesuffix(")")] += 1


def _is_one_operation(name: str) -> bool:
    """Whether a compiled function is an operation of JAX that ran outside of any `jit`."""
    if name in ("scan", "while_loop", "cond", "map"):
        return False
    names = (name, name.removeprefix("_"))
    return any(hasattr(module, name) for module in (lax, jnp) for name in names)


def _bits(leaf: Any) -> tuple[str, bytes]:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        array = np.asarray(leaf)
        return f"{array.dtype}{[*array.shape]}", array.tobytes()
    return type(leaf).__name__, b""


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "astype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _is_over_types(error: Exception) -> bool:
    words = "dtype|same input and output structure"  # as JAX and as Equinox say it
    if isinstance(error, TypeError):
        words += r"|(float|int)\d"
    return re.search(words, str(error)) is not None


def _one_line(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:240]}"


def _print_line(result: Result, header: bool) -> None:
    if header:
        heads = ["package", "program", "setting", BARE, *GUARDED, "compilations"]
        print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    short = lambda text: text.partition(":")[0]
    cells = [short(result.outcomes[side]) for side in (BARE, *GUARDED)]
    guarded = [n for side, n in result.compilations.items() if side != BARE]
    compilations = f"{result.compilations[BARE]} -> {max(guarded, default='-')}"
    row = [*result[:3], *cells, compilations]
    print(f"| {' | '.join(row)} |", flush=True)


def _print_end(results: list[Result], left_out: list[str]) -> int:
    ran = [r for r in results if r.outcomes[BARE] == "runs"]
    raising = [r for r in results if r not in ran]
    broken = [r for r in results if r.broken]
    packages = len({r.package for r in results})
    print(
        f"\n{len({(r.package, r.program) for r in results})} programs of {packages} "
        f"packages. In all settings {len(ran)} runs bare, of which a guard broke or "
        f"changed {len(broken)}; {len(raising)} raise over types bare, of which a guard "
        f"mends {sum(bool(r.mended) for r in raising)} (jax {jax.__version__})"
    )
    for line in left_out:
        print(f"- {line}")
    for result in results:
        name = f"{result.package} {result.program}, {result.setting}"
        for side, outcome in result.outcomes.items():
            if side in result.broken:
                print(f"- broken by the guard: {name}, {side}: {outcome}")
            elif outcome not in ("same", "-", "runs"):
                print(f"- {name}, {side}: {outcome}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
