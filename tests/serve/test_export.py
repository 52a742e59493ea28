"""Exports: the same answers without the training data, the same vectors in other libraries, and no damage unnoticed."""

from __future__ import annotations

import functools
import json
import re
import shutil
import string
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from xmclab.data import open_dataset
from xmclab.errors import ConfigError, DataError, PluginError, StorageError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.model import Model
from xmclab.runs import store
from xmclab.runs.store import Labels, save_indexes
from xmclab.serve import export as module
from xmclab.serve.evaluation import evaluate_folder
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor
from xmclab.serve.predictor import Predictor

TEXTS = ["plot functions", "a database for the web", "", "music player", "a b c d " * 30]
SEARCHES = ["de", "clf", "de+clf"]
FEW = 50  # labels of models that were not trained
UNSCALED = ["head.de.normalise=false", "head.clf.normalise_at_search=false"]


def load(folder: Path) -> Predictor:
    return open_predictor(folder, default_registry(), "cpu")


def export(run: Path, to: Path, index_type: str | None = None, search: str | None = None) -> Path:
    write_export(load(run), run, to, index_type, search)
    return to


@pytest.fixture(scope="module")
def exported(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a bag encoder; not to be written to."""
    return export(small_run, tmp_path_factory.mktemp("export") / "bag")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a tokenizer of letters."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    pieces = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=57, **size)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def train_bert(train: Callable[..., Path], bert: Path) -> Callable[..., Path]:
    """Train with the tiny BERT: (folder, overrides) to the run folder."""
    parts = ["encoder=hf", f"encoder.model={bert}", "encoder.max_length=12"]

    return functools.partial(train, encoder=parts)


@pytest.fixture(scope="module")
def bert_run(train_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_bert(tmp_path_factory.mktemp("runs") / "bert", "head.de.dim=10", "head.clf.dim=12")


@pytest.fixture(scope="module")
def exported_bert(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(bert_run, tmp_path_factory.mktemp("export") / "bert")


@pytest.fixture(params=["bag", "bert"])
def pair(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """(run, its export)"""
    names = {"bag": ("small_run", "exported"), "bert": ("bert_run", "exported_bert")}[request.param]
    return request.getfixturevalue(names[0]), request.getfixturevalue(names[1])


@pytest.mark.parametrize("search", SEARCHES)
def test_an_export_answers_as_its_run_does(pair: tuple[Path, Path], search: str) -> None:
    run, exported = (load(folder).rank(TEXTS, 20, search) for folder in pair)
    np.testing.assert_allclose(run.scores_NK, exported.scores_NK, atol=1e-6)
    sure_NK = run.scores_NK > run.scores_NK[:, -1:] + 1e-6  # labels that tie with the last may be others
    for row, sure in enumerate(sure_NK):
        assert set(run.ids_NK[row, sure]) <= set(exported.ids_NK[row])


def test_an_export_has_the_metrics_of_its_run(pair: tuple[Path, Path]) -> None:
    run, exported = pair
    found = evaluate_folder(exported, None, default_registry(), "cpu", print).metrics
    expected = json.loads((run / "result.json").read_text())["metrics"]
    for search in SEARCHES:
        assert found[search] == pytest.approx(expected[search], abs=1e-9)


def test_the_metrics_of_a_transformer_are_found_again_to_the_last_digit(bert_run: Path) -> None:
    found = evaluate_folder(bert_run, None, default_registry(), "cpu", print).metrics
    assert found == json.loads((bert_run / "result.json").read_text())["metrics"]


def test_an_export_ranks_new_labels(pair: tuple[Path, Path]) -> None:
    run, exported = (load(folder) for folder in pair)
    for predictor in (run, exported):
        predictor.add_labels(Labels(["new"], ["music player"]))
    first, second = (predictor.rank(TEXTS, 930, "de+clf") for predictor in (run, exported))
    np.testing.assert_allclose(first.scores_NK, second.scores_NK, atol=1e-6)
    assert (first.ids_NK == 922).sum(axis=1).tolist() == [1] * len(TEXTS)


def test_an_export_does_not_need_the_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    moved = shutil.copytree(pair[1], tmp_path / "größe mit leerzeichen")
    assert "/" not in json.loads((moved / "index.json").read_text())["index"]["file"]
    config = (moved / "config.yaml").read_text()
    assert "data" in config
    assert load(moved).rank(TEXTS, 3, "de").ids_NK.shape == (len(TEXTS), 3)


def test_label_vectors_are_plain_arrays_at_unit_length(pair: tuple[Path, Path]) -> None:
    run, exported = pair
    for head in ("de", "clf"):
        vectors = np.load(exported / "vectors" / f"{head}.npy", allow_pickle=False)
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, load(run).space.vectors(head).numpy())
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_the_classifiers_are_stored_once(exported: Path) -> None:
    from safetensors import safe_open

    with safe_open(exported / "weights.safetensors", framework="pt") as weights:
        names = set(weights.keys())
    assert not any("psi" in name for name in names)
    assert {name.split(".")[0] for name in names} == {"encoder", "heads"}


@pytest.mark.parametrize("index_type", ["flat", "hnsw", "ivf"])
def test_every_index_of_faiss_can_be_shipped(small_run: Path, tmp_path: Path, index_type: str) -> None:
    folder = export(small_run, tmp_path / "export", index_type)
    described = json.loads((folder / "index.json").read_text())["index"]
    assert (described["search"], described["options"]["type"]) == ("de+clf", index_type)
    exact, found = load(small_run).rank(TEXTS, 10, "de+clf"), load(folder).rank(TEXTS, 10, "de+clf")
    assert type(load(folder).space.index("de+clf")).__name__ == "Faiss"
    shared = [len(set(a) & set(b)) for a, b in zip(exact.ids_NK.tolist(), found.ids_NK.tolist(), strict=True)]
    assert min(shared) >= {"flat": 10, "hnsw": 8, "ivf": 4}[index_type]


def test_the_index_that_the_run_chose_is_shipped(small_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    options = {"type": "ivf", "lists": 7, "probes": 3}
    save_indexes(run, {"de+clf": {"name": "faiss", "options": options, "recall": 0.9}})
    described = json.loads((export(run, tmp_path / "export") / "index.json").read_text())["index"]
    assert {name: described["options"][name] for name in options} == options


def test_without_faiss_all_labels_are_compared(
    small_run: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(small_run).rank(TEXTS, 10, "de+clf").ids_NK.tolist()
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert load(exported).rank(TEXTS, 10, "de+clf").ids_NK.tolist() == expected
    folder = export(small_run, tmp_path / "export")
    assert json.loads((folder / "index.json").read_text())["index"] is None
    assert load(folder).rank(TEXTS, 10, "de+clf").ids_NK.tolist() == expected
    with pytest.raises(PluginError, match="faiss"):
        export(small_run, tmp_path / "asked", "hnsw")
    assert not (tmp_path / "asked").exists()


# Other libraries


def test_sentence_transformers_gives_the_same_vectors(exported_bert: Path, bert_run: Path) -> None:
    from sentence_transformers import SentenceTransformer

    predictor = load(bert_run)
    tokens = predictor.model.encoder.tokenise(TEXTS)
    ours = predictor.model.query_vectors(tokens, 2, ["de"])["de"].numpy()
    theirs = SentenceTransformer(str(exported_bert), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, ours, atol=1e-6)
    labels = SentenceTransformer(str(exported_bert), device="cpu").encode(list(predictor.labels.texts[:50]))
    np.testing.assert_allclose(labels, np.load(exported_bert / "vectors" / "de.npy")[:50], atol=1e-6)


@pytest.fixture(scope="module")
def untrained(bert: Path) -> Callable[..., Path]:
    """Write the folder of a run that trained nothing, with random weights: (folder, overrides) to the folder."""
    data = open_dataset("tiny", "title", default_registry())
    parts = ["data=tiny", "encoder=hf", f"encoder.model={bert}", "encoder.max_length=12", "baseline=none"]

    def write(folder: Path, *overrides: str) -> Path:
        config = resolve([*parts, *overrides], default_registry())
        encoder = config.make("encoder")
        encoder.fit(data.train.texts)
        torch.manual_seed(0)
        model = Model(encoder, {name: config.make(f"head.{name}") for name in config.heads}, FEW)
        for name, tensor in model.heads.state_dict().items():
            if tensor.is_floating_point():
                tensor.uniform_(-0.6, 0.9) if "weight" not in name else torch.nn.init.normal_(tensor, std=0.5)
        folder.mkdir()
        store.save_start(folder, config, data, model)
        store.save_labels(folder, Labels(data.label_names[:FEW], data.label_texts[:FEW]))
        store.save_model(folder, model)
        store.seal(folder)
        sizes = {"train": len(data.train), "test": len(data.test), "labels": FEW}
        about = {"name": data.name, "sha256": data.fingerprint, **sizes}
        propensity = {"A": 0.55, "B": 1.5, "source": "default"}
        result = {"recipe": "", "data": about, "seed": 0, "propensity": propensity, "metrics": {}}
        store.write_json(folder / "result.json", result)
        return folder

    return write


@pytest.mark.parametrize(
    ("overrides", "plain"),
    [
        (["encoder.pooling=cls", "head.de.activation=none", "head.clf=none"], True),
        (["head.de=none"], True),
        (["encoder.towers=separate", "head.clf=none"], True),
        (["head.clf=none", "head.de.projection=none", "head.de.dim=0", "head.de.activation=none"], True),
        (["head.clf=none", "head.de.normalise=false"], True),
        (["head.clf=none", "head.de.project_in=training"], True),
        (["head.de=none", "head.clf.projection=none", "head.clf.dim=0", "head.clf.normalise_at_search=false"], True),
        ([*UNSCALED, "head.de.activation=none"], True),
        ([*UNSCALED, "head.de.activation=none", "head.clf.popularity=0.1"], True),
        (UNSCALED, False),
        (["head.de.bias=label", "head.clf.bias=mean", "head.clf.popularity=0.2"], False),
        (["head.clf=none", "head.de.popularity=0.1"], False),
        (["head.clf=none", "head.de.learn_temperature=true", "head.de.normalise_at_search=false"], False),
        (["head.de=none", "head.clf.normalise=true", "head.clf.normalise_at_search=false"], False),
        (["head.clf=none", "head.de.activation=layer_norm"], False),
        (["head.de=none", "head.clf.projection=residual", "head.clf.dim=0"], False),
        (["head.de=xmclab.label_residual"], False),
    ],
)
def test_every_shape_of_model_is_the_same_in_sentence_transformers(
    untrained: Callable[..., Path], tmp_path: Path, overrides: list[str], plain: bool
) -> None:
    import faiss
    from sentence_transformers import SentenceTransformer

    run = untrained(tmp_path / "run", *overrides)
    predictor = load(run)
    search = "+".join(predictor.model.head_names)
    folder = tmp_path / "export"
    write_export(predictor, run, folder, None, search)
    assert json.loads((folder / "index.json").read_text())["sentence_transformer"] == search
    types = [module["type"] for module in json.loads((folder / "modules.json").read_text())]
    assert all(kind.startswith("sentence_transformers.") for kind in types) == plain
    queries = predictor.model.query_vectors(predictor.model.encoder.tokenise(TEXTS), 9)
    ours = predictor.space.matching(search, queries).numpy()
    theirs = SentenceTransformer(str(folder), device="cpu", trust_remote_code=not plain)
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-6 * max(1.0, np.abs(ours).max()))
    unit = np.allclose(np.linalg.norm(ours, axis=1), 1)
    assert theirs.similarity_fn_name in ({"cosine"} if unit and plain else {"cosine", "dot"} if unit else {"dot"})
    scores_NK, _ = faiss.read_index(str(folder / "index.faiss")).search(theirs.encode(TEXTS), 9)
    for answering in (predictor, load(folder)):
        expected = answering.rank(TEXTS, 9, search).scores_NK
        np.testing.assert_allclose(scores_NK, expected, atol=1e-6 * np.abs(expected).max())


def test_a_label_tower_of_its_own_is_kept(train_bert: Callable[..., Path], tmp_path: Path) -> None:
    run = train_bert(tmp_path / "run", "encoder.towers=separate", "head.clf=none")
    folder = export(run, tmp_path / "export")
    rankings = []
    for predictor in (load(run), load(folder)):
        predictor.add_labels(Labels(["new"], ["a b c"]))
        rankings.append(predictor.rank(TEXTS, 923, "de"))
    np.testing.assert_allclose(rankings[0].scores_NK, rankings[1].scores_NK, atol=1e-6)


def test_the_encoder_loads_as_a_plain_transformer(exported_bert: Path, bert_run: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(exported_bert), AutoModel.from_pretrained(exported_bert).eval()
    encoder = load(bert_run).model.encoder.eval()
    with torch.no_grad():
        ours = encoder(encoder.collate(encoder.tokenise(["abc def"])))
        theirs = network(**tokenizer("abc def", return_tensors="pt")).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


QUERIES = [*TEXTS, "zzyzx unheardof", "GRÖSSE ünïcode \u0130stanbul", "plot-functions, python3_x!", "\u6771\u4eac"]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("encoder", ["small_run", "bert_run"])
def test_other_programs_find_what_predict_finds(
    request: pytest.FixtureRequest, tmp_path: Path, encoder: str, search: str
) -> None:
    import faiss
    from sentence_transformers import SentenceTransformer

    run = request.getfixturevalue(encoder)
    folder = export(run, tmp_path / "export", search=search)
    trusted = encoder == "small_run" or search == "de+clf"
    if trusted:
        with pytest.raises(ValueError, match="trust_remote_code"):
            SentenceTransformer(str(folder), device="cpu")
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=trusted)
    index = faiss.read_index(str(folder / "index.faiss"))
    assert index.d == model.get_embedding_dimension()
    scores_NK, ids_NK = index.search(model.encode(QUERIES), 10)
    expected = load(run).rank(QUERIES, 11, search)
    np.testing.assert_allclose(scores_NK, expected.scores_NK[:, :10], atol=1e-5)
    gaps_NK = -np.diff(expected.scores_NK, axis=1)
    sure_NK = (gaps_NK > 1e-5) & (np.pad(gaps_NK, ((0, 0), (1, 0)), constant_values=1.0)[:, :-1] > 1e-5)
    assert sure_NK.mean() > 0.9
    np.testing.assert_array_equal(ids_NK[sure_NK], expected.ids_NK[:, :10][sure_NK])
    names = [json.loads(line)["name"] for line in (folder / "labels.jsonl").read_text().splitlines()]
    assert names == list(load(run).labels.names)
    answers = load(folder).rank(QUERIES, 10, search)
    np.testing.assert_allclose(answers.scores_NK, scores_NK, atol=1e-5)


def test_a_transformer_is_exported_for_the_head_that_needs_no_xmclab(exported_bert: Path, exported: Path) -> None:
    manifests = [json.loads((folder / "index.json").read_text()) for folder in (exported_bert, exported)]
    assert [manifest["search"] for manifest in manifests] == ["de", "de+clf"]
    assert [manifest["index"]["search"] for manifest in manifests] == ["de", "de+clf"]
    types = [module["type"] for module in json.loads((exported_bert / "modules.json").read_text())]
    assert all(kind.startswith("sentence_transformers.") for kind in types)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("clff", r"--search clff: the model has no such search \(did you mean 'clf'\?\)"),
        ("nn", r"'nn' is not an inner product with label vectors.*\(use de or clf or de\+clf; "),
        ("de+clf+nn", r"--search de\+clf\+nn: 'nn' is not an inner product"),
    ],
)
def test_what_an_index_cannot_hold_is_refused(small_run: Path, tmp_path: Path, search: str, message: str) -> None:
    predictor = load(small_run)
    predictor.searches = ("de", "clf", "de+clf", "nn", "de+clf+nn")
    with pytest.raises(ConfigError, match=message):
        write_export(predictor, small_run, tmp_path / "export", None, search)
    assert list(tmp_path.iterdir()) == []


def test_approximate_indexes_are_searched_alike_by_other_programs(small_run: Path, tmp_path: Path) -> None:
    import faiss

    for kind, options in (("hnsw", {"ef_search": 77}), ("ivf", {"lists": 9, "probes": 4})):
        run = shutil.copytree(small_run, tmp_path / f"run {kind}")
        save_indexes(run, {"de": {"name": "faiss", "options": {"type": kind, **options}, "recall": 0.9}})
        index = faiss.read_index(str(export(run, tmp_path / kind, search="de") / "index.faiss"))
        found = index.hnsw.efSearch if kind == "hnsw" else index.nprobe
        assert found == list(options.values())[-1]


def test_a_part_from_a_file_is_exported_without_a_sentence_transformer(
    small_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    run = shutil.copytree(small_run, tmp_path / "run", ignore=shutil.ignore_patterns("manifest.json"))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("name: classifier", "name: mine"))
    registry = default_registry().with_file(tmp_path / "mine.py")
    predictor = open_predictor(run, registry, "cpu")
    write_export(predictor, run, tmp_path / "export", None)
    assert "no SentenceTransformer written: head.clf=mine is from a file" in caplog.text
    assert not (tmp_path / "export" / "modules.json").exists()
    assert "It is not a SentenceTransformer" in (tmp_path / "export" / "README.md").read_text()
    answers = [some.rank(TEXTS, 9, "de+clf") for some in (predictor, open_predictor(tmp_path / "export", registry))]
    np.testing.assert_allclose(answers[0].scores_NK, answers[1].scores_NK, atol=1e-6)
    write_export(predictor, run, tmp_path / "de", None, "de")  # which has no part from a file
    assert (tmp_path / "de" / "modules.json").exists()


MINE = """
from dataclasses import dataclass
from xmclab import hookimpl, part
from xmclab.model.heads.classifier import Classifier

@dataclass(eq=False)
class Mine(Classifier):
    def query_projection(self):
        return None

@hookimpl
def xmclab_parts():
    return [part("head", "mine", Mine)]
"""


# Added labels


@pytest.fixture(scope="module")
def with_added(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictor, Path]:
    """A model with two more labels, and its export; not to be written to."""
    predictor, folder = load(small_run), tmp_path_factory.mktemp("export") / "added"
    predictor.add_labels(Labels(["new", "newer"], ["music player", "draw curves on screen"]))
    write_export(predictor, small_run, folder, None)
    return predictor, folder


@pytest.mark.parametrize("search", ["de", "de+clf"])
def test_added_labels_are_exported(with_added: tuple[Predictor, Path], search: str) -> None:
    predictor, folder = with_added
    exported = load(folder)
    assert list(exported.labels.names)[-2:] == ["new", "newer"]
    assert exported.pick_search(None) == "de+clf"
    found, expected = (each.rank(TEXTS, 924, search) for each in (exported, predictor))
    np.testing.assert_allclose(found.scores_NK, expected.scores_NK, atol=1e-5)
    assert [set(row) for row in found.ids_NK.tolist()] == [set(range(924))] * len(TEXTS)
    if search == "de":
        assert 922 in found.ids_NK[3, :5]  # its text is the query
    with pytest.raises(ConfigError, match="the classifier head has no rows for them"):
        exported.rank(TEXTS, 3, "clf")


def test_other_programs_find_added_labels(with_added: tuple[Predictor, Path]) -> None:
    import faiss
    from sentence_transformers import SentenceTransformer

    predictor, folder = with_added
    index = faiss.read_index(str(folder / "index.faiss"))
    queries = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True).encode(TEXTS)
    scores_NK, _ = index.search(queries, 924)
    expected = predictor.rank(TEXTS, 924, "de")
    np.testing.assert_allclose(scores_NK, expected.scores_NK, atol=1e-5)
    assert index.ntotal == len(np.load(folder / "vectors" / "de.npy")) == 924
    assert len(np.load(folder / "vectors" / "clf.npy")) == 922
    assert json.loads((folder / "index.json").read_text())["added"] == 2


def test_more_labels_can_be_added_to_an_export_with_some(with_added: tuple[Predictor, Path]) -> None:
    exported = load(with_added[1])
    exported.add_labels(Labels(["newest"], ["plot functions"]))
    ranking = exported.rank(["plot functions"], 925, "de")
    assert sorted(ranking.ids_NK[0].tolist()) == list(range(925))
    assert 924 in ranking.ids_NK[0, :5]


def test_a_search_with_classifiers_cannot_hold_added_labels(
    with_added: tuple[Predictor, Path], small_run: Path, tmp_path: Path
) -> None:
    for search in ("clf", "de+clf"):
        with pytest.raises(ConfigError, match=r"added labels have no classifier, .*\(use --search de"):
            write_export(with_added[0], small_run, tmp_path / "export", None, search)


@pytest.mark.parametrize("added", [-1, 924, "2", 3])
def test_a_wrong_number_of_added_labels_is_noticed(
    with_added: tuple[Predictor, Path], tmp_path: Path, added: object
) -> None:
    folder = shutil.copytree(with_added[1], tmp_path / "export")
    manifest = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**manifest, "added": added}))
    with pytest.raises(StorageError, match="export"):
        load(folder).rank(TEXTS, 3, "de+clf")


# Damage


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if how == "missing":
        path.unlink()


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_a_damaged_index_is_noticed_and_not_used(
    exported: Path, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    damage(folder / "index.faiss", how)
    expected = load(exported).rank(TEXTS, 10, "de+clf").ids_NK.tolist()
    assert load(folder).rank(TEXTS, 10, "de+clf").ids_NK.tolist() == expected
    assert "index.faiss" in caplog.text
    assert "comparing all label vectors instead" in caplog.text


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
@pytest.mark.parametrize(
    "name", ["vectors/clf.npy", "weights.safetensors", "labels.jsonl", "config.yaml", "encoder/features.json"]
)
def test_other_damage_stops_with_the_name_of_the_file(exported: Path, tmp_path: Path, name: str, how: str) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    damage(folder / name, how)
    with pytest.raises(StorageError, match=name.replace(".", r"\.")):
        load(folder).rank(TEXTS, 1, "clf")


def test_a_flipped_byte_of_the_transformer_is_noticed(exported_bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported_bert, tmp_path / "export")
    damage(folder / "model.safetensors", "flipped")
    with pytest.raises(StorageError, match=r"model\.safetensors.*sha256"):
        load(folder)


def test_the_card_may_be_edited(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    assert "README.md" in json.loads((folder / "index.json").read_text())["files"]
    (folder / "README.md").write_text("license: mit")
    assert load(folder).rank(TEXTS, 3, "de").ids_NK.shape == (len(TEXTS), 3)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "1"}', '{"format": 1}', "\x00\x01garbage"])
def test_a_damaged_manifest_is_named(exported: Path, tmp_path: Path, content: str) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    (folder / "index.json").write_text(content)
    with pytest.raises(StorageError, match=r"index\.json: damaged: .*\(export the run again\)"):
        load(folder)


def test_a_missing_manifest_is_named(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    (folder / "index.json").unlink()
    with pytest.raises(StorageError, match=r"index\.json: missing \(export the run again\)"):
        load(folder)


@pytest.mark.parametrize("field", ["labels", "heads", "sentence_transformer", "index", "files"])
def test_a_field_that_the_manifest_lost_is_named(exported: Path, tmp_path: Path, field: str) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    manifest = json.loads((folder / "index.json").read_text())
    del manifest[field]
    (folder / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(StorageError, match=rf"index\.json: damaged: '{field}' is missing or invalid"):
        load(folder)


CHANGES = {
    "labels: 921, but the other files say 922": {"labels": 921},
    "heads: ['de'], but the other files say ['de', 'clf']": {"heads": ["de"]},
    "search of the index: 'de', but the other files say 'de+clf'": {"index": {"search": "de", "options": {}}},
    "search of the index: None": {"index": {"options": {}}},
    "config.yaml is not listed": {"files": {}},
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_manifest_that_contradicts_the_files_is_refused(exported: Path, tmp_path: Path, message: str) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    manifest = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**manifest, **CHANGES[message]}))
    with pytest.raises(StorageError, match=re.escape(f"index.json: damaged: {message}")):
        load(folder)


def test_an_index_whose_options_are_damaged_is_not_used(
    exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    manifest = json.loads((folder / "index.json").read_text())
    del manifest["index"]["options"]
    (folder / "index.json").write_text(json.dumps(manifest))
    assert load(folder).rank(TEXTS, 3, "de+clf").ids_NK.shape == (len(TEXTS), 3)
    assert "index.json: damaged" in caplog.text


def test_an_export_of_a_newer_format_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    manifest = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**manifest, "format": 2, "xmclab": "9.9"}))
    with pytest.raises(StorageError, match=r"written by xmclab 9\.9, format 2"):
        load(folder)


# Writing


def test_a_folder_is_complete_or_not_there(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_index", fail)
    with pytest.raises(StorageError, match=r"--to .*: cannot be written: No space left"):
        export(small_run, tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    for target in (tmp_path, tmp_path / "mine"):
        with pytest.raises(StorageError, match="not an empty folder"):
            export(small_run, target)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    assert (export(small_run, tmp_path / "empty") / "index.json").is_file()


def test_files_can_be_read_by_others(exported: Path) -> None:
    (exported.parent / "plain").touch()
    usual = (exported.parent / "plain").stat().st_mode
    assert {path.stat().st_mode for path in exported.rglob("*") if path.is_file()} == {usual}


def test_label_vectors_that_are_not_finite_are_not_exported(small_run: Path, tmp_path: Path) -> None:
    predictor = load(small_run)
    with torch.no_grad():
        predictor.model.head("clf").psi.weight[[3, 7]] = torch.nan
    with pytest.raises(DataError, match="label 3, 7: 2 of 922 vectors are not finite"):
        write_export(predictor, small_run, tmp_path / "export", None)
    assert list(tmp_path.iterdir()) == []


def test_an_export_keeps_the_precision_of_its_run(small_run: Path, exported: Path) -> None:
    known = json.loads((small_run / "environment.json").read_text())["numerics"]
    assert known["precision"] == "float32"
    assert json.loads((exported / "index.json").read_text())["numerics"] == known
