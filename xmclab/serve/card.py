"""The model card of an export: what it was trained on, how good it is, how to use it, and its config.

The format is that of the Hugging Face hub: Markdown below YAML. Names and texts come from data: they are never markup.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xmclab.evaluation.bootstrap import middle, redrawn
from xmclab.evaluation.report import columns_of
from xmclab.host.layers import CUSTOM
from xmclab.keys import Keys
from xmclab.runs import store
from xmclab.runs.store import Labels, damage_reported
from xmclab.system.reading import load_arrays, read_json
from xmclab.system.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAWS = 1000
SHOWN = 5  # labels, in the snippets
EXAMPLE = re.compile(r"[\w ,.:()-]{1,60}")  # a text that needs no quotes of its own
ANY_TEXT = "your text"
IMPORTED = (
    "Some modules are classes of xmclab, which must be installed; the library imports them only with "
    "`trust_remote_code=True`. The folder itself holds no code."
)

Intervals = Mapping[str, tuple[float, float]]  # metric -> 95 %


def write_card(
    folder: Path, name: str, run: Path, manifest: Mapping[str, Any], labels: Labels, needs_xmclab: bool
) -> None:
    """Write README.md.

    Args:
        folder: the export, apart from index.json.
        name: of the folder in the end.
        run: the run folder it is made from.
        manifest: index.json, apart from its files.
        needs_xmclab: whether the SentenceTransformer has modules of xmclab.
    """
    with damage_reported(run / store.RESULT):
        result = read_json(run / store.RESULT)
        found = result["metrics"]
        intervals = {search: _intervals(run, search) for search in found}
        parts = [
            _front(name, manifest, result),
            f"# {_code(name)}\n\n{_about(manifest, result)}",
            f"## Use\n\n{_use(name, manifest, _example(labels), needs_xmclab)}",
            f"## Data\n\n{_data(manifest, result)}",
            f"## Metrics\n\n{_metrics(result, intervals, manifest['added'])}",
            f"## Config\n\n{_fenced('yaml', (folder / store.CONFIG).read_text(encoding='utf-8'))}",
        ]
    (folder / store.CARD).write_text("\n\n".join(part.rstrip() for part in parts) + "\n", encoding="utf-8")


def _front(name: str, manifest: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """What the hub reads."""
    library = "xmclab" if manifest["sentence_transformer"] is None else "sentence-transformers"
    metrics = result["metrics"].get(manifest["search"], {})
    found = {
        "task": {"type": "text-classification", "name": "extreme multi-label classification"},
        "dataset": {"type": printable(str(result["data"]["name"])), "name": printable(str(result["data"]["name"]))},
        "metrics": [{"type": each, "value": round(metrics[each], 2)} for each in columns_of([metrics])],
    }
    document: dict[str, Any] = {
        "library_name": library,
        "tags": list(dict.fromkeys([library, "xmclab", "extreme-multi-label-classification"])),
    }
    if found["metrics"]:
        document["model-index"] = [{"name": printable(name), "results": [found]}]
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return f"---\n# license: choose one before you publish the model\n{text}---"


def _about(manifest: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    recipe = f" with the recipe {_code(result['recipe'])}" if result["recipe"] not in ("", CUSTOM) else ""
    heads, search = " and ".join(map(_code, manifest["heads"])), _code(manifest["search"])
    return (
        f"Ranks {manifest['labels']:,} labels for a text. Trained by xmclab {manifest['xmclab']}{recipe}, seed "
        f"{result['seed']}. Heads: {heads}. The index and the SentenceTransformer are for the search {search}."
    )


def _example(labels: Labels) -> str:
    """A text that the model knows words of."""
    return next((text for text in labels.texts[:1000] if EXAMPLE.fullmatch(text)), ANY_TEXT)


def _use(name: str, manifest: Mapping[str, Any], text: str, needs_xmclab: bool) -> str:
    """The same query by the command, in Python, and without xmclab or with as little of it as possible."""
    search = manifest["search"]
    command = shlex.join(["xmclab", "predict", name, "--text", text, "--head", search, "-k", str(SHOWN)])
    call = f"model.predict({_quoted(text)}, k={SHOWN}, head={_quoted(search)})"
    opening = f"import xmclab\n\nmodel = xmclab.load({_quoted(name)})"
    python = f"{opening}\nfor label in {call}:\n    print(label.name, label.score)"
    parts = ["On the command line:", _fenced("console", f"$ {command}"), "In Python:", _fenced("python", python)]
    if manifest["sentence_transformer"] is None:
        parts.append("It is not a SentenceTransformer: a part of it is not in an installed plugin.")
        return "\n\n".join(parts)
    index = "faiss" if manifest["index"] else "numpy"
    words = f"With sentence-transformers and {index}, to the same scores{'. ' + IMPORTED if needs_xmclab else ':'}"
    lines = [*_imports(index), "", f"folder = {_quoted(name)}"]
    lines.append(f"model = SentenceTransformer(folder{', trust_remote_code=True' if needs_xmclab else ''})")
    lines += ['with open(f"{folder}/labels.jsonl", encoding="utf-8") as file:']
    lines += ['    names = [json.loads(line)["name"] for line in file]']
    lines += [f"queries = model.encode([{_quoted(text)}])", *_search(index, search), ""]
    lines += ["for label, score in zip(ids[0], scores[0]):", "    print(names[label], score)"]
    return "\n\n".join([*parts, words, _fenced("python", "\n".join(lines))])


def _imports(index: str) -> list[str]:
    module = "import faiss" if index == "faiss" else "import numpy as np"
    return ["import json", "", module, "from sentence_transformers import SentenceTransformer"]


def _search(index: str, search: str) -> list[str]:
    """Lines that find `ids` and `scores`."""
    if index == "faiss":
        return ['index = faiss.read_index(f"{folder}/index.faiss")', f"scores, ids = index.search(queries, {SHOWN})"]
    return [
        f'labels = np.hstack([np.load(f"{{folder}}/vectors/{{head}}.npy") for head in {search.split("+")!r}])',
        "scores = queries @ labels.T",
        f"ids = np.argsort(-scores, axis=1)[:, :{SHOWN}]",
        "scores = np.take_along_axis(scores, ids, axis=1)",
    ]


def _data(manifest: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    data = result["data"]
    later = [("labels added later, by their texts", f"{manifest['added']:,}")] if manifest["added"] else []
    rows = [
        ("name", _code(data["name"])),
        ("training queries", f"{data['train']:,}"),
        (f"{result.get('split', 'test')} queries", f"{data['test']:,}"),
        ("labels", f"{data['labels']:,}"),
        *later,
        ("fingerprint (sha256)", _code(data["sha256"])),
    ]
    return _table(["", ""], rows)


def _metrics(result: Mapping[str, Any], intervals: Mapping[str, Intervals], added: int) -> str:
    """Rows of metrics, columns of searches."""
    found, split = result["metrics"], result.get("split", "test")
    names = columns_of(found.values())
    if not names:
        return f"The run has no {split} queries, so it was not measured."
    rows = [[name, *(_cell(found[search], intervals[search], name) for search in found)] for name in names]
    what = f"In percent, on the {result['data']['test']:,} {split} queries"
    how = f", with 95 % intervals from {DRAWS:,} bootstrap draws of the queries."
    if not any(intervals.values()):
        how = f". The run folder has no {store.POINTS}, so there are no intervals."
    constants = result["propensity"]
    scored = f" Propensities: A={constants['A']:g}, B={constants['B']:g}."
    later = " Measured without the labels that were added later." if added else ""
    return f"{what}{how}{scored}{later}\n\n{_table(['metric', *map(_code, found)], rows)}"


def _cell(metrics: Mapping[str, float], intervals: Intervals, name: str) -> str:
    if name not in metrics:
        return ""
    low_high = intervals.get(name)
    return f"{metrics[name]:.2f}" + (f" ({low_high[0]:.2f} to {low_high[1]:.2f})" if low_high else "")


def _intervals(run: Path, search: str) -> Intervals:
    """The interval of every metric of a search, from what each query adds to it; empty if the run did not keep that."""
    if not (run / store.POINTS).is_file():
        return {}
    with damage_reported(run / store.POINTS), load_arrays(run / store.POINTS) as arrays:
        if f"found {search}" not in arrays:
            return {}
        names = arrays["metrics"].tolist()
        values_BM = redrawn(arrays[f"found {search}"], arrays["best"], DRAWS, Keys(0).rng("bootstrap"))
    low_M, high_M = middle(values_BM)
    return {name: (float(low), float(high)) for name, low, high in zip(names, low_M, high_M, strict=True)}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def lines() -> Iterator[str]:
        yield from (f"| {' | '.join(header)} |", f"|{'---|' * len(header)}")
        yield from (f"| {' | '.join(row)} |" for row in rows)

    return "\n".join(lines())


def _code(text: object) -> str:
    """A name as code, in which nothing is markup."""
    return f"`{printable(str(text)).replace('`', chr(39)).replace('|', '/')}`"


def _quoted(text: str) -> str:
    """A string of Python."""
    return json.dumps(text, ensure_ascii=False)


def _fenced(language: str, text: str) -> str:
    """A block of code, which nothing in it can end."""
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{printable(text, lines=True).rstrip()}\n{fence}"
