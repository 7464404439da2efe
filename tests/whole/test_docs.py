"""The code of README and docs runs, and what they show is what the programs print."""

import contextlib
import io
import re
import subprocess
import sys

import optax
import pytest
from pages import (
    DOCS,
    PAGES,
    README,
    ROOT,
    blocks,
    lines_of,
    missing,
    prose,
    run_code,
    runs,
)

from dtypeguard._cli.main import main

BLOCKS = [block for page in PAGES for block in blocks(page)]
RUNS = [run for page in PAGES for run in runs(page)]
LINKS = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)", flags=re.MULTILINE)

pytestmark = pytest.mark.third_party


# The README's first block drifts in its last line, which has a test of its own.
@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: block.id)
def test_code_runs(block):
    output = run_code(block.code)
    if not block.shown:
        assert not re.search(r"(Error|Warning): ", output), output
    assert not missing(block.shown, output), output


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.remedies], ids=lambda block: block.id
)
def test_remedies_help(block):
    assert block.shown  # so that `test_code_runs` has seen what they help against
    for this, that in block.remedies:
        assert that in block.code
        output = run_code(block.code.replace(that, this))
        assert not re.search(r"(Error|Warning): ", output), output


def test_the_first_block_drifts_and_then_does_not():
    *lines, last = BLOCKS[0].code.strip().splitlines()
    assert len([line for line in lines if line]) <= 10
    names = {}
    assert run_code("\n".join(lines), names) == ""
    output = run_code(last, names)
    assert output.startswith("TypeError: scan")
    assert "carry input and carry output must have equal types" in output


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_output(run):
    if run.optax not in (None, optax.__version__):
        pytest.skip(f"the output is that of optax {run.optax}")
    program, *arguments = run.argv
    if program == "dtypeguard":
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            main(arguments)
        assert timeless(out.getvalue()) == timeless(run.text)
    else:
        assert program == "python"
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert not missing(lines_of(run.text), done.stdout), done.stdout


def timeless(text):
    return re.sub(r"\d+ s; optax \S+ jax [^)]*", "", text).strip()


def test_a_program_that_fails_or_warns_is_seen():
    assert run_code("print(1 + 1)") == "2\n"
    assert run_code("1 / 0").startswith("ZeroDivisionError: division")
    assert run_code("import warnings; warnings.warn('so')") == "UserWarning: so\n"


def test_a_flag_that_a_program_sets_is_set_back():
    run_code("import jax; jax.config.update('jax_enable_x64', True)")
    output = run_code("import jax; print(jax.config.jax_enable_x64)")
    assert output == "False\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    dead = []
    for link in (one or other for one, other in LINKS.findall(prose(page))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        found = target.is_file() and (not anchor or anchor in anchors(target))
        if not found or (page != README and target.parent != DOCS):
            dead.append(link)
    assert not dead


def anchors(page):
    """The headings of a page, as code hosts and the site write them in a link."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def test_the_tests_that_keep_the_contract_exist():
    named = re.findall(
        r"^- `(\S+\.py)`: ((?:.|\n  )*)", (DOCS / "contract.md").read_text(), re.M
    )
    assert len(named) > 8
    for file, tests in named:
        source = (ROOT / file).read_text()
        names = re.findall(r"`(test_\w+)`", tests)
        assert names
        assert not [name for name in names if f"def {name}(" not in source], file


def test_every_rule_of_the_contract_has_a_test():
    rules = re.split(r"^## ", (DOCS / "contract.md").read_text(), flags=re.MULTILINE)[1:]
    assert all("`test_" in rule for rule in rules)


def test_every_page_is_linked_from_the_first_one():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_the_pages_that_messages_name_exist():
    titles = {page.read_text().partition("\n")[0].removeprefix("# ") for page in PAGES}
    sources = [path.read_text() for path in (ROOT / "dtypeguard").rglob("*.py")]
    calls = [call for text in sources for call in re.findall(r"\bmore\((.+?)\)", text)]
    named = {page for call in calls for page in re.findall(r'"([A-Z].+?)"', call)}
    assert len(named) > 2
    assert named <= titles


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_a_table_of_figures_names_its_command():
    for page in PAGES:
        for section in re.split(r"^#+ ", prose(page), flags=re.MULTILINE):
            head, *tables = re.split(r"^\|[ :|-]+\|\n", section, flags=re.MULTILINE)
            if any(len(re.findall(r"\| *[\d.]+ *(?=\|)", table)) > 3 for table in tables):
                scripts = re.findall(r"`\S*python ([\w/]+\.py)", head)
                assert scripts, f"{page.stem}: {section[:60]}"
                assert all((ROOT / script).is_file() for script in scripts)


def test_ci_runs_the_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    assert "grep -m 1 'pytest' README.md" in script
    command = next(line for line in README.read_text().splitlines() if "pytest" in line)
    assert command.endswith(".venv/bin/python -m pytest -n 2")
    *lines, last = script.splitlines()
    assert ".venv/bin/python -m pytest -n 2 -m exhaustive" in lines
    assert last == 'bash -c "$test_command"'
