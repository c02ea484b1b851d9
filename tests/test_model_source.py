"""Where a model comes from: card, path, hub cache, download, dict; and all that can break there."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vrambudget.config import find_model
from vrambudget.config import hub as hub_module
from vrambudget.config.hub import hub_cache
from vrambudget.errors import VramBudgetError

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other paths")
TOY = {"model_type": "toy", "hidden_size": 64}


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """An empty cache, and no huggingface_hub to ask."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    return tmp_path / "hub"


def written(path, data=TOY):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


def refused(name):
    with pytest.raises(VramBudgetError) as error:
        find_model(name)
    return error.value


@pytest.mark.parametrize("name", ["gpt2", "GPT2", " gpt2 ", "openai-community/gpt2"])
def test_a_card_is_found_by_name_or_by_its_repository(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = find_model(name)

    assert (found.name, found.where) == ("gpt2", "model card gpt2")
    assert found.values["n_embd"] == 768
    assert found.card.parameters == 124_439_808


def test_a_card_brings_how_its_model_is_usually_trained():
    assert find_model("nanogpt").job_defaults["optimizer_impl"] == "fused"
    assert find_model(TOY).job_defaults == {}


def test_a_path_may_be_the_file_or_its_folder_as_text_or_as_path(monkeypatch, tmp_path):
    file = written(tmp_path / "mine" / "config.json")
    monkeypatch.chdir(tmp_path)

    for name in (file, file.parent, str(file), str(file.parent), "mine", "./mine", "mine/"):
        found = find_model(name)
        assert (found.name, found.values, found.card) == ("mine", TOY, None)


def test_a_file_of_another_name_names_its_model(tmp_path):
    assert find_model(written(tmp_path / "configs" / "ours.json")).name == "ours"


def test_a_folder_called_like_a_card_is_reached_by_its_path(monkeypatch, tmp_path):
    written(tmp_path / "gpt2" / "config.json")
    monkeypatch.chdir(tmp_path)

    assert find_model("gpt2").card is not None
    assert find_model("./gpt2").values == TOY


def test_a_dict_is_a_configuration():
    assert find_model(TOY).name == "toy"
    assert refused({1: 2}).message == "the keys of a configuration should be text"


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    file = written(tmp_path / "config.json", b"\xef\xbb\xbf" + json.dumps(TOY).encode())

    assert find_model(file).values == TOY


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "this file is empty", id="empty"),
        pytest.param(b" \n", "this file is empty", id="blank"),
        pytest.param(b'{"model_type": "to', "this is no JSON: Unterminated string", id="cut text"),
        pytest.param(b'{"hidden_size": 64', "at line 1, column 19", id="cut object"),
        pytest.param(b"hidden_size: 64", "this is no JSON: Expecting value at line 1", id="YAML"),
        pytest.param(b"\x80\x02}q\x00", "this is no text", id="binary"),
        pytest.param(b"[1, 2]", "this holds a list; it should be an object", id="list"),
        pytest.param(b"null", "this holds a NoneType; it should be an object", id="null"),
        pytest.param(b"[" * 10**6, "this is nested too deep: at most 64", id="endless nesting"),
        pytest.param(
            b'{"a": ' + b"9" * 10**4 + b"}", "a is a number of 10,000 digits", id="digits"
        ),
    ],
)
def test_a_file_that_holds_no_configuration_is_named_with_what_it_holds(tmp_path, data, words):
    file = written(tmp_path / "config.json", data)
    error = refused(file)

    assert words in error.message
    assert error.where == str(file)


@pytest.mark.parametrize("data", [b'{"model_type": "to', b'{"hidden_size": 64', b'{"a":'])
def test_a_file_that_ends_too_early_is_said_to(tmp_path, data):
    assert "ends too early" in refused(written(tmp_path / "config.json", data)).hint


def test_a_file_of_weights_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "model.safetensors"
    with file.open("wb") as sparse:
        sparse.truncate(2**34)

    assert "more than 16.00 MiB" in refused(file).message


