"""Runs what README.md and docs/*.md tell a reader to type, and compares their tables with the code.

How a page is written, so that it can be run from top to bottom in an empty folder:
- A ```console block holds commands behind `$ ` and what they print. Compared are lines that start with `error: `
  (exactly the errors of the command above them; a command without such lines must succeed), the number below
  `$ echo $?`, and the words of each line of a listing (`xmclab parts`, `recipes`, `presets`, `data`, `--why`,
  `--dry-run`), which may leave lines out by `...`. The numbers of a training run are not. `/home/you` stands for the
  reader's folder.
- A block below a line that is just a file name in backticks and a colon (`my_loss.py`:) is a file that one makes.
- Any other ```python block is executed, one after the other in one namespace. ```text blocks are only read.
- `examples/` is at hand. `xmclab run` starts from `QUICK`, so what the page itself says wins. The cells of specs that
  ship are listed, not trained; those of the page's own files are trained, in this process. `encoder.model=minilm` is a
  tiny random BERT.
  `make` and `pip install` are not run: their targets and extras must exist. A folder that the page made itself and
  gives to `pip install` counts as installed from then on.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from xmclab import cli, errors
from xmclab.errors import ConfigError, XmclabError
from xmclab.host import hookspecs
from xmclab.host.compose import check_terms
from xmclab.host.recipes import group, read_plain
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.tables import TableOptimizer
from xmclab.objectives.expr import parse_expression

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICK = ["data=tiny", "epochs=1", "baseline=none"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"^`([\w./-]+)`:$")
FILE_KINDS: dict[str, str | tuple[str, ...]] = {
    "python": ".py",
    "yaml": ".yaml",
    "json": (".json", ".jsonl"),
    "toml": ".toml",
    "text": ".txt",
    "csv": ".csv",
}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    file: str | None  # the file that the reader makes of it


@dataclass
class Command:
    """A line to type, and what the page shows below it."""

    line: str
    output: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        return [line for line in self.output if line.startswith("error: ")]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        above = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        name = FILE_NAME.match(above)
        yield Block(match[1], match[2], name[1] if name else None)


def commands(block: Block) -> Iterator[Command]:
    current: Command | None = None
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if current:
                yield current
            current = Command(line[2:])
        else:
            assert current, f"output before the first command: {line}"
            current.output.append(line)
    if current:
        yield current


class Reader:
    """Does what a page says, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace: dict[str, object] = {"__name__": "page"}
        self.exit_code = 0

    def follow(self, block: Block) -> None:
        if block.file:
            assert block.file.endswith(FILE_KINDS[block.language]), f"{block.file} is no {block.language}"
            (self.folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, "page", "exec", dont_inherit=True), self.namespace)
        elif block.language == "console":
            for command in commands(block):
                self.type(command)
        else:
            assert block.language == "text", f"nobody knows how to run a block of {block.language!r}"

    def type(self, command: Command) -> None:
        if command.line == "echo $?":
            assert command.output == [str(self.exit_code)]
            return
        words = shlex.split(command.line)
        target = words.pop() if len(words) > 1 and words[-2] == ">" else None
        words = words[:-1] if target else words
        environment = [word for word in words if re.match(r"[A-Z_]+=", word)]
        program, *arguments = words[len(environment) :]
        programs: dict[str, Callable[[list[str]], int]] = {
            "xmclab": xmclab,
            "python": run_script,
            "pytest": run_tests,
            "make": make,
            "pip": pip,
        }
        assert program in programs, f"nobody knows how to run {command.line!r}"
        out, err = io.StringIO(), io.StringIO()
        with variables(environment), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.exit_code = programs[program](arguments)
        said = err.getvalue().replace(str(self.folder), "/home/you")
        if target:
            (self.folder / target).write_text(out.getvalue(), encoding="utf-8")
        assert [line for line in said.splitlines() if line.startswith("error: ")] == command.errors, said
        assert (self.exit_code == 0) == (not command.errors), f"{command.line}: {self.exit_code}\n{said}"
        if program == "xmclab" and is_listing(arguments):
            printed = [line.split() for line in [*out.getvalue().splitlines(), *said.splitlines(), "..."]]
            assert [line for line in command.output if line.split() not in printed] == []


