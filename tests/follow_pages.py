"""Follows README and docs to the letter: examples run, and print what the pages show.

    python tests/follow_pages.py                 # all, each in an empty folder
    python tests/follow_pages.py docs/explain.md # one page
    python tests/follow_pages.py --write         # puts what they print on the pages

It uses the JAX of the environment; `tests/whole/test_docs.py` does the same in `.ci/run`.
Exits 1 if anything differs. Digits, paths and releases may.
"""

import argparse
import contextlib
import difflib
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from tests.support.notebooks import NOTEBOOKS, follow_notebook, rewritten_notebook
from tests.support.pages import PAGES, follow, rewritten


def main() -> int:
    """Follows the pages that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="all by default")
    parser.add_argument("--write", action="store_true", help="write what they print")
    options = parser.parse_args()
    differ = 0
    for page in [page.resolve() for page in options.pages] or [*PAGES, *NOTEBOOKS]:
        is_notebook = page.suffix == ".ipynb"
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            if options.write:
                text = rewritten_notebook(page) if is_notebook else rewritten(page)
                differ += text != page.read_text()
                page.write_text(text)
                continue
            for found in follow_notebook(page) if is_notebook else follow(page):
                differ += 1
                print(f"{found.id} differs:")
                sides = found.shown.splitlines(), found.printed.splitlines()
                print(*difflib.ndiff(*sides), sep="\n")
    print(f"{differ} {'pages were written' if options.write else 'examples differ'}")
    return 0 if options.write else min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
