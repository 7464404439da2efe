"""The table of notes: which planted mistakes `dtypeguard run` names.

    python tests/programs/notes.py             # exits 1 if a line in `notes.txt` is lost
    python tests/programs/notes.py NAME ...    # those of these names, with their notes

A row has the mistake, and whether the note names the line at fault, and first. Everything
runs in this process through `dtypeguard run`, and so with the record of values: it needs
Python 3.12.

A program by others (`others/`) makes the mistake that its argument names, at the line below
that name that ends with `# the mistake`; `in x64` after a name turns x64 on.
"""

import argparse
import contextlib
import io
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
SUPPORT = HERE.parent / "support"
TABLE = HERE / "notes.txt"
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

# Beside this file, which is run as a script.
import harness  # noqa: E402


class Planted(NamedTuple):
    """A script, and the lines at fault by the names of their mistakes."""

    name: str
    path: pathlib.Path
    lines: dict[str, int]
    x64: bool = False
    arguments: Sequence[str] = ()
    script: pathlib.Path | None = None  # which runs it, if it does not run by itself


class Row(NamedTuple):
    """What is said of a mistake."""

    mistake: str
    line: str
    is_named: bool
    is_first: bool
    note: str

    def __str__(self) -> str:
        """It as the table has it."""
        verdict = "first" if self.is_first else "named" if self.is_named else "-"
        return f"{self.mistake:<68} {verdict}"


_LINE = re.compile(r"[^\s(),:]+\.py:\d+")


def run(planted: Planted) -> str:
    """The note on the error of a script, with the list of compilations."""
    import jax

    from dtypeguard.__main__ import console

    out, flag, before = io.StringIO(), "jax_enable_x64", sys.modules["__main__"]
    was, path = jax.config.jax_enable_x64, sys.path[:]
    jax.config.update(flag, planted.x64)
    argv, sys.argv = sys.argv, ["dtypeguard", "run", "--format", "json"]
    sys.argv += [str(planted.script or planted.path), *planted.arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            console()
    except SystemExit:
        pass
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, before
        jax.config.update(flag, was)
    _, _, data = out.getvalue().rpartition('{\n "error"')
    found = json.loads(f'{{"error"{data}') if data else {}
    notes = (found.get("error") or {}).get("notes", ())
    return "\n".join([*(note["text"] for note in notes), *found.get("compiled_again", ())])


def rows(planted: Planted) -> Iterator[Row]:
    """A row for each mistake of a script."""
    note = run(planted)
    named = [pathlib.PurePath(x).name for x in _LINE.findall(note)]
    for name, number in planted.lines.items():
        at, mistake = f"{planted.path.name}:{number}", f"{planted.name}: {name}"
        yield Row(mistake, at, at in named, named[:1] == [at], note)


_FAULTS = re.compile(r"# (promotion|true_fun|false_fun|branches\[\d\]|operand): (\w+)")


def scripts() -> Iterator[Planted]:
    """The small scripts, with each of their mistakes: at the operand, if one is marked."""
    arguments = {"equinox_loops": ("scan", "lax")}
    for path in sorted((SUPPORT / "scripts").glob("*.py")):
        marks = [
            (found[1] == "operand", found[2], number)
            for number, text in enumerate(path.read_text().splitlines(), 1)
            if (found := _FAULTS.search(text))
        ]
        if marks:
            lines = {name: number for _, name, number in sorted(marks)}
            yield Planted(path.stem, path, lines, arguments=arguments.get(path.stem, ()))


def line_of_mistake(path: pathlib.Path, name: str) -> int:
    """The line that makes a mistake: the first below its name that says so."""
    before, _, after = path.read_text().partition(f'"{name}"')
    between, _, _ = after.partition("# the mistake")
    return (before + between).count("\n") + 1


def programs() -> Iterator[Planted]:
    """Whole programs of this folder with each of their mistakes, trained once."""
    for mistake in harness.MISTAKES:
        dtype, x64 = harness.CONFIGURATIONS[mistake.configuration]
        path = HERE / f"{mistake.program}.py"
        name = dtype.dtype.name
        if f'"{mistake.name}"' in path.read_text():  # the others fail as they are
            number = line_of_mistake(path, mistake.name)
            arguments = path.name, name, mistake.name
            kind, alone = f"{mistake.program} {name}", HERE / "alone.py"
            yield Planted(kind, path, {mistake.name: number}, x64, arguments, alone)


def others() -> Iterator[Planted]:
    """Programs by others, each with one mistake after the other."""
    for program, names in harness.MISTAKES_OF_OTHERS.items():
        path = HERE / "others" / f"{program}.py"
        for name in names:
            line = line_of_mistake(path, name)
            yield Planted(program, path, {name: line}, name.endswith(" in x64"), [name])


def unfounded() -> Iterator[str]:
    """The programs by others of which something is said though nothing is planted."""
    for path in sorted((HERE / "others").glob("*.py")):
        if note := run(Planted(path.stem, path, {})):
            yield f"{path.stem}: {note}"


def lost(found: Sequence[Row], table: str) -> list[str]:
    """The mistakes whose lines a table names and these rows do not."""
    verdicts = {x[:68].strip(): x[69:74].strip() for x in table.splitlines()}
    was_named = lambda row: verdicts.get(row.mistake) in ("first", "named")
    return [row.mistake for row in found if was_named(row) and not row.is_named]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="the beginnings of the names wanted")
    options = parser.parse_args()
    if sys.version_info < (3, 12):
        print("The table of notes was skipped: below Python 3.12 nothing is recorded.")
        return 0
    wanted = tuple(options.names) or ("",)
    found = list[Row]()
    for planted in itertools.chain(others(), scripts(), programs()):
        if any(f"{planted.name}: {x}".startswith(wanted) for x in planted.lines):
            for row in (x for x in rows(planted) if x.mistake.startswith(wanted)):
                found.append(row)
                print(row, *([row.line, row.note] if options.names else []), sep="\n")
    named, first = (sum(x) for x in zip(*((r.is_named, r.is_first) for r in found)))
    print(f"{named} of {len(found)} lines named, {first} of them first.", flush=True)
    wrong = [f"Lost: {each}" for each in lost(found, TABLE.read_text())]
    if not options.names:
        wrong += [f"Nothing is wrong with {each}" for each in unfounded()]
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
