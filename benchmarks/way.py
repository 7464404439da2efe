"""The way of one leaf through the rooms: `python benchmarks/way.py`, a few seconds.

A carry in bfloat16 is multiplied by a float32 constant of the module. The script profiles
how `explain`, `guard`, `guard_step` and `audit` treat it, and counts the rooms and the
files on the way, and the returns: how often control passes to a room that it had been in
before and had left. The same is counted for files.

A function counts the first time that it runs: what repeats for each value of a graph is
one step of the way. A helper is no step. That is a call from another room whose own calls
all stay in its room and in `_leaves`, and any call of `_leaves`: it answers and knows
nothing of the way. Comprehensions and lambdas belong to the function around them.

Count from Python 3.12 on: on 3.11 a profiler may keep the library from seeing calls itself.
"""

import contextlib
import itertools
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dtypeguard

ROOT = pathlib.Path(dtypeguard.__file__).parent
SCALE = jnp.asarray(np.float32(0.5))
NARROW = jnp.zeros(3, jnp.bfloat16)


class Passage(NamedTuple):
    """A call of a function of the library.

    Attributes:
        file: below the package.
        function: its qualified name.
        caller: the number of the nearest caller in the library; None if there is none.
    """

    file: str
    function: str
    caller: int | None

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]


class Way(NamedTuple):
    """What is on the way, and how often it comes back."""

    rooms: list[str]
    files: list[str]
    returns: int
    returns_to_files: int


@contextlib.contextmanager
def profiled() -> Iterator[list[Passage]]:
    """Records the calls of the library."""
    passages: list[Passage] = []
    running: list[int] = []

    def see(frame: FrameType, event: str, _: object) -> None:
        file = pathlib.Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not file.is_relative_to(ROOT):
            return
        if event == "return":
            del running[-1:]  # none for what ran before
            return
        caller = running[-1] if running else None
        running.append(len(passages))
        name = file.relative_to(ROOT).as_posix()
        passages.append(Passage(name, frame.f_code.co_qualname, caller))

    sys.setprofile(see)
    try:
        yield passages
    finally:
        sys.setprofile(None)


def way(program: Callable[[], object]) -> Way:
    """The way of a program that may raise a TypeError."""
    with profiled() as passages, contextlib.suppress(TypeError):
        program()
    steps = dict.fromkeys(step[:2] for step in _steps(passages))
    rooms = [file.partition("/")[0] for file, _ in steps]
    files = [file for file, _ in steps]
    names = list(dict.fromkeys(rooms)), list(dict.fromkeys(files))
    return Way(*names, _returns(rooms), _returns(files))


def _steps(passages: Sequence[Passage]) -> Iterator[Passage]:
    stays = [True] * len(passages)
    for number, each in reversed([*enumerate(passages)]):
        if each.caller is not None and each.room != "_leaves":
            is_near = each.room == passages[each.caller].room
            stays[each.caller] &= is_near and stays[number]
    is_helper = [each.room == "_leaves" for each in passages]
    for number, each in enumerate(passages):
        if each.caller is not None:
            is_other = each.room != passages[each.caller].room
            is_helper[number] |= is_helper[each.caller] or (is_other and stays[number])
        if not is_helper[number] and not each.function.endswith(">"):
            yield each


def _returns(names: Sequence[str]) -> int:
    left, returns = set(), 0
    for before, now in itertools.pairwise(names):
        left.add(before)
        returns += now != before and now in left
    return returns


def body(carry, x):
    return carry * SCALE, None


def explained():
    with dtypeguard.explain():
        jax.lax.scan(body, NARROW, jnp.ones(4, jnp.bfloat16))


def guarded():
    opt = dtypeguard.guard(optax.adam(1e-3))
    params, grads = {"w": NARROW}, {"w": NARROW.astype(jnp.float32)}
    opt.update(grads, opt.init(params), params)


def guarded_step():
    step = dtypeguard.guard_step(lambda carry: carry * SCALE)
    jax.jit(step)(NARROW)


def audited_step():
    return str(dtypeguard.audit(lambda carry: carry * SCALE, NARROW))


PROGRAMS = {
    "explain": explained,
    "guard": guarded,
    "guard_step": guarded_step,
    "audit": audited_step,
}


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"{'':12}rooms  returns  files  returns to a file")
    for name, program in PROGRAMS.items():
        rooms, files, returns, to_files = way(program)
        print(f"{name:12}{len(rooms):5}{returns:9}{len(files):7}{to_files:19}")


if __name__ == "__main__":
    main()
