"""A cache's file that is not whole, not ours or not a file is as none; nothing of it breaks."""

import json
import os
import threading
from pathlib import Path

import pytest

from vrambudget.compiled import cache
from vrambudget.errors import VramBudgetError
from vrambudget.files import read_kept, write_kept
from vrambudget.integrations import server_rehearsal
from vrambudget.rehearse.private_cache import make_private, usable

needs_posix = pytest.mark.skipif(os.name != "posix", reason="owners and links are POSIX's")
IS_ROOT = os.name == "posix" and os.geteuid() == 0
SOMEBODY = 65_534


def as_somebody(function) -> int:
    """Call a function in a child of another user; return its exit code."""
    child = os.fork()
    if not child:
        try:
            os.setgid(SOMEBODY)
            os.setuid(SOMEBODY)
            function()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must not return
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_was_kept_is_read_and_nothing_beyond_the_bound(tmp_path):
    place = tmp_path / "new" / "kept.json"
    write_kept(place, b"12345")
    assert read_kept(place, 5) == b"12345"
    assert read_kept(place, 4) is None
    assert [*place.parent.iterdir()] == [place]


@needs_posix
def test_a_link_in_its_place_is_no_hit_and_is_replaced_not_followed(tmp_path):
    precious, place = tmp_path / "precious", tmp_path / "kept.json"
    precious.write_bytes(b"precious")
    place.symlink_to(precious)
    assert read_kept(place, 100) is None
    write_kept(place, b"found")
    assert precious.read_bytes() == b"precious"
    assert not place.is_symlink()
    assert read_kept(place, 100) == b"found"


@needs_posix
def test_somebody_else_s_file_is_no_hit(tmp_path, monkeypatch):
    place = tmp_path / "kept.json"
    write_kept(place, b"found")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert read_kept(place, 100) is None


@pytest.mark.skipif(not IS_ROOT, reason="a second user is there for root alone")
def test_two_users_of_one_folder_take_nothing_from_each_other(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    for parent in (folder, tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o1077 if parent == folder else 0o711)
    place = folder / "kept.json"
    assert as_somebody(lambda: write_kept(place, b"theirs")) == 0
    assert place.stat().st_uid == SOMEBODY
    assert read_kept(place, 100) is None
    write_kept(place, b"own")
    assert read_kept(place, 100) == b"own"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, SOMEBODY, SOMEBODY)
    with pytest.raises(VramBudgetError, match="of another user"):
        make_private(theirs)


@needs_posix
@pytest.mark.parametrize("inside", ["a file", "a pipe", "a folder", "a link to itself"])
def test_where_nothing_can_be_kept_nothing_is(tmp_path, inside):
    place = tmp_path / "kept"
    match inside:
        case "a file":
            place.touch()
            place /= "below"
        case "a pipe":
            os.mkfifo(place)
        case "a folder":
            place.mkdir()
        case _:
            place.symlink_to(place)
    assert read_kept(place, 100) is None
    if inside not in {"a link to itself", "a pipe"}:
        write_kept(place, b"found")
        assert read_kept(place, 100) is None
    assert not [*tmp_path.rglob(".vrambudget-*")]


@pytest.mark.skipif(IS_ROOT, reason="root writes to folders that are read-only")
def test_a_read_only_folder_keeps_nothing(tmp_path):
    tmp_path.chmod(0o500)
    write_kept(tmp_path / "kept", b"found")
    assert read_kept(tmp_path / "kept", 100) is None


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    place = tmp_path / "kept"
    write_kept(place, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        write_kept(place, b"new")
    assert read_kept(place, 100) == b"old"
    assert [*tmp_path.iterdir()] == [place]
    with pytest.raises(VramBudgetError, match="cannot be used: No space") as caught, usable(place):
        full()
    assert caught.value.where == str(place)


def test_two_writers_leave_one_whole_file(tmp_path):
    place, found = tmp_path / "kept", {bytes([65 + n]) * 100_000 for n in range(4)}

    def write(data: bytes) -> None:
        for _ in range(20):
            write_kept(place, data)
            assert read_kept(place, 100_000) in found

    threads = [threading.Thread(target=write, args=(data,)) for data in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_kept(place, 100_000) in found
    assert [*tmp_path.iterdir()] == [place]


WHOLE = json.dumps({"starts": True, "values": {"engine": "vllm 1"}, "text": "it starts"})


@pytest.mark.parametrize("text", [*(WHOLE[:n] for n in range(0, len(WHOLE), 5)), "[" * 100_000])
def test_a_half_written_file_is_as_none(tmp_path, text):
    place = tmp_path / "kept.json"
    place.write_text(text)
    assert server_rehearsal.kept_start(place) is None
    assert cache.kept(place) is None


def test_a_rehearsed_start_is_found_again(tmp_path):
    place = tmp_path / "kept.json"
    place.write_text(WHOLE)
    assert server_rehearsal.kept_start(place) == (True, {"engine": "vllm 1"}, "it starts")
