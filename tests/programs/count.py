"""Prints how dtypeguard does on the programs: `python tests/programs/count.py`."""

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import harness
import jax
from mistakes import MISTAKES


def main() -> None:
    """Runs every program bare and guarded, with and without its mistakes."""
    with jax.numpy_dtype_promotion("standard"), tempfile.TemporaryDirectory() as folder:
        _count_the_stable()
        _count_the_failing(pathlib.Path(folder))


def _count_the_stable() -> None:
    configurations = len(harness.CONFIGURATIONS)
    print(f"{len(harness.PROGRAMS)} programs in {configurations} configurations")
    stable = {
        pair: harness.run_once(*pair, "bare")
        for pair in harness.AS_THEY_ARE
        if harness.run_once(*pair, "bare").ok
    }
    for wrap in ("guard", "guard_step", "both"):
        broken = [
            "-".join(pair)
            for pair, bare in stable.items()
            if not harness.run_once(*pair, wrap).ok
            or harness.run_once(*pair, wrap).types != bare.types
        ]
        _print(f"stable ones that {wrap} breaks", len(broken), len(stable), broken)


def _count_the_failing(folder: pathlib.Path) -> None:
    not_wrapped, not_advised, not_named = [], [], []
    planted = [mistake for mistake in MISTAKES if mistake.is_planted]
    for number, mistake in enumerate(MISTAKES):
        place = folder / str(number)
        place.mkdir()
        said = harness.told(mistake, place)
        assert not said.run.ok, mistake.id
        if not any(
            harness.run(said.path, mistake.configuration, wrap).ok
            for wrap in ("guard", "guard_step")
        ):
            not_wrapped.append(mistake.id)
        fixed = harness.written(mistake, place, is_fixed=True)
        is_advised = mistake.advice in said.text
        if not (is_advised and harness.run(fixed, mistake.configuration).ok):
            not_advised.append(mistake.id)
        if mistake.is_planted and not said.is_named:
            not_named.append(mistake.id)
    total = len(MISTAKES)
    mended = "failing ones that one line of wrapping mends"
    _print(mended, total - len(not_wrapped), total, not_wrapped)
    _print("that what is printed mends", total - len(not_advised), total, not_advised)
    named = "mistakes of which the line at fault is named"
    _print(named, len(planted) - len(not_named), len(planted), not_named)


def _print(what: str, number: int, total: int, left: list[str]) -> None:
    print(f"{what}: {number} of {total}", *left, sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