def test_a_folder_without_a_configuration_lists_what_json_it_holds(tmp_path):
    written(tmp_path / "params.json")
    error = refused(tmp_path)

    assert error.message == "this folder holds no config.json"
    assert "params.json" in error.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "there is no such file or folder"),
        ("nowhere/config.json", "there is no such file or folder"),
        pytest.param("/dev/null", "this is not a regular file", marks=POSIX),
        pytest.param("./" + "x" * 5000, "cannot read the configuration", marks=POSIX),
    ],
)
def test_a_path_that_leads_nowhere_is_said_to(name, words):
    assert words in refused(name).message


def test_a_file_that_may_not_be_read_is_said_to(monkeypatch, tmp_path):
    file = written(tmp_path / "config.json")

    def denied(_path, _flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", denied)

    assert refused(file).message == "cannot read the configuration: Permission denied"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("gtp2", "did you mean 'gpt2'"), ("xyzzy", "`vrambudget models` lists"), ("", "hub id")],
)
def test_a_name_that_is_nothing_gets_the_nearest_cards_and_the_other_ways(name, hint):
    error = refused(name)

    assert error.message == f"there is no model {name!r}"
    assert hint in error.hint


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "a b/c", "a/b/c"])
def test_a_name_that_can_be_no_file_is_no_model(name):
    assert refused(name).message.startswith("there is no model")


def test_a_model_is_not_a_number():
    assert "a name, a path or a dict, not 7" in refused(7).message


def test_a_repository_is_read_from_the_local_cache(no_hub):
    folder = no_hub / "models--org--toy"
    written(folder / "refs" / "main", b"abc123")
    written(folder / "snapshots" / "abc123" / "config.json")

    found = find_model("org/toy")

    assert (found.name, found.values) == ("org/toy", TOY)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/d"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        pytest.param({"HOME": "/e"}, "/e/.cache/huggingface/hub", marks=POSIX),
    ],
)
def test_the_cache_lies_where_huggingface_hub_puts_it(monkeypatch, variables, folder):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert hub_cache() == Path(folder)


@pytest.mark.usefixtures("no_hub")
def test_without_huggingface_hub_a_repository_says_what_to_install():
    error = refused("org/toy")

    assert "not in the local cache, and huggingface_hub is not installed" in error.message
    assert "pip install huggingface_hub" in error.hint


def test_a_repository_that_is_not_cached_is_downloaded(no_hub, monkeypatch, tmp_path):
    file = written(tmp_path / "download" / "config.json")
    asked = []
    hub = SimpleNamespace(hf_hub_download=lambda *args: asked.append(args) or str(file))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setattr(hub_module, "_within_reach", lambda: True)

    assert find_model("org/toy").values == TOY
    assert asked == [("org/toy", "config.json")]
    assert not no_hub.exists()


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("GatedRepoError", "gives access on request"),
        ("RepositoryNotFoundError", "no such repository"),
        ("LocalEntryNotFoundError", "the hub is out of reach"),
        ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set"),
        ("EntryNotFoundError", "holds no config.json"),
        ("ConnectTimeout", "could not be downloaded: it broke"),
    ],
)
@pytest.mark.usefixtures("no_hub")
def test_a_download_that_fails_says_why_and_what_to_do(monkeypatch, failure, words):
    class_of_the_hub = type(failure, (Exception,), {})

    def fails(*_args):
        raise class_of_the_hub("it broke\nand here is a page about it")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=fails))
    monkeypatch.setattr(hub_module, "_within_reach", lambda: True)
    error = refused("org/toy")

    assert words in error.message
    assert error.hint


@pytest.mark.usefixtures("no_hub")
def test_a_hub_that_does_not_answer_is_not_asked(monkeypatch):
    asked = SimpleNamespace(hf_hub_download=lambda *_: pytest.fail("asked all the same"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", asked)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody is there

    assert "the hub is out of reach" in refused("org/toy").message


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("name", ["unsloth/Meta-Llama-3.1-8B-bnb-4bit", "org/llama-3.1-8b-AWQ"])
def test_a_quantised_repository_that_is_not_here_names_its_base_model(name):
    assert refused(name).hint.startswith("its base model is known here as llama-3.1-8b;")


def test_a_key_that_stands_twice_is_named_with_its_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "gpt2", "n_layer": 2, "n_layer": 3}')
    with pytest.raises(VramBudgetError, match="the key 'n_layer' is there twice") as caught:
        find_model(file)
    assert caught.value.where == str(file)
