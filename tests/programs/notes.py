"""The table of notes: which planted mistakes `dtypeguard run` names, and what it advises.

    python tests/programs/notes.py             # exits 1 if a line in `notes.txt` is lost
    python tests/programs/notes.py --fast      # programs by others and the small scripts
    python tests/programs/notes.py --write     # the table, once it has been read
    python tests/programs/notes.py --json FILE # the rows and the notes, to compare
    python tests/programs/notes.py NAME ...    # those of these names, with their notes

A row has the mistake, the line at fault, whether the note names it, and first, and the kind
of the first remedy. Everything runs in this process through `dtypeguard run`, and so with
the record of values: it needs Python 3.12.

A program by others (`others/`) is whole as it stands. The changes in `others.txt`, in the
form of `mistakes.txt`, each plant a mistake; `in x64` after its name turns x64 on.
"""

import argparse
import contextlib
import io
import itertools
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
SUPPORT = HERE.parent / "support"
TABLE = HERE / "notes.txt"


class Planted(NamedTuple):
    """A script with mistakes.

    Attributes:
        name: of the script.
        path: its file.
        x64: whether x64 is on.
        lines: the lines at fault, by the names of their mistakes.
        arguments: of its command line.
    """

    name: str
    path: pathlib.Path
    x64: bool
    lines: dict[str, tuple[str, int]]
    arguments: Sequence[str] = ()


class Row(NamedTuple):
    """What is said of a mistake."""

    mistake: str
    line: str
    is_named: bool
    is_first: bool
    remedy: str
    note: str

    def __str__(self) -> str:
        """It as the table has it."""
        verdict = "first" if self.is_first else "named" if self.is_named else "-"
        return f"{self.mistake:<68} {verdict:<5} {self.remedy}"


# The kinds of remedies, by what stands for one.
_REMEDIES = {
    "guard": r"dtypeguard\.guard(_step)?\(|@dtypeguard\.guard|guard the \w+",
    "begin": r"\b(start|begin|Start|Begin) \S+.{0,60}? as|strong\(|give \S+ as",
    "branch": r"\bLet \S+ return",
    "cast": r"\.astype\(|[Cc]ast |asarray\(|dtype=|\bwrite ",
    "once": r"[Oo]nce|[Kk]eep one order|static|Call what has it",
}
_LINE = re.compile(r"[^\s(),:]+\.py:\d+")


def remedy(note: str) -> str:
    """The kind of the first remedy of a note."""
    head, *lines = note.splitlines() or [""]
    lines = [x for x in lines if not x.startswith("  ")]
    text = "\n".join(lines) if lines else head
    places = {
        kind: found.start()
        for kind, form in _REMEDIES.items()
        if (found := re.search(form, text))
    }
    first = min(places, key=lambda kind: places[kind], default="none")
    is_of_call = first == "cast" and not re.search("carry|branch|result|compiled", head)
    return "argument" if is_of_call else first


def judged(mistake: str, at: tuple[str, int], note: str) -> Row:
    """The row of a mistake."""
    file, number = at
    place = f"{pathlib.Path(file).name}:{number}"
    lines = [pathlib.PurePath(x).name for x in _LINE.findall(note)]
    return Row(mistake, place, place in lines, lines[:1] == [place], remedy(note), note)


def run(planted: Planted) -> tuple[str, str]:
    """The note on the error of a script with the list of compilations, and its output."""
    import jax

    from dtypeguard.__main__ import console

    out, flag, before = io.StringIO(), "jax_enable_x64", sys.modules["__main__"]
    was, path = jax.config.jax_enable_x64, sys.path[:]
    jax.config.update(flag, planted.x64)
    argv, sys.argv = sys.argv, ["dtypeguard", "run", "--format", "json", str(planted.path)]
    sys.argv += planted.arguments
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            console()
    except SystemExit:
        pass
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, before
        jax.config.update(flag, was)
    printed, _, data = out.getvalue().rpartition('{\n "error"')
    found = json.loads(f'{{"error"{data}') if data else {}
    note = (found.get("error") or {}).get("note", "")
    return "\n".join(filter(None, [note, *found.get("compiled_again", ())])), printed


def scripts() -> Iterator[Planted]:
    """The small scripts, with each of their mistakes."""
    arguments = {"equinox_loops": ("scan", "lax")}
    for path in sorted((SUPPORT / "scripts").glob("*.py")):
        marks = _marks(path, path.read_text(), ("promotion", "operand", *_BRANCHES))
        if marks:
            yield Planted(path.stem, path, False, marks, arguments.get(path.stem, ()))


_BRANCHES = "true_fun", "false_fun", r"branches\[\d\]"


def _marks(
    path: pathlib.Path, text: str, words: Sequence[str]
) -> dict[str, tuple[str, int]]:
    """The lines of mistakes by their marks, of which the last word counts."""
    found = {}
    for word in words:
        for number, line in enumerate(text.splitlines(), 1):
            for name in re.findall(rf"# {word}: (\w+)", line):
                found[name] = str(path), number
    return found


