"""Tables of the documentation that say what the code does; as a script, writes them anew.

After a change of a setting or a column: python tests/_tables.py.
"""

from pathlib import Path

from sim.columns import columns_of
from sim.config import option_name, setting_of, settings

DOCS = Path(__file__).parents[1] / "docs"
PLACES = {
    "settings": DOCS / "settings.md",
    "summary": DOCS / "columns.md",
    "requests": DOCS / "columns.md",
    "steps": DOCS / "columns.md",
    "curve": DOCS / "columns.md",
}
"""Tables, by the mark above each, and the page that each is in."""


def table_of(name):
    """Write out the table that the code asks for."""
    return settings_table() if name == "settings" else columns_table(name)


def columns_table(name):
    rows = [f"| `{c.name}` | {c.dtype} | {c.unit} | {c.meaning} |" for c in columns_of(name)]
    return "\n".join(["| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows])


def settings_table():
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for field in settings():
        if field.name == "workload":
            continue
        default = "" if field.default is None else f"`{str(field.default).lower()}`"
        rows.append(f"| `{option_name(field.name)}` | {default} | {setting_of(field).help} |")
    return "\n".join(rows)


def with_table(text, name):
    """Put the table below its mark, in the place of the rows that are there."""
    before, mark, after = text.partition(f"<!-- table: {name} -->\n")
    assert mark, f"no mark for the table {name}"
    rest = after.lstrip("\n").splitlines(keepends=True)
    while rest and rest[0].startswith("|"):
        rest.pop(0)
    return f"{before}{mark}\n{table_of(name)}\n{''.join(rest)}"


if __name__ == "__main__":
    for name, path in PLACES.items():
        path.write_text(with_table(path.read_text(encoding="utf-8"), name), encoding="utf-8")
