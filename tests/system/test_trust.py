"""Trust: only within its block, and only in its thread."""

from __future__ import annotations

import threading

import pytest

from xmclab.system.trust import remote_code_is_trusted, trusting_remote_code


def test_trust_is_off_and_lasts_as_long_as_its_block() -> None:
    assert not remote_code_is_trusted()
    with trusting_remote_code():
        assert remote_code_is_trusted()
        with trusting_remote_code(False):
            assert not remote_code_is_trusted()
        assert remote_code_is_trusted()
    with pytest.raises(KeyError), trusting_remote_code():
        raise KeyError
    assert not remote_code_is_trusted()


def test_another_thread_is_not_trusted() -> None:
    seen: list[bool] = []
    with trusting_remote_code():
        thread = threading.Thread(target=lambda: seen.append(remote_code_is_trusted()))
        thread.start()
        thread.join()
    assert seen == [False]