@contextlib.contextmanager
def variables(settings: list[str]) -> Iterator[None]:
    """The environment of a command, which decides what plugins are loaded."""
    with pytest.MonkeyPatch.context() as patch:
        for setting in settings:
            patch.setenv(*setting.split("=", 1))
        if settings:
            default_registry.cache_clear()
        yield
    if settings:
        default_registry.cache_clear()


def is_listing(arguments: list[str]) -> bool:
    return arguments[0] in ("parts", "recipes", "presets", "data") or bool({"--why", "--dry-run"} & set(arguments))


def xmclab(arguments: list[str]) -> int:
    if arguments[0] == "run" and not is_listing(arguments):
        arguments = ["run", *QUICK, *arguments[1:]]
    if arguments[0] == "bench" and not arguments[1].endswith(".yaml"):
        arguments = [*arguments, "--dry-run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["xmclab", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def run_script(arguments: list[str]) -> int:
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def run_tests(arguments: list[str]) -> int:
    """The test functions of a file, which take no arguments but those of one `parametrize`."""
    tests = [value for name, value in runpy.run_path(arguments[0]).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        parameters = [mark.args for mark in getattr(test, "pytestmark", ())]
        for case in [{name: value} for name, values in parameters for value in values] or [{}]:
            test(**case)
    return 0


def make(arguments: list[str]) -> int:
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in arguments)
    return 0


def pip(arguments: list[str]) -> int:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert arguments[0] == "install"
    if (Path(arguments[-1]) / "pyproject.toml").is_file():
        pretend_installed(Path(arguments[-1]).resolve())
        return 0
    for wanted in re.findall(r"\.\[([\w,]+)\]", arguments[-1]) or [""]:
        assert not wanted or set(wanted.split(",")) <= set(extras)
    if "--constraint" in arguments:
        assert (ROOT / arguments[arguments.index("--constraint") + 1]).is_file()
    return 0


def pretend_installed(folder: Path) -> None:
    """Have this process find the module and the entry points of a distribution."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entries = [
        f"[{group}]\n" + "".join(f"{name} = {module}\n" for name, module in names.items())
        for group, names in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(entries))
    sys.path.insert(0, str(folder))  # restored with what the test itself has added
    default_registry.cache_clear()


@each_page
def test_a_reader_can_do_what_the_page_says(
    page: Path,
    tmp_path: Path,
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    cells_in_this_process: Callable[..., Any],
) -> None:
    monkeypatch.setattr("xmclab_bench.runner.processes", cells_in_this_process)
    monkeypatch.setattr("xmclab.model.encoders.hf.locate", lambda model: str(tiny_bert) if model == "minilm" else model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    before = set(sys.modules)
    reader = Reader(tmp_path)
    try:
        for block in blocks(page):
            reader.follow(block)
    finally:
        default_registry.cache_clear()
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def test_a_shown_error_that_is_not_the_real_one_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        Reader(tmp_path).type(Command("xmclab run recipe=unidecc", ["error: something else"]))
    with pytest.raises(AssertionError):
        Reader(tmp_path).type(Command("xmclab run recipe=unidecc"))
    with pytest.raises(AssertionError, match="nobody knows"):
        Reader(tmp_path).type(Command("curl example.org"))


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(docs/{page.name})" in readme for page in PAGES[1:])


COMPARISONS = (
    *("reductions", "reductions-genes", "losses", "hard_negatives"),
    *("negatives", "batches", "symmetric", "pool"),
    *("systems", "systems-genes", "systems-tuned", "search"),
)
MEASURED = [
    ("performance.md", "speed", "speed/results.md"),
    ("performance.md", "index", "index/results.md"),
    ("plan.md", "compared", "plan/results.md"),
    ("gpu.md", "computed-steps", "gpu/launches.md"),
    ("results.md", "quality", "quality/debian.md"),
    ("results.md", "genes", "quality/LF-GeneOntology-17K.md"),
    ("results.md", "transformer", "quality/transformer.md"),
    ("benchmark.md", "linear", "pecos/results.md"),
    ("comparisons.md", "claims", "results/claims.md"),
    *(("comparisons.md", name, f"results/{name}/table.md") for name in COMPARISONS),
]


@pytest.mark.parametrize(("page", "mark", "file"), MEASURED)
def test_tables_of_what_was_measured_are_those_that_are_committed(page: str, mark: str, file: str) -> None:
    committed = (ROOT / "benchmarks" / file).read_text(encoding="utf-8")
    assert lines_of_table(page, mark) == [line for line in committed.splitlines() if line.startswith("|")]


def lines_of_table(page: str, mark: str) -> list[str]:
    """What is between the marks `<!-- mark -->` and `<!-- /mark -->`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0].strip().splitlines()


