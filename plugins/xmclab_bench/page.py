"""A comparison as one HTML page: everything inside, nothing fetched."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from string import Template

from xmclab import __version__
from xmclab_bench.document import Document
from xmclab_bench.run_folder import MEASURES
from xmclab_bench.tables import beside, chosen, footnote, remarks


def page(document: Document) -> str:
    """The page."""
    folder = resources.files("xmclab_bench") / "page"
    files = {name: (folder / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    shown = {
        **document,
        "baselines": beside(document),
        "footnote": footnote(document),
        "remarks": remarks(document),
        "settings": chosen(document),
        "axes": {name: measure.axis for name, measure in MEASURES.items()},
    }
    # `</script>` in a row's name must not end the script that it stands in.
    data = json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")
    return Template(files["page.html"]).substitute(
        title=escape(document["title"]),
        verdict="".join(f"<p>{escape(sentence)}</p>" for sentence in document["verdict"]["sentences"]),
        repeat=_repeat(document),
        style=files["page.css"],
        script=files["page.js"],
        data=data,
        version=__version__,
    )


def _repeat(document: Document) -> str:
    """The command that makes the comparison again, and when it was made."""
    command = f"Repeat it with <code>{escape(document['command'])}</code>." if document["command"] else ""
    date = f"Made on <time>{escape(document['date'])}</time>." if document["date"] else ""
    return " ".join(filter(None, (command, date)))
