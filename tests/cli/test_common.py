"""What commands share: plugin files among their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_listings_show_what_is_in_a_plugin_file(call: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# All mine.\nbase: unidec\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "from pathlib import Path\nimport xmclab\n"
        "@xmclab.hookimpl\n"
        "def xmclab_parts(): return [xmclab.part('loss', 'of_mine', 'xmclab_losses.ds:DecoupledSoftmax')]\n"
        "@xmclab.hookimpl\n"
        "def xmclab_recipes(): return {'mine': Path(__file__).parent / 'mine.yaml'}\n"
    )
    for arguments in (["loss", f"plugin={file}"], [f"plugin={file}", "loss"], [f"plugin={file}"]):
        code, out, _ = call("parts", *arguments)
        assert code == 0
        assert "of_mine" in out.split()
    code, out, _ = call("recipes", f"plugin={file}")
    assert (code, "All mine." in out) == (0, True)
    assert call("parts", "plugin=nowhere.py") == (2, "", "error: plugin=nowhere.py: no such file\n")
