"""The five reports behind dtypeguard: how each fails bare, and that ours pass."""

import pathlib

import optax
import pytest
from helpers import in_optax, needs_optax
from releases import RELEASES, table_in
from reports import MISSING, PASSES, REPORTS, cell, outcome

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "releases.md"
by_report = pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)

pytestmark = pytest.mark.third_party


def the_release():
    if optax.__version__ not in RELEASES:
        pytest.skip(f"nothing is known of optax {optax.__version__}")
    return optax.__version__


@by_report
def test_bare_it_fails_where_it_was_reported(report):
    expected = report.live.get(the_release(), PASSES)
    if not in_optax(report.needs):
        expected = MISSING
    assert outcome(report, report.bare) == expected


@pytest.mark.parametrize(
    ("report", "part"),
    [
        pytest.param(
            report, part, id=f"{report.id}-{part}", marks=needs_optax(report.needs)
        )
        for report in REPORTS
        for part in report.parts
    ],
)
def test_with_dtypeguard_it_passes(report, part):
    assert outcome(report, report.parts[part]) == PASSES


def test_every_report_is_live_in_a_release():
    assert all(report.live.keys() & RELEASES.keys() for report in REPORTS)


@by_report
def test_the_table_of_releases(report):
    release = f"optax {the_release()}, "
    rows = table_in(PAGE.read_text())
    cells = [row[report.title] for name, row in rows.items() if name.startswith(release)]
    assert cells
    assert set(cells) == {cell(report)}
