"""A report of precision as a page: the source with bars, escaped, from nowhere else."""

import html.parser
import importlib.util
import linecache
import re
import sys

import healthy
import jax
import jax.numpy as jnp
import pytest

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
X = jax.random.normal(jax.random.key(0), (16, 4), jnp.bfloat16)

LOSES = """import jax.numpy as jnp

def encode(x):
    text = "<script>alert('&amp;')</script>"
    p = jnp.arange(600, dtype=x.dtype)  # <b>loses</b>
    return jnp.sin(p.astype(jnp.float32))
"""
LONG = "\n".join(f"a{n} = {n}" for n in range(100)) + f"\n\n\n{LOSES}\n\n"


class _Page(html.parser.HTMLParser):
    """What a page loads and shows: the rows of its tables, and whether its tags match."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.rows, self.open, self.wrong = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.loads += [v for name, v in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append((dict(attrs).get("class", ""), ""))

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if "tr" in self.open:
            kind, text = self.rows[-1]
            self.rows[-1] = kind, text + data

    def named(self):
        """The rows of source with a mark, without the numbers in the mark."""
        return [re.sub(r"\s+", " ", text) for kind, text in self.rows if "named" in kind]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of some source."""

    def make(source):
        file = tmp_path / "planted_page.py"
        file.write_text(source)
        spec = importlib.util.spec_from_file_location("planted_page", file)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "planted_page", made)
        spec.loader.exec_module(made)
        return made

    return make


def test_a_short_file_is_shown_as_a_whole_with_its_line_marked_and_escaped(module):
    report = audit_precision(module(LOSES).encode, X)
    text = report.to_html()
    page = _Page(text)
    assert page.open == page.wrong == []
    assert page.loads == ["data:,"]
    assert "<script>" not in text
    assert "<b>" not in text
    assert "//" not in text
    shown = [re.sub(r"^\d+", "", row) for kind, row in page.rows if "named" not in kind]
    assert "    text = \"<script>alert('&amp;')</script>\"" in shown
    (row,) = page.named()
    assert row.startswith("5100% p = jnp.arange(600, dtype=x.dtype) # <b>loses</b>")
    assert "rounds to bfloat16" in row
    assert [kind for kind, _ in page.rows if "chosen" in kind] == ["named chosen"]
    for sentence in (report.headline, report.fix[0].remedy, "squared error left with it"):
        assert sentence in text
    assert "prefers-color-scheme: dark" in text
    assert '<th scope="col" class="share">loses</th>' in text
    assert ">pays</th>" not in text  # no line does


def test_of_a_long_file_it_shows_what_is_around_the_line(module):
    page = _Page(audit_precision(module(LONG).encode, X).to_html())
    source = [(kind, text) for kind, text in page.rows if kind or text[:1].isdigit()]
    assert source[0] == ("gap", "104 lines")
    assert source[-1] == ("gap", "2 lines")
    assert [text[:3] for kind, text in source[1:-1]] == ["105", "106", "107", "108"]


def test_a_healthy_program_does_not_read_like_a_list_of_faults():
    report = audit_precision(healthy.spread, X)
    assert report.is_spread
    text = report.to_html()
    page = _Page(text)
    assert "What to change" not in text
    assert "Compute" not in text
    assert '<main class="healthy">' in text  # bars without the color of a fault
    assert len(page.named()) == 5
    assert not any("chosen" in kind for kind, _ in page.rows)


@pytest.mark.parametrize("known", [[], ["the text of `python -c`"]])
def test_what_is_on_no_line_of_a_file_has_a_table_of_its_own(monkeypatch, known):
    monkeypatch.setitem(linecache.cache, "<string>", (9, None, known, "<string>"))
    made = {}
    exec("import jax.numpy as jnp\ndef f(x):\n    return jnp.exp(x) * 1.7", made)
    for f in (jnp.tanh, made["f"]):
        report = audit_precision(f, X)
        page = _Page(report.to_html())
        assert page.wrong == []
        (row,) = page.named()
        assert report.losses[0].place in row


def test_lines_of_a_package_stand_on_the_line_that_called_it(module):
    source = """import jax, jax.numpy as jnp, optax

def train(w):
    grads = jnp.full_like(w, 0.5)
    updates = -0.001 * grads
    return optax.apply_updates(w, updates)
"""
    report = audit_precision(module(source).train, X)
    page = _Page(report.to_html())
    (row,) = [row for row in page.named() if "optax/_src/update.py" in row]
    assert row.startswith("6")
    assert "return optax.apply_updates(w, updates)optax/_src/update.py:" in row
