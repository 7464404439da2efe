"""Builds the site of the pages: `python docs/site/build.py [FOLDER]`, into docs/_site.

Pages of the repository's root are on the site as well, the README in front. The name of a
page that another one took in leads there, with the anchor of the link.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import dtypeguard  # noqa: E402
from dtypeguard._cli.docs import MERGED_PAGES, ROOT_PAGES  # noqa: E402

_REDIRECT = """<!doctype html>
<title>{page}</title>
<script>location.replace("../{page}/" + location.hash)</script>
<meta http-equiv="refresh" content="0; url=../{page}/">
"""


def write_pages(folder: pathlib.Path) -> None:
    """Writes what Zensical reads, with links as they are between pages of one folder."""
    left_out = shutil.ignore_patterns("_site", ".cache")
    shutil.copytree(ROOT / "docs", folder, ignore=left_out)
    for name, file in ROOT_PAGES.items():
        shutil.copy(ROOT / file, folder / f"{name}.md")
    for page in folder.glob("*.md"):
        text = page.read_text()
        for name, file in ROOT_PAGES.items():
            text = re.sub(rf"\]\((\.\./)?{file}", f"]({name}.md", text)
        page.write_text(text.replace("](docs/", "]("))
    settings = folder / "zensical.toml"
    settings.write_text(settings.read_text().replace("VERSION", dtypeguard.__version__))


def write_redirects(site: pathlib.Path) -> None:
    """Writes a page under each name that another page took in."""
    for name, page in MERGED_PAGES.items():
        (site / name).mkdir()
        (site / name / "index.html").write_text(_REDIRECT.format(page=page))


def main() -> int:
    """Builds the site; returns the exit status of Zensical, which fails on a dead link."""
    site = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "_site"
    with tempfile.TemporaryDirectory() as folder:
        pages = pathlib.Path(folder) / "docs"
        write_pages(pages)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*command, "-f", "zensical.toml"],
            cwd=pages,
            env=os.environ | {"PYTHONPATH": path},
        )
        if done.returncode == 0:
            write_redirects(pages / "_site")
            shutil.rmtree(site, ignore_errors=True)
            shutil.copytree(pages / "_site", site)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
