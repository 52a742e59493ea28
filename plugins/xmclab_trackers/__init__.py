"""Trackers for TensorBoard and MLflow."""

from __future__ import annotations

from xmclab import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("tracker", "tensorboard", "xmclab_trackers.tensorboard:TensorBoard"),
        part("tracker", "mlflow", "xmclab_trackers.mlflow:MlFlow"),
    ]