def test_the_numbers_behind_a_choice_are_those_that_are_committed() -> None:
    """Cells such as "P@1 / PSP@1 of de: `PSL` 36.16 / 24.04; ...", with a link to their table in the last column."""
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith(") |")]
    assert len(rows) > 25
    for row in rows:
        said, link = row.split("|")[3:5]
        titles, where, items = re.findall(r"^ ([^:`]+?)(?: of ([^:`]+))?: (.*)", said)[0]
        file = ROOT / "docs" / link.partition("](")[2].strip(" )")
        compared = re.findall(r"`([^`]+)` ([^;]+)", items)
        assert compared, row
        for name, shown in compared:
            wanted = dict(zip(titles.split(" / "), shown.strip().split(" / "), strict=True))
            measured = [found for first, found in measurements(file) if {name, where or name} <= first]
            assert any(wanted.items() <= found.items() for found in measured), f"{row}\n{wanted} is none of {measured}"


def test_the_table_of_the_readme_is_close_to_the_means_of_three_seeds() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = readme.partition("<!-- debian-table -->")[2].partition("<!-- /debian-table -->")[0].splitlines()
    titles, *rows = [line.split() for line in lines if re.match(r" \w", line)]
    committed = measurements(ROOT / "benchmarks" / "quality" / "debian.md")
    means = {name.removeprefix("unidec, "): found for first, found in committed for name in first}
    assert len(rows) == 7
    for name, *shown in rows:
        near = 0.5 if name in ("de", "clf", "de+clf", "nn", "de+clf+nn") else 0
        for title, value in zip(titles[1:], shown, strict=True):
            assert float(value) == pytest.approx(float(means[name][title]), abs=near), (name, title)


