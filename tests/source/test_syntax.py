"""Source is read as Python reads it, but without its warnings."""

import ast

from dtypeguard._source.syntax import statement


def test_a_file_of_which_python_warns_is_read_without_a_warning(tmp_path):
    """Of an escape that is none: here a warning would be an error, and nothing read."""
    path = tmp_path / "source.py"
    path.write_text('"""\\m \\\\m"""\nw = "\\400\\d\\n", f"\\{one}\\N{EM DASH}", r"\\w"\n')
    assert isinstance(statement(str(path), 2), ast.Assign)
