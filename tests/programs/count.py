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
        # A program that is compiled again is mostly one that was compiled before.
        jax.config.update("jax_compilation_cache_dir", f"{folder}/compiled")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        _count_the_stable()
        _count_the_failing(pathlib.Path(folder))


def _count_the_stable() -> None:
    pairs = [pair for pair in harness.AS_THEY_ARE if harness.run_once(*pair, "bare").ok]
    configurations = len(harness.CONFIGURATIONS)
    print(f"{len(harness.PROGRAMS)} programs in {configurations} configurations")
    for wrap in ("guard", "guard_step", "both"):
        found = {"-".join(pair): harness.differences(*pair, wrap) for pair in pairs}
        broken = [f"{name}: {', '.join(why)}" for name, why in found.items() if why]
        _print(f"stable ones that {wrap} leaves as they are", len(pairs), broken)


def _count_the_failing(folder: pathlib.Path) -> None:
    left: dict[str, list[str]] = {
        "guard mends": [],
        "guard_step mends": [],
        "one of the two mends": [],
        "what is printed mends": [],
    }
    planted = [mistake for mistake in MISTAKES if mistake.is_planted]
    not_named = []
    for number, mistake in enumerate(MISTAKES):
        place = folder / str(number)
        place.mkdir()
        told = harness.told(mistake, place)
        fixed = harness.written(mistake, place, is_fixed=True)
        guard, guard_step = (
            harness.run(told.path, mistake.configuration, wrap).ok
            for wrap in ("guard", "guard_step")
        )
        is_advised = mistake.advice in told.text
        is_mended = is_advised and harness.run(fixed, mistake.configuration).ok
        found = guard, guard_step, guard or guard_step, is_mended
        for names, is_so in zip(left.values(), found):
            names += [] if is_so else [mistake.id]
        if mistake.is_planted and not told.is_named:
            not_named.append(mistake.id)
    for what, names in left.items():
        _print(f"failing ones that {what}", len(MISTAKES), names)
    _print("mistakes of which the line at fault is named", len(planted), not_named)


def _print(what: str, total: int, left: list[str]) -> None:
    """Prints how many there are, and those that are not among them by name."""
    print(f"{what}: {total - len(left)} of {total}", *left, sep="\n    not ", flush=True)


if __name__ == "__main__":
    main()