def measurements(file: Path) -> Iterator[tuple[set[str], dict[str, str]]]:
    """Of each row of a committed table: what its first two cells say, and its values by column, without deviations."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    titles, _, *rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    for row in rows:
        yield set(row[:2]), {title: cell.partition(" ±")[0] for title, cell in zip(titles, row, strict=True)}


def test_a_million_labels_took_what_the_page_says() -> None:
    document = json.loads((ROOT / "benchmarks" / "speed" / "million.json").read_text(encoding="utf-8"))
    parts, seconds = document["profile"]["parts"], document["seconds"]
    assert document["data"]["labels"] == 1_000_000
    assert [row[-1] for row in table("performance.md", "million")[1]] == [
        f"{seconds['prepare']:.0f} s",
        f"{document['profile']['ms_per_step']:.1f} ms each",
        f"{parts['refresh']['ms'] / 1000:.0f} s",
        f"{seconds['evaluate']:.0f} s",
        f"{seconds['total']:.0f} s",
        f"{document['memory']['peak'] / 2**30:.1f} GiB",
    ]


def test_the_claims_are_those_of_the_committed_comparisons() -> None:
    claims = runpy.run_path(str(ROOT / "benchmarks" / "results" / "claims.py"))
    committed = (ROOT / "benchmarks" / "results" / "claims.md").read_text(encoding="utf-8")
    assert claims["table"](claims["documents"]()) == committed


def table(page: str, mark: str) -> tuple[list[str], list[list[str]]]:
    """(titles, rows) of a table between marks; backticks are left out."""
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines_of_table(page, mark)]
    titles, _, *rows = [[cell.strip().strip("`").replace("\\|", "|") for cell in line] for line in split]
    return titles, rows


def values(recipe: str) -> dict[str, str]:
    """Every key of a recipe with its value as the tables print it."""
    explained = resolve([f"recipe={recipe}"], default_registry()).explain()
    return {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value, _ in explained}


@pytest.mark.parametrize("mark", ["symbols", "release"])
def test_the_tables_of_keys_agree_with_the_recipes(mark: str) -> None:
    titles, rows = table("recipes.md", mark)
    recipes = {title: values(title) for title in titles if title in default_registry().names("recipe")}
    assert len(recipes) == 2
    shown = [{name: row[titles.index(name)] for name in recipes} for row in rows]
    keys = [row[titles.index("key")] for row in rows]
    real = [{name: recipe[key] for name, recipe in recipes.items()} for key in keys]
    assert dict(zip(keys, shown, strict=True)) == dict(zip(keys, real, strict=True))


def test_the_table_of_deviations_is_complete() -> None:
    paper, release = values("unidec_paper"), values("unidec_release")
    assert {row[0] for row in table("recipes.md", "release")[1]} == {key for key in paper if paper[key] != release[key]}


def test_the_table_of_symbols_has_every_number_of_the_recipe() -> None:
    """What `unidec_paper` sets, apart from the ways of a transformer and the first values of maps."""
    explained = resolve(["recipe=unidec_paper"], default_registry()).explain()
    set_by_recipe = {key for key, _, source in explained if ".yaml:" in source}
    keys = {row[2] for row in table("recipes.md", "symbols")[1]}
    ways = {"encoder.model", "encoder.pooling"}
    assert set_by_recipe - keys == {*ways, "head.de", "head.clf", "head.de.init", "head.clf.init"}


def test_the_table_of_systems_says_what_they_are_made_of() -> None:
    recipes = [name for name, which in groups().items() if which in ("rivals", "the paper's own")]
    real = [row for name in recipes if name != "unidec_release" for row in made_of(name)]
    assert sorted(table("systems.md", "systems")[1]) == sorted(real)


def groups() -> dict[str, str]:
    return {name: group(default_registry().recipe(name)) for name in default_registry().names("recipe")}


def made_of(recipe: str) -> list[list[str]]:
    """The rows of a recipe, one for each of its stages."""
    last, rows = resolve([f"recipe={recipe}"], default_registry()), []
    for config in (*last.earlier.values(), last):
        frozen = config.settings.freeze
        trained = [head for head in config.heads if f"head.{head}" not in frozen]
        terms = {key: value for key, value, _ in config.explain()}
        mines = config.settings.pool.eta and all(config.objective(head).needs_all is False for head in trained)
        rows.append(
            [
                f"{recipe}`, {config.stage}" if config.stage else recipe,
                f"{config.choice('encoder')}{', frozen' if 'encoder' in frozen else ''}",
                ", ".join(str(config.choice(f"head.{head}")) for head in config.heads),
                str(config.choice("sampler")),
                str(config.choice("miner")) if mines else "none",
                "; ".join(f"{config.choice(f'reduction.{head}')}({terms[f'loss.{head}']})" for head in trained),
            ]
        )
    return rows


def test_the_table_of_what_differs_is_that_of_the_recipes() -> None:
    said = {}
    for name in (name for name, which in groups().items() if which == "rivals"):
        lines = default_registry().recipe(name).read_text().splitlines()[2:]
        comment = " ".join(line.removeprefix("# ") for line in itertools.takewhile(lambda line: line[:1] == "#", lines))
        if comment:
            said[name] = comment.removeprefix("Differs: ").removesuffix(".")
    assert dict(table("systems.md", "differs")[1]) == said


def preset_files() -> dict[str, dict[str, Any]]:
    """What the files of all presets say, in the order of the table of data sets."""
    registry, names = default_registry(), [row[0] for row in table("paper.md", "paper-sets")[1]]
    assert sorted(names) == registry.names("preset")
    return {name: read_plain(registry.preset(name)) for name in names}


def test_the_table_of_data_sets_agrees_with_the_presets() -> None:
    real = []
    for name, preset in preset_files().items():
        sizes = [f"{preset['sizes'][key]:,}" if "sizes" in preset else "–" for key in ("train", "test", "labels")]
        propensity = ", ".join(f"{number:g}" for number in preset["evaluate"].get("propensity", ())) or "–"
        real.append([name, *sizes, preset["data"]["query_text"], propensity])
    assert table("paper.md", "paper-sets")[1] == real


def test_the_results_of_the_paper_are_those_of_the_presets() -> None:
    titles, shown = table("paper.md", "paper-results")
    named = [
        (name, system, recipe, row)
        for name, preset in preset_files().items()
        for recipe, rows in preset.get("paper", {}).items()
        for system, row in rows.items()
    ]
    assert {key for *_, row in named for key in row} == set(titles[3:])
    assert sorted(shown) == sorted([*names, *(number(row, title) for title in titles[3:])] for *names, row in named)


def test_the_paper_s_table_of_losses_is_that_of_the_preset() -> None:
    ablation = preset_files()["LF-AmazonTitles-1.3M"]["ablation"]
    titles, rows = table("paper.md", "paper-losses")
    assert rows == [[name, *(number(row, title) for title in titles[1:])] for name, row in ablation.items()]


def number(row: dict[str, float], title: str) -> str:
    return "–" if title not in row else f"{row[title]:.2f}" if "@" in title else f"{row[title]:,}"


def test_the_table_of_combinations_says_what_is_accepted() -> None:
    (_, *losses), rows = table("recipes.md", "combinations")
    assert {row[0] for row in rows} == set(default_registry().names("reduction"))
    get = default_registry().get
    for reduction, *answers in rows:
        said = dict(zip(losses, answers, strict=True))
        for loss, answer in said.items():
            assert accepted([f"reduction={reduction}", f"loss={loss}"]) == (answer == "yes"), (reduction, loss)
        for name in our_losses():
            like = "bce" if get("loss", name).kind == "binary" else "ds"
            fine = not check_terms(parse_expression(name), reduction, get)
            assert fine == (said[like] == "yes"), (reduction, name)


def our_losses() -> list[str]:
    """Those that are no other library's: its names have a dot."""
    return [name for name in default_registry().names("loss") if "." not in name]


