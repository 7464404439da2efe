"""The five reports behind dtypeguard: how each fails bare, and that ours pass."""

import optax
import pytest

from tests.releases import RELEASES, table_in
from tests.support.helpers import in_optax
from tests.support.pages import DOCS
from tests.support.reports import MISSING, PASSES, REPORTS, cell, outcomes

by_report = pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)

pytestmark = pytest.mark.third_party


@by_report
def test_a_report(report):
    """With dtypeguard it passes; bare it fails where it was reported, as the page says."""
    found = outcomes(report)
    bare, *ours = found.values()
    assert set(ours) == {PASSES if in_optax(report.needs) else MISSING}
    if optax.__version__ not in RELEASES:
        pytest.skip(f"nothing is known of optax {optax.__version__}")
    live = report.live.get(optax.__version__, PASSES)
    assert bare == (live if in_optax(report.needs) else MISSING)
    rows = table_in((DOCS / "contract.md").read_text())
    release = f"optax {optax.__version__}, "
    cells = [row[report.title] for name, row in rows.items() if name.startswith(release)]
    assert cells
    assert set(cells) == {cell(found)}


def test_every_report_is_live_in_a_release():
    assert all(report.live.keys() & RELEASES.keys() for report in REPORTS)
