"""Settings: what is plainly right is kept as pydantic would keep it, and copies behave."""

import math
import pickle
from typing import Annotated, Any, Literal

import pytest

from vrambudget.config import Job, card_names, load_card
from vrambudget.config.fast_path import Before, UnclearError, taken
from vrambudget.config.settings import Field, Settings
from vrambudget.config.validated import judged
from vrambudget.errors import VramBudgetError
from vrambudget.models import config_class
from vrambudget.serving.options import OPTIONS

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

KINDS = (Job, *OPTIONS.values(), type(load_card("gpt2")))
FIELDS = [(kind, name) for kind in KINDS for name in kind.model_fields]
WORDS = ("plain", "amp-bf16", "2.11.0+cu130", "q_proj,v_proj", "all-linear", "", "8", "true", "a.*")
SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from((0.0, 0.5, 1.0, *WORDS)),
    st.text(max_size=4),
)
VALUES = st.one_of(
    SIMPLE,
    st.lists(SIMPLE, max_size=2),
    st.lists(st.sampled_from(WORDS), max_size=2).map(tuple),
    st.dictionaries(st.text(max_size=2), SIMPLE, max_size=2),
)


def same(one, other):
    return type(one) is type(other) and one == other


@hypothesis.given(st.sampled_from(FIELDS), VALUES)
@hypothesis.settings(max_examples=400, deadline=None)
def test_what_is_plainly_right_is_kept_as_pydantic_keeps_it(field, value):
    kind, name = field
    annotation = kind.model_fields[name].annotation
    try:
        plain = taken(annotation, value)
    except (UnclearError, ValueError):
        return

    class One(Settings):
        pass

    One.model_fields = {name: kind.model_fields[name]}
    assert same(judged(One, {name: value}, {name: value}, None)[name], plain)


class Cases(Settings):
    size: Annotated[int, Field(ge=1, lt=9)] = 1
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    word: Literal["a", 1] = "a"
    flag: bool = False
    pair: tuple[int, float] = (1, 1.0)
    upper: Annotated[str, Before(lambda x: x.upper() if isinstance(x, str) else x)] = "A"
    table: dict[str, Any] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("size", 8, 8),
        ("share", 1, 1.0),
        ("share", None, None),
        ("word", 1, 1),
        ("pair", (2, 3), (2, 3.0)),
        ("upper", "b", "B"),
        ("table", {"x": [1]}, {"x": [1]}),
    ],
)
def test_a_plain_value_is_kept(field, value, kept):
    assert same(getattr(Cases(**{field: value}), field), kept)
    assert same(judged(Cases, {field: value}, {field: value}, None)[field], kept)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", True),
        ("size", 9),
        ("size", "1"),
        ("size", 1.0),
        ("share", 0.0),
        ("share", math.nan),
        ("share", math.inf),
        ("word", "b"),
        ("flag", 1),
        ("pair", (1,)),
        ("pair", (1, "x")),
        ("table", {1: 2}),
        ("colour", 1),
    ],
)
def test_what_is_wrong_is_refused_by_name(field, value):
    with pytest.raises(VramBudgetError, match=field):
        Cases(**{field: value})


def test_a_copy_has_what_was_changed_and_knows_what_was_given():
    job = Job(batch=4)
    other = job.model_copy(update={"block": 8})

    assert (other.batch, other.block, job.block) == (4, 8, None)
    assert other.model_fields_set == {"batch", "block"}
    assert other.model_dump(exclude_unset=True) == {"batch": 4, "block": 8}
    again = pickle.loads(pickle.dumps(other))  # noqa: S301 - our own
    assert (again, hash(again), again.model_fields_set) == (other, hash(other), {"batch", "block"})


@pytest.mark.parametrize("name", card_names())
def test_a_model_card_needs_no_judging(name, monkeypatch):
    def refuse(*_):
        raise AssertionError(f"{name} was judged")

    monkeypatch.setattr("vrambudget.config.validated.judged", refuse)
    card = load_card(name)
    config_class(card.config["model_type"]).parse(card.config)
