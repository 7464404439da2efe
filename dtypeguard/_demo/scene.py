"""Runs the scenes of the demo, and says in a line or two how each went."""

import importlib.util
import os
import re
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import optax

from .._audit.report import AuditReport
from .._explain.explain import explain
from .._leaves.compat import set_x64
from .._leaves.rows import percent
from .._lock.text import LockError
from .._precision.report import PrecisionReport
from .._source.origin import Origin

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scenes")
# The folders of the scenes' files and of their lock, which lines are shown without.
_FOLDERS = re.compile(r"[^\s(]*scenes[/\\]|[^\s(]*[/\\](?=step\.lock)")
RUNS = "runs, and gives back the types it was given"


class PlayedHalf(NamedTuple):
    """How one half of a scene went."""

    text: str
    line: str = ""
    whole: str = ""
    is_error: bool = False
    is_missing: bool = False


class Scene(NamedTuple):
    """A scene that has run."""

    name: str
    title: str
    file: str
    call: str
    bare: PlayedHalf
    guarded: PlayedHalf

    @property
    def is_ok(self) -> bool:
        """Whether the second half went well, or cannot run in this release."""
        return not self.guarded.is_error or self.guarded.is_missing


def play(name: str) -> Scene:
    """Runs a scene."""
    file = os.path.join(FOLDER, f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"dtypeguard_demo_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    with set_x64(getattr(module, "X64", False)), jax.numpy_dtype_promotion("standard"):
        halves = _outcome(module.bare), _outcome(module.guarded)
    return Scene(name, title, file, module.CALL, *halves)


def _outcome(half: Callable[[], Any]) -> PlayedHalf:
    try:
        with explain():
            found = half()
    except Exception as error:
        return _raised(error)
    text, report = found if isinstance(found, tuple) else (found, None)
    if isinstance(text, (AuditReport, PrecisionReport)):
        text, report = "", text
    if report is None:
        return PlayedHalf(text or RUNS, "", text or RUNS)
    told, lines = _of_report(report)
    return PlayedHalf(text or told, _short(next(iter(lines), "")), str(report))


def _of_report(report: AuditReport | PrecisionReport) -> tuple[str, list[str]]:
    """What a report found, in one line, and the lines of source."""
    if isinstance(report, PrecisionReport):
        lines = [f"{x.place}  {x.origin.code if x.origin else ''}" for x in report.losses]
        return f"the outputs are {percent(report.error)} off", lines
    wide = sorted(report.wide_operations, key=lambda x: not x.is_array)
    arrays = sum(x.is_array for x in wide)
    parts = [f"{len(wide)} operations in 64 bits ({arrays} on arrays)"] * bool(wide)
    parts += [report.headline.rstrip(".")] * (not report.ok)
    lines = [f"{_place(x.origin)}  {x.primitive} makes {x.type}" for x in wide]
    lines += [
        f"{_place(x.origin)}  {x.name}  {x.before} -> {x.after}".strip()
        for x in report.drifts
    ]
    fine = "every leaf keeps its type, and nothing runs in 64 bits"
    return "; ".join(parts) or fine, lines


def _raised(error: Exception) -> PlayedHalf:
    whole = "".join(traceback.format_exception_only(error)).rstrip()
    first, *rest = [line.strip() for line in str(error).splitlines()] or [""]
    is_missing = isinstance(error, (NotImplementedError, LockError)) or (
        isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)
    )
    if is_missing:
        releases = f"optax {optax.__version__} and jax {jax.__version__}"
        first = f"not in {releases}: {first}"
    line = "  ".join(rest[:3])
    for leaf in getattr(error, "dtypeguard_rows", ())[:1]:
        first = error.__notes__[-1].partition("\n")[0].removeprefix("dtypeguard: ")
        types = " -> ".join(name.partition("[")[0] for name in leaf.types)
        line = f"{_place(leaf.origin)}  {leaf.path}  {types}"
    text = f"{type(error).__name__}: {first}"
    return PlayedHalf(_short(text), _short(line), whole, True, is_missing)


def _place(origin: Origin | None) -> str:
    return "" if origin is None else origin.place


def _short(text: str) -> str:
    return _FOLDERS.sub("", text)
