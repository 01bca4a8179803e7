"""Builds the site from files that stand where they are at home.

The README is the home page, notebooks are pages with their stored outputs, files of the repository
that a page links to become pages too, and the options of every command are read from the command
line itself, so that none of it can go stale. Links are written for a reader of the repository; here
they are turned to the pages.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "notebooks/README.md": "notebooks.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Files of the repository outside docs/ that are pages of the navigation."""

COMMANDS_MARK = "<!-- options of every command -->"

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and every file of the repository that some page names."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    todo = [_home_of(file.src_uri) for file in files if file.src_uri.endswith(".md")]
    seen = set(todo)
    while todo:
        source = todo.pop()
        if source.endswith(".md"):
            for target in _targets(source):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        page = _page_of(source)
        if page.startswith("source/"):
            files.append(File.generated(config, page, content=_shown(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to the site's pages, and fill in the options of the commands."""
    here = page.file.src_uri
    source = _home_of(here)

    def turned(match: re.Match[str]) -> str:
        target, separator, anchor = match[2].partition("#")
        if not target or ":" in target:
            return match[0]
        to = _page_of(_resolved(source, target))
        relative = posixpath.relpath(to, posixpath.dirname(here) or ".")
        return f"{match[1]}{relative}{separator}{anchor}{match[3]}"

    if source.endswith(".md"):
        markdown = _LINK.sub(turned, markdown)
    return markdown.replace(COMMANDS_MARK, commands()) if here == "commands.md" else markdown


def commands() -> str:
    """Describe every command and its options, from the command line itself."""
    from sim.cli import make_app  # noqa: PLC0415 - of the working tree

    parts: list[str] = []

    def describe(name: str, command: Any) -> None:  # noqa: ANN401 - typer does not name the type
        parts.append(f"\n## {name}\n\n{_escaped(command.help or '')}\n")
        if hasattr(command, "commands"):
            for part, child in command.commands.items():
                describe(f"{name} {part}", child)
            return
        panels: dict[str, list[str]] = {}
        for parameter in command.params:
            if parameter.name != "help":
                panel = getattr(parameter, "rich_help_panel", None) or ""
                panels.setdefault(panel, []).append(_row(parameter))
        for panel, rows in panels.items():
            heading = panel or ("Arguments and options" if len(panels) == 1 else "Options")
            parts.append(f"\n| {heading} | |\n| --- | --- |\n" + "\n".join(rows) + "\n")

    for name, command in typer.main.get_command(make_app()).commands.items():  # type: ignore[attr-defined]
        describe(f"prefixsim {name}", command)
    return "".join(parts)


def _row(parameter: Any) -> str:  # noqa: ANN401 - as above
    is_option = any(name.startswith("-") for name in parameter.opts)
    metavar = "" if getattr(parameter, "is_flag", False) else parameter.metavar or "TEXT"
    names = ", ".join(_code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    shown = f"{names} {_code(metavar)}" if metavar else names
    shown = shown if is_option else _code(parameter.metavar or parameter.name.upper())
    text = _escaped(parameter.help or "").replace("\n", " ")
    if parameter.show_default and parameter.default not in (None, False):
        text += f" (default: {parameter.default})"
    return f"| {shown} | {text.replace('|', '&#124;')} |"


def _code(text: str) -> str:
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def _escaped(text: str) -> str:
    return re.sub(r"([*_<\[])", r"\\\1", text)


def _home_of(page: str) -> str:
    """Name the file of the repository that a page is made of."""
    for source, name in PAGES.items():
        if name == page:
            return source
    return f"docs/{page}"


def _page_of(source: str) -> str:
    """Name the page, or the picture, that shows a file of the repository."""
    if source in PAGES:
        return PAGES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.endswith(".ipynb"):
        return f"source/{source.removesuffix('.ipynb')}.md"
    return f"source/{source}" if source.endswith(".md") else f"source/{source}.md"


def _resolved(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _targets(source: str) -> list[str]:
    """List the files that a Markdown file links to."""
    found = []
    for match in _LINK.finditer((ROOT / source).read_text("utf-8")):
        target = match[2].partition("#")[0]
        if target and ":" not in target:
            found.append(_resolved(source, target))
    return [path for path in found if (ROOT / path).is_file()]


def _shown(source: str) -> str:
    """Show a file of the repository as a page."""
    text = (ROOT / source).read_text("utf-8")
    hidden = "---\nsearch:\n  exclude: true\n---\n\n"
    if source.endswith(".ipynb"):
        return _notebook(json.loads(text))
    if source.endswith(".md"):
        return hidden + text
    language = _LANGUAGES.get(Path(source).suffix, "text")
    return f"{hidden}# {source}\n\n````{language}\n{text.rstrip()}\n````\n"


def _notebook(notebook: dict[str, Any]) -> str:
    """Show cells and the outputs that are stored with them."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join(data["image/png"]).strip()
                parts.append(f'<img alt="output" src="data:image/png;base64,{picture}">')
            elif "text/html" in data:
                parts.append(re.sub(r"\n\s*\n", "\n", "".join(data["text/html"])))
            elif "text/plain" in data:
                parts.append(f"<pre>{html.escape(''.join(data['text/plain']))}</pre>")
    return "\n\n".join(parts) + "\n"
