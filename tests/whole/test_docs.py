"""README and docs are followed to the letter; their links and tables lead somewhere."""

import re

import pytest

from tests.support.helpers import RULES
from tests.support.pages import DOCS, PAGES, README, ROOT, follow, prose

LINKS = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)", flags=re.MULTILINE)

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_print_what_the_page_shows(page, tmp_path, monkeypatch):
    """`python tests/follow_pages.py` shows the same by itself, and writes the pages."""
    assert "<page>" not in page.read_text()  # its first line names the file
    monkeypatch.chdir(tmp_path)
    for found in follow(page):
        pytest.fail(f"{found.id} shows\n{found.shown}\nand prints\n{found.printed}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    dead = []
    for link in (one or other for one, other in LINKS.findall(prose(page))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        found = target.is_file() and (not anchor or anchor in anchors(target))
        if not found or target.parent not in (DOCS, DOCS / "examples", ROOT):
            dead.append(link)
    assert not dead


def anchors(page):
    """The headings of a page, as code hosts and the site write them in a link."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def test_every_rule_of_the_contract_has_tests_and_rules_that_exist():
    text = (DOCS / "contract.md").read_text()
    rules = re.split(r"^## ", text.partition("## What it does not do")[0], flags=re.M)[1:]
    assert len(rules) > 9
    cases = (ROOT / "tests" / "exhaustive.txt").read_text().splitlines()
    long = {case.partition("[")[0] for case in cases}
    for rule in rules:
        tests = re.findall(r"^- `(\S+\.py)`: ((?:.|\n  )*)", rule, re.MULTILINE)
        assert tests, rule
        for file, named in tests:
            names = re.findall(r"`(test_\w+)`", named)
            assert names
            source = (ROOT / file).read_text()
            assert not [name for name in names if f"def {name}(" not in source], file
            assert not long & {f"{file}::{name}" for name in names}
    checked = " ".join(re.findall(r"^- `check_contract` of .*: (.*)$", text, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", checked)) == set(RULES)


def test_every_page_is_linked_from_the_first_one():
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", README.read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")}


def test_the_pages_that_messages_name_exist():
    sources = [path.read_text() for path in (ROOT / "dtypeguard").rglob("*.py")]
    calls = [call for text in sources for call in re.findall(r"\bmore\((.+?)\)", text)]
    named = {page for call in calls for page in re.findall(r"""["']([a-z-]{6,})""", call)}
    assert len(named) > 2
    assert named <= {page.stem for page in PAGES}


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
    assert 'DTYPEGUARD_REQUIRE_ALL=1 bash -c "$test_command"' in script


def test_what_is_listed_as_exhaustive_exists():
    for case in (ROOT / "tests" / "exhaustive.txt").read_text().splitlines():
        file, _, test = case.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), case


def test_each_benchmark_is_named_by_a_page():
    text = "".join(page.read_text() for page in PAGES)
    helpers = {"drawing.py", "timing.py"}
    scripts = {file.name for file in (ROOT / "benchmarks").glob("*.py")} - helpers
    assert not [name for name in scripts if f"benchmarks/{name}" not in text]
