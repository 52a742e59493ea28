"""The built-in parts, by the same hooks as anybody's. References are lazy: nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

from xmclab.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("encoder", "bag", "xmclab.encoders.bag:Bag"),
        part("encoder", "hf", "xmclab.encoders.hf:HuggingFace"),
        part("head", "dual_encoder", "xmclab.heads.dual_encoder:DualEncoder"),
        part("head", "classifier", "xmclab.heads.classifier:Classifier"),
        part("sampler", "random", "xmclab.samplers.random:Random"),
        part("sampler", "cluster", "xmclab.samplers.cluster:Cluster"),
        part("sampler", "cluster_mix", "xmclab.samplers.cluster_mix:ClusterMix"),
        part("miner", "none", "xmclab.miners.none:NoMiner"),
        part("miner", "random", "xmclab.miners.random:RandomMiner"),
        part("miner", "ann", "xmclab.miners.ann:AnnMiner"),
        part("reduction", "ova", "xmclab.reductions.ova:Ova"),
        part("reduction", "ova_n", "xmclab.reductions.ova_n:OvaN"),
        part("reduction", "pol", "xmclab.reductions.pol:Pol"),
        part("reduction", "pal", "xmclab.reductions.pal:Pal"),
        part("reduction", "pal_n", "xmclab.reductions.pal_n:PalN"),
        part("reduction", "psl", "xmclab.reductions.psl:Psl"),
        part("index", "exact", "xmclab.indexes.exact:Exact"),
        part("index", "faiss", "xmclab.indexes.faiss:Faiss"),
        part("index", "lists", "xmclab.indexes.lists:Lists"),
        part("reader", "lf_json", "xmclab.data.lf_json:LabelFeatureJson"),
        part("reader", "raw_text", "xmclab.data.raw_text:RawText"),
        part("reader", "dexml", "xmclab.data.dexml:Dexml"),
        part("reader", "pecos", "xmclab.data.pecos:Pecos"),
        part("reader", "table", "xmclab.data.table:Table"),
        part("tracker", "jsonl", "xmclab.train.trackers:JsonLines"),
        part("tracker", "tensorboard", "xmclab.train.trackers:TensorBoard"),
        part("tracker", "mlflow", "xmclab.train.trackers:MlFlow"),
    ]


@hookimpl
def xmclab_datasets() -> dict[str, Path]:
    embedded = Path(__file__).parent / "data" / "embedded"
    return {"debian": embedded / "debian", "tiny": embedded / "tiny"}
