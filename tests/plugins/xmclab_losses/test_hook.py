"""The losses are found by name, and naming them imports no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xmclab.host.registry import default_registry


@pytest.mark.parametrize(
    ("name", "kind"), [("ds", "multiclass"), ("supcon", "multiclass"), ("softmax", "multiclass"), ("bce", "binary")]
)
def test_a_loss_is_found_by_its_name(name, kind):
    assert default_registry().get("loss", name).kind == kind


def test_plugin_packages_import_no_torch():
    code = "import sys, xmclab_losses, xmclab.objectives.expr; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
