"""The built-in parts, supplied through the same hooks as any plugin's. References are lazy: no torch is imported."""

from __future__ import annotations

from pathlib import Path

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("encoder", "bag", "xmclab.model.encoders.bag:Bag"),
        part("encoder", "hf", "xmclab.model.encoders.hf:HuggingFace"),
        part("head", "dual_encoder", "xmclab.model.heads.dual_encoder:DualEncoder"),
        part("head", "classifier", "xmclab.model.heads.classifier:Classifier"),
        part("sampler", "random", "xmclab.plan.samplers.random:Random"),
        part("sampler", "cluster", "xmclab.plan.samplers.cluster:Cluster"),
        part("sampler", "cluster_mix", "xmclab.plan.samplers.cluster_mix:ClusterMix"),
        part("miner", "none", "xmclab.plan.miners.none:NoMiner"),
        part("miner", "random", "xmclab.plan.miners.random:RandomMiner"),
        part("miner", "ann", "xmclab.plan.miners.ann:AnnMiner"),
        part("miner", "file", "xmclab.plan.miners.file:FileMiner"),
        part("miner", "bm25", "xmclab.plan.miners.bm25:Bm25Miner"),
        part("reduction", "ova", "xmclab.objectives.reductions.ova:Ova"),
        part("reduction", "ova_n", "xmclab.objectives.reductions.ova_n:OvaN"),
        part("reduction", "pol", "xmclab.objectives.reductions.pol:Pol"),
        part("reduction", "pal", "xmclab.objectives.reductions.pal:Pal"),
        part("reduction", "pal_n", "xmclab.objectives.reductions.pal_n:PalN"),
        part("reduction", "psl", "xmclab.objectives.reductions.psl:Psl"),
        part("index", "auto", "xmclab.plan.indexes.auto:Auto"),
        part("index", "exact", "xmclab.plan.indexes.exact:Exact"),
        part("index", "faiss", "xmclab.plan.indexes.faiss:Faiss"),
        part("search", "heads", "xmclab.evaluation.searches.heads:Heads"),
        part("search", "neighbours", "xmclab.evaluation.searches.neighbours:Neighbours"),
        part("reader", "lf_json", "xmclab.data.readers.lf_json:LabelFeatureJson"),
        part("reader", "raw_text", "xmclab.data.readers.raw_text:RawText"),
        part("reader", "dexml", "xmclab.data.readers.dexml:Dexml"),
        part("reader", "pecos", "xmclab.data.readers.pecos:Pecos"),
        part("reader", "table", "xmclab.data.readers.table:Table"),
        part("tracker", "jsonl", "xmclab.runs.trackers:JsonLines", always=True),
    ]


@hookimpl
def xmclab_datasets() -> dict[str, Path]:
    embedded = Path(__file__).parents[1] / "data" / "embedded"
    return {"debian": embedded / "debian", "tiny": embedded / "tiny"}
