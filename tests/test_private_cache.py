"""Libraries are loaded from a cache that only this user can have written, unchanged since."""

import os
import sys

import pytest

from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.private_cache import is_whole, make_private, seal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a rehearsal needs Linux")


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache" / "libraries"
    make_private(folder)
    (folder / "libcuda.so.1").write_bytes(b"built")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    seal(folder)
    return folder


def test_what_was_built_and_sealed_is_whole(cache):
    assert is_whole(cache)
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_not_there_or_was_never_sealed_is_not(tmp_path, cache):
    assert not is_whole(tmp_path / "none")
    (cache / "digests.json").unlink()
    assert not is_whole(cache)


@pytest.mark.parametrize("digests", ["{}", "[1]", "no json", '{"libcuda.so.2": "x"}'])
def test_digests_that_do_not_say_what_is_there_count_for_nothing(cache, digests):
    (cache / "digests.json").write_text(digests)
    assert not is_whole(cache)


def test_a_library_that_changed_is_built_anew(cache):
    (cache / "libcuda.so.1").write_bytes(b"other")
    assert not is_whole(cache)


def test_libraries_that_others_may_write_are_not_loaded(cache):
    cache.chmod(0o777)
    with pytest.raises(VramBudgetError, match="others may write"):
        is_whole(cache)


def test_somebody_else_s_libraries_are_not_loaded(cache, monkeypatch):
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(VramBudgetError, match="of another user"):
        is_whole(cache)
    with pytest.raises(VramBudgetError, match="of another user"):
        make_private(cache)


def test_a_library_that_is_a_link_is_not_loaded(cache):
    (cache / "libcuda.so.1").rename(cache / "elsewhere")
    (cache / "libcuda.so.1").symlink_to("elsewhere")
    with pytest.raises(VramBudgetError, match="a link"):
        is_whole(cache)


def test_a_folder_that_others_could_write_to_is_made_private(tmp_path):
    tmp_path.chmod(0o777)
    make_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o022 == 0


def test_a_file_in_the_cache_s_place_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(VramBudgetError, match="the cache cannot be used") as caught:
        make_private(tmp_path / "file" / "cache")
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")