# What asks each case of a file of planted ones, and prints a line of JSON with each answer.
_ASKED = {
    "planted": """
    struct = jax.ShapeDtypeStruct
    params, grads = {"w": struct((3,), "bfloat16")}, {"w": struct((3,), case.grads)}
    return str(dtypeguard.audit(case.opt, params, updates=grads, x64=case.x64))
""",
    "planted_steps": """
    return str(dtypeguard.audit(case.step, *case.args, **case.options))
""",
    "planted_operands": """
    from dtypeguard._leaves.compat import set_x64
    kind = "strict" if case.strict else "standard"
    try:
        with jax.numpy_dtype_promotion(kind), set_x64(case.x64), dtypeguard.explain():
            case.program(jax.jit)
    except Exception as error:
        return "\\n".join(getattr(error, "__notes__", ()))
    return ""
""",
}
_CASES = """
import importlib, json, sys
import dtypeguard, jax
sys.path.insert(0, {folder!r})
for name in "planted_helper", "planted", "planted_steps", "planted_operands":
    sys.modules.pop(name, None)
def ask(case):{ask}
for name, case in importlib.import_module({module!r}).CASES.items():
    print(json.dumps([name, ask(case)]), flush=True)
"""


def cases(folder: pathlib.Path) -> Iterator[Planted]:
    """The files of planted optimizers, steps and operands: a script that asks each case."""
    words = "promotion", "made", "operand", "forced in jit", "forced"
    for module, ask in _ASKED.items():
        path = folder / f"ask_{module}.py"
        path.write_text(_CASES.format(folder=str(SUPPORT), module=module, ask=ask))
        marks = {}
        for file in (SUPPORT / f"{module}.py", SUPPORT / "planted_helper.py"):
            marks |= _marks(file, file.read_text(), words)
        yield Planted(module, path, False, marks)


def programs(folder: pathlib.Path) -> Iterator[Planted]:
    """Whole programs of this folder with each of their mistakes, trained once."""
    import harness
    from mistakes import MISTAKES

    for number, mistake in enumerate(MISTAKES):
        if mistake.is_planted:
            (folder / str(number)).mkdir()
            path = harness.written(mistake, folder / str(number))
            dtype, x64 = harness.CONFIGURATIONS[mistake.configuration]
            lines = {mistake.name: (str(path), _at_fault(path))}
            name = dtype.dtype.name
            path.write_text(f"{path.read_text()}\n\ntrain(jnp.dtype({name!r}).type)\n")
            yield Planted(f"{mistake.program} {name}", path, x64, lines)


def others(folder: pathlib.Path) -> Iterator[Planted]:
    """Programs by others with a mistake."""
    import harness
    from mistakes import changes

    for number, text in enumerate((HERE / "others.txt").read_text().split("== ")[1:]):
        head, *lines = text.strip("\n").splitlines()
        program, _, name = head.partition(": ")
        whole = (HERE / "others" / f"{program}.py").read_text()
        path = folder / f"other{number}" / f"{program}.py"
        path.parent.mkdir()
        path.write_text(harness.changed(whole, changes(lines)))
        x64 = head.endswith(" in x64")
        yield Planted(program, path, x64, {name: (str(path), _at_fault(path))})


def _at_fault(path: pathlib.Path) -> int:
    lines = enumerate(path.read_text().splitlines(), 1)
    (found,) = (n for n, line in lines if line.endswith("# the mistake"))
    return found


def unfounded() -> Iterator[str]:
    """The programs by others of which something is said though nothing is planted."""
    for path in sorted((HERE / "others").glob("*.py")):
        note, _ = run(Planted(path.stem, path, False, {}))
        if note:
            yield f"{path.stem}: {note}"


def rows(planted: Planted) -> Iterator[Row]:
    """A row for each mistake of a script."""
    note, printed = run(planted)
    asked = dict(json.loads(x) for x in printed.splitlines() if x.startswith('["'))
    for name, at in planted.lines.items():
        if name in asked or not asked:
            text = asked.get(name, note)
            yield judged(f"{planted.name}: {name}", at, text)


def lost(found: Sequence[Row], table: str) -> list[str]:
    """The mistakes whose lines a table names and these rows do not."""
    named = {x[:68].strip() for x in table.splitlines() if x[69:74].strip() in _NAMED}
    return [row.mistake for row in found if row.mistake in named and not row.is_named]


_NAMED = "first", "named"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="the beginnings of the names wanted")
    parser.add_argument("--fast", action="store_true", help="a part of a minute or two")
    parser.add_argument("--write", action="store_true", help="what is run, into the table")
    parser.add_argument("--json", type=pathlib.Path, help="rows and notes, into a file")
    options = parser.parse_args()
    if sys.version_info < (3, 12):
        print("The table of notes was skipped: below Python 3.12 nothing is recorded.")
        return 0
    sys.path[:0] = [str(HERE), str(SUPPORT)]
    found = list[Row]()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sources = [others(folder), scripts()]
        if not options.fast:
            sources += [cases(folder), programs(folder)]
        for planted in itertools.chain(*sources):
            wanted = tuple(options.names) or ("",)
            if any(f"{planted.name}: {x}".startswith(wanted) for x in planted.lines):
                for row in rows(planted):
                    if row.mistake.startswith(wanted):
                        found.append(row)
                        print(row, flush=True)
                        if options.names:
                            print(row.line, row.note, sep="\n")
    named = sum(row.is_named for row in found)
    first = sum(row.is_first for row in found)
    print(f"{named} of {len(found)} lines named, {first} of them first.")
    if options.json:
        data = [row._asdict() for row in found]
        options.json.write_text(json.dumps(data, indent=1))
    if options.write:
        rows_now = {x[:68].strip(): x for x in TABLE.read_text().splitlines()}
        rows_now |= {row.mistake: str(row) for row in found}
        TABLE.write_text("".join(f"{row}\n" for row in rows_now.values()))
        return 0
    wrong = [f"Lost: {each}" for each in lost(found, TABLE.read_text())]
    if not options.names:
        wrong += [f"Nothing is wrong with {each}" for each in unfounded()]
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