def test_the_table_of_losses_has_every_loss_as_it_is() -> None:
    rows = table("losses.md", "losses")[1]
    assert {row[0] for row in rows} == set(our_losses())
    for name, kind, _, options, closed_form, _, _ in rows:
        loss = default_registry().get("loss", name)()
        real = [f"{option}={default:g}" if isinstance(default, float) else f"{option}={default}"
                for option, default in vars(loss).items() if option != "temperature"]  # fmt: skip
        assert (kind.replace("-", ""), options, closed_form) == (
            loss.kind, ", ".join(real), "yes" if loss.has_closed_form else "no"
        )  # fmt: skip


def test_every_loss_has_its_lines() -> None:
    text = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    explained = {
        name for names in re.findall(r"\*\*((?:`\w+`(?:, )?)+)\*\*", text) for name in re.findall(r"\w+", names)
    }
    assert explained == set(our_losses())


def accepted(overrides: list[str]) -> bool:
    try:
        resolve(overrides, default_registry())
    except ConfigError:
        return False
    return True


def test_every_reduction_has_its_formula() -> None:
    concepts = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    rows = [line for line in concepts.splitlines() if line.startswith("| `")]
    for name in default_registry().names("reduction"):
        assert any(f"`{name}`" in row.split("|")[1] for row in rows), name


def test_every_kind_of_part_is_named_where_parts_are_supplied() -> None:
    plugins = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert all(re.search(rf"\b{kind}(s|es)?\b", plugins) for kind in hookspecs.KINDS)


def test_every_hook_has_its_section() -> None:
    plugins = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### `(\w+)`$", plugins, re.MULTILINE)
    assert set(sections) == {name for name in vars(hookspecs) if name.startswith("xmclab_")}


def test_the_table_of_exit_codes_agrees_with_the_errors() -> None:
    rows = table("architecture.md", "exit-codes")[1]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, XmclabError)]
    real = {kind.__name__: str(kind.exit_code) for kind in kinds if kind is not XmclabError}
    assert {error: code for code, error, _ in rows if error} == real


def test_the_table_of_optimizers_has_every_rule_of_a_table() -> None:
    assert {row[0] for row in table("concepts.md", "table-optimizers")[1]} == set(get_args(TableOptimizer))


def test_the_table_of_extras_has_every_one() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = {name.strip(" `") for row in table("first-run.md", "extras")[1] for name in row[0].split(",")}
    assert shown == {"none", *extras}


def test_the_table_of_layouts_has_every_reader() -> None:
    assert {row[0] for row in table("data.md", "readers")[1]} == set(default_registry().names("reader"))
