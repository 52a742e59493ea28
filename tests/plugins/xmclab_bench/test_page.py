"""The HTML page: self-contained, safe, and alive in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from xmclab_bench.page import page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Runs after the page's own script: uses the page as a reader would, and writes down what it saw.
VISIT = """
<script>
const seen = {};
const cells = column =>
  [...document.querySelectorAll(`#table tbody tr td:nth-child(${column})`)].map(td => td.textContent);
const heading = key => document.querySelector(`#table th[data-key="${key}"] button`);
seen.before = cells(3);
heading("P@1").click();
seen.descending = cells(3);
heading("P@1").click();
seen.ascending = cells(3);
seen.sorted = document.querySelector('#table th[data-key="P@1"]').getAttribute("aria-sort");
seen.curves = document.querySelector("#curves figcaption").textContent;
seen.firstChart = document.querySelector("#bands svg").getAttribute("aria-label");
const metric = document.querySelector('select[data-key="metric"]');
metric.value = "PSP@1";
metric.dispatchEvent(new Event("change"));
seen.secondChart = document.querySelector("#bands svg").getAttribute("aria-label");
seen.verdict = document.querySelector("#verdict").textContent;
seen.heads = [...document.querySelectorAll("#heads th, #heads td")].map(cell => cell.textContent);
seen.sections = [...document.querySelectorAll("main section")].filter(s => !s.hidden).map(s => s.id);
seen.bold = document.querySelectorAll("#table td.best").length;
seen.injected = document.querySelectorAll("main b").length;
seen.errors = errors;
document.documentElement.dataset.seen = JSON.stringify(seen);
</script>
"""
LISTEN = """<script>
const errors = [];
window.addEventListener("error", event => errors.push(String(event.message)));
console.error = console.warn = (...values) => errors.push(values.join(" "));
</script>"""


def test_nothing_is_fetched(document: dict[str, Any]) -> None:
    text = page(document)
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!data:)", text)
    assert "@import" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_names_cannot_break_out(document: dict[str, Any]) -> None:
    text = page(document)
    assert "<title>Two &lt;rows&gt; &amp; more</title>" in text
    assert text.count("</script>") == 2
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    data = json.loads(found[1])
    assert data["rows"][2]["name"] == "</script><b>x</b> | 50 %_"
    assert data["remarks"][1:] == ["missing: C, seed 3: not <possible>"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser_tables_sort_and_metrics_switch_without_an_error(document: dict[str, Any], tmp_path: Path) -> None:
    text = page(document).replace("<body>", f"<body>{LISTEN}").replace("</body>", f"{VISIT}</body>")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stderr[-500:]
    seen = json.loads(unescape(found[1]))
    assert seen["errors"] == []
    assert [text.split()[0] for text in seen["before"]] == ["40.00", "40.00", "30.00", "30.00"]
    assert [text.split()[0] for text in seen["ascending"]] == ["30.00", "30.00", "40.00", "40.00"]
    assert [text.split()[0] for text in seen["descending"]] == ["40.00", "40.00", "30.00", "30.00"]
    assert seen["sorted"] == "ascending"
    assert seen["firstChart"] == "P@1 by label frequency"
    assert seen["secondChart"] == "PSP@1 by label frequency"
    assert seen["bold"] == 4
    assert seen["injected"] == 0
    assert seen["verdict"] == "A & B is better than every other row."
    assert seen["heads"][:4] == ["row", "clf less de", "A & B", "-1.00 (-1.75 to -0.50; p = 0.010)"]
    assert seen["curves"] == "Mean over the seeds, on the test or validation queries"
    everything = "results differences heads curves costs tradeoff bands pools config missing environment"
    assert " ".join(seen["sections"]) == everything
