"""What a variable has its value from, where one assignment alone gave it."""

import ast

import pytest

from dtypeguard._source.syntax import assigned_value


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("w = one\nuse(w)\n", "one"),
        ("w: int = one\nuse(w)\n", "one"),
        ("w = one\nw = two\nuse(w)\n", None),
        ("w, v = one\nuse(w)\n", None),
        ("w = one\nw += 1\nuse(w)\n", None),
        ("w = one\nfor x in y:\n    use(w)\n", "one"),
        ("for w in y:\n    use(w)\n", None),
        ("w = one\ndef f():\n    use(w)\n", "one"),
        ("w = one\ndef f():\n    w = two\n    use(w)\n", "two"),
        ("w = one\ndef f(w):\n    use(w)\n", None),
        ("def w(): ...\nuse(w)\n", None),
    ],
)
def test_the_assignment_that_a_line_sees(source, value, tmp_path):
    path = tmp_path / "source.py"
    path.write_text(source)
    line = next(n for n, x in enumerate(source.splitlines(), 1) if "use(w)" in x)
    found = assigned_value(str(path), "w", line)
    assert (found and ast.unparse(found)) == value
