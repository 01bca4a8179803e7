"""The documentation builds, its links lead somewhere, and it needs nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer

from sim import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for folder in ("", "docs", "notebooks", "benchmarks", "sim", ".github")
    for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
)


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def links_of(text):
    return re.findall(r"\]\(([^)\s]+)\)", without_code(text))


def anchors_of(text):
    """Name the headings as GitHub does."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_in_the_repository(page):
    for link in links_of(page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert path.is_file(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors_of(path.read_text(encoding="utf-8")), f"{link}: no heading"


def test_every_page_and_picture_is_linked():
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in links_of(page.read_text(encoding="utf-8"))
    }
    shown = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "images").iterdir()]
    assert [path.name for path in shown if path not in linked] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as 'make docs' builds it; a warning is an error."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return folder


class Found(HTMLParser):
    """What a page names and what it asks for."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values.get("id"), values.get("name")}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and "href" in values and values.get("rel") != "canonical":
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def found(site):
    return {
        path: Found(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


def test_links_lead_somewhere_in_the_site(found):
    assert len(found) >= 25
    for page, parts in found.items():
        for link in (*parts.links, *parts.loaded):
            url = urlsplit(link)
            if url.scheme in ("http", "https", "data"):
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            assert target.is_file(), f"{page.name}: {link}"
            if url.fragment and target.suffix == ".html":
                assert unquote(url.fragment) in found[target].ids, f"{page.name}: {link}"


def test_the_site_loads_nothing_from_elsewhere(found, site):
    for page, parts in found.items():
        others = [url for url in parts.loaded if urlsplit(url).scheme in ("http", "https")]
        assert others == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", style.read_text(encoding="utf-8")), style.name


def test_the_home_page_is_the_readme(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    for heading in re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert f">{heading}<" in home


def test_every_option_is_on_the_page_of_commands(site):
    page = (site / "commands.html").read_text(encoding="utf-8")

    def check(command, name):
        children = getattr(command, "commands", {})
        assert f'id="{name.replace(" ", "-")}"' in page
        for key, child in children.items():
            check(child, f"{name} {key}")
        if not children:
            section = page.split(f'id="{name.replace(" ", "-")}"')[1].split("<h2")[0]
            for parameter in command.params:
                if parameter.name != "help" and parameter.opts[0].startswith("-"):
                    assert f"<code>{parameter.opts[0]}</code>" in section, (name, parameter.opts)

    for key, command in typer.main.get_command(cli.make_app()).commands.items():
        check(command, f"prefixsim {key}")


def test_notebooks_are_pages_with_their_pictures(found):
    shown = [page for page in found if page.parent.name == "notebooks"]
    assert len(shown) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    for page in shown:
        assert any(url.startswith("data:image/png") for url in found[page].loaded)
