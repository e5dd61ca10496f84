"""Takes the recipes out of the guide, so that tests run the very text that people read.

`python recipes.py DIR` writes each to a file of its own there.
"""

import pathlib
import re
import sys

GUIDE = pathlib.Path(__file__).parents[3] / "docs/guide/fence-clients.md"
NAMES = ["psql", "psycopg", "sqlalchemy", "django", "node-postgres", "sqlx", "tokio-postgres", "jdbc", "rails", "autocommit"]


def read_recipes():
    found = re.findall(r"^<!-- recipe: (\S+) -->\n```\w+\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    recipes = dict(found)
    assert list(recipes) == NAMES and len(found) == len(NAMES), f"the guide has the recipes {[name for name, _ in found]}"
    return recipes


if __name__ == "__main__":
    home = pathlib.Path(sys.argv[1])
    home.mkdir(parents=True, exist_ok=True)
    for name, text in read_recipes().items():
        file = home / name
        # An unchanged file keeps its time: nothing is built again for it.
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
