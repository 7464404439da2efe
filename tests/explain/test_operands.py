"""Errors over operands name the lines that made them, and what is printed mends them."""

import ast
import contextlib
import importlib.util
import itertools
import pathlib
import re

import jax
import planted_operands
import pytest
from helpers import set_x64

import dtypeguard

pytestmark = pytest.mark.third_party

FILE = pathlib.Path(planted_operands.__file__)
TEXT = FILE.read_text()
MODES = {"eager": lambda function: function, "jit": jax.jit}
ADVICE = re.compile(
    r"(At|Or at|And at) (\S+):(\d+) write (.+) in place of (.+?)(?:; .*)?\."
)


@contextlib.contextmanager
def options(case):
    mode = "strict" if case.strict else "standard"
    with set_x64(case.x64), jax.numpy_dtype_promotion(mode):
        yield


def raised(call):
    """The error that leaves the context; None if there is none."""
    try:
        with dtypeguard.explain():
            call()
    except Exception as error:
        return error
    return None


def notes(error):
    return [n for n in getattr(error, "__notes__", []) if n.startswith("dtypeguard: ")]


def marked(word, name):
    """The line with a mark, as notes write it; None without one."""
    for number, line in enumerate(TEXT.splitlines(), 1):
        if line.endswith(f"# {word}: {name}"):
            return f"{FILE.relative_to(pathlib.Path.cwd())}:{number}"
    return None


def ways_of(note):
    """The advice of a note: of each way its replacements, by line."""
    found = []
    for line in note.splitlines():
        if parts := ADVICE.fullmatch(line):
            word, file, number, new, old = parts.groups()
            assert file == str(FILE.relative_to(pathlib.Path.cwd()))
            if word != "And at":
                found.append([])
            found[-1].append((int(number), old, new))
    return found


def replaced(text, changes):
    """A source with some expressions replaced, wherever they stand on their line."""
    lines = text.splitlines()
    for number, old, new in changes:
        places = {
            (node.col_offset, node.end_col_offset)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.expr) and node.lineno == node.end_lineno == number
            if ast.get_source_segment(text, node) == old
        }
        assert places, (number, old)
        for start, end in sorted(places, reverse=True):
            line = lines[number - 1]
            if line[:start].rstrip().endswith(("=", "lambda", "for")) and line[end:] == "":
                pass
            lines[number - 1] = line[:start] + new + line[end:]
    return "\n".join(lines)


_NUMBERS = itertools.count()


def loaded(text, folder):
    path = folder / f"planted_{next(_NUMBERS)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", planted_operands.CASES)
def test_the_line_is_named_and_what_is_printed_mends_it(name, mode, tmp_path):
    case = planted_operands.CASES[name]
    with options(case):
        error = raised(lambda: case.program(MODES[mode]))
        (note,) = notes(error)
        made = marked("made", name)
        forced = marked("forced", name) or marked(f"forced in {mode}", name)
        row = re.escape(case.operand) + r" +" + re.escape(case.type)
        row += rf" +{re.escape(made)}(?: \(in .*?\))?" + (
            rf" +forced by {re.escape(forced)}" if forced else ""
        )
        assert re.search(rf"^  {row}$", note, re.MULTILINE), note
        ways = ways_of(note)
        assert len(ways) == case.ways, note
        for changes in ways:
            module = loaded(replaced(TEXT, changes), tmp_path)
            jax.block_until_ready(module.CASES[name].program(MODES[mode]))
