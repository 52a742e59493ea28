"""Names that something else wrote stay in their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmclab.system.files import path_inside


@pytest.mark.parametrize("name", ["a.txt", "a/b.txt", "./a", "a..b", "..a", "missing", "inner"])
def test_a_name_inside(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "inner").symlink_to(tmp_path / "a")
    assert path_inside(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("name", ["", "/etc/passwd", "..", "../x", "a/../../x", "a\\..\\x", "C:\\x", "c:x", "a\0b"])
def test_a_name_that_leads_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"leads out of its folder|is not a file name"):
        path_inside(tmp_path, name)


def test_a_link_that_leads_out(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    for name in ("link", "link/x"):
        with pytest.raises(ValueError, match="is a link out of its folder"):
            path_inside(folder, name)
