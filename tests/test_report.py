"""Reports say what the budget says: the verdict first, columns that add up, 80 columns wide."""

import csv
import io
import json
import random
import re
from dataclasses import replace

import pytest
from budgets import ALLOCATED, BREAKDOWN, CONTEXT, JOB, RESERVED, budget, on_card

from vrambudget.budget import Budget
from vrambudget.report import FORMATS, render
from vrambudget.report.amounts import Amounts
from vrambudget.report.ledger import ledger
from vrambudget.report.phrases import job_text
from vrambudget.report.table import render_next
from vrambudget.report.tabular import Column, grid, render_rows

SMALL, LARGE = 12_552_044_544, 85_097_971_712
BUDGETS = {"no card": budget(), "does not fit": on_card(SMALL), "fits": on_card(LARGE)}
each_budget = pytest.mark.parametrize("made", BUDGETS.values(), ids=BUDGETS)


def _with_job(**changes) -> Budget:
    return replace(budget(), job=JOB | changes)


@each_budget
@pytest.mark.parametrize("output", FORMATS)
def test_every_format_renders_every_budget(made, output):
    assert made.model in render(made, output)


@each_budget
def test_the_table_fits_eighty_columns(made):
    noted = replace(made, warnings=("a long warning " * 20,), not_modelled=("aten::my_op",))
    text = f"{render(noted)}\n{render_next('take a smaller batch ' * 9)}"
    assert max(map(len, text.splitlines())) <= 80


# Re-adds the printed column, as a reader with a pencil would.
@each_budget
def test_printed_parts_add_up_to_printed_totals(made):
    printed = {}
    for line in render(made).splitlines():
        if match := re.match(r"[= ] ([a-zA-Z ]+?) {2,}(-?[\d,]+\.\d\d)  ", line):
            printed[match[1]] = round(float(match[2].replace(",", "")) * 100)
    parts = sum(printed[purpose] for purpose in BREAKDOWN)
    assert printed["peak allocated"] == parts
    assert printed["peak reserved"] == parts + printed["cached"]
    if made.device:
        total = printed["peak reserved"] + printed["CUDA context"]
        assert printed["device total"] == total
        assert printed["left"] == printed["capacity"] - total


def test_totals_print_as_the_nearest_value():
    lines = {line.name: line.hundredths for line in ledger(on_card(SMALL)).lines}
    assert lines["peak allocated"] == round(100 * ALLOCATED / 2**30)
    assert lines["peak reserved"] == round(100 * RESERVED / 2**30)
    assert lines["device total"] == round(100 * (RESERVED + CONTEXT) / 2**30)


def test_split_is_exact_and_off_by_less_than_one_hundredth():
    rng = random.Random(1)  # noqa: S311 - no secret
    amounts = Amounts("MiB")
    for _ in range(500):
        parts = [rng.choice([0, rng.randrange(10**5), rng.randrange(10**11)]) for _ in range(10)]
        total = amounts.of(sum(parts))
        split = amounts.split(parts, total)
        assert sum(split) == total
        for part, printed in zip(parts, split, strict=True):
            assert abs(printed - 100 * part / 2**20) < 1
            assert part or not printed


@pytest.mark.parametrize(
    ("n", "unit"), [(0, "MiB"), (5 * 2**20, "MiB"), (2**30, "GiB"), (3 * 2**40, "TiB")]
)
def test_the_unit_is_that_of_the_total(n, unit):
    assert Amounts.for_total(n).unit == unit


def test_the_verdict_comes_first_and_says_by_how_much():
    first = {name: render(made).splitlines()[0] for name, made in BUDGETS.items()}
    assert first == {
        "no card": "PEAK: 33.33 GiB reserved, 33.13 GiB allocated",
        "does not fit": "DOES NOT FIT: 33.55 of 11.69 GiB on NVIDIA GeForce RTX 3060:"
        " 21.86 GiB short",
        "fits": "FITS: 33.55 of 79.25 GiB on NVIDIA GeForce RTX 3060: 45.70 GiB left",
    }


def test_a_card_that_holds_it_only_without_cache_says_so():
    made = on_card(RESERVED + CONTEXT - 1)
    fits = replace(made, device=replace(made.device, fits=True), out_of_memory=None).check()
    assert "in its cache, and has to return it to the driver" in " ".join(render(fits).split())


def test_the_moments_are_told_counting_from_one():
    text = render(on_card(SMALL))
    assert "the peak is in step 2 of 2, backward, nll_loss_backward" in text
    assert "out of memory in step 1, forward: log_softmax requests 6.14 GiB with 6.78 GiB" in text


def test_what_is_not_modelled_makes_the_verdict_a_bound():
    text = render(replace(on_card(SMALL), not_modelled=("aten::my_op",)))
    assert text.startswith("DOES NOT FIT: at least 33.55")
    assert "not modelled: aten::my_op" in text


def test_colour_only_where_asked():
    assert "\x1b" not in render(on_card(SMALL))
    assert "\x1b[1;31mDOES NOT FIT\x1b[0m" in render(on_card(SMALL), colour=True)
    assert "\x1b[1;32mFITS\x1b[0m" in render(on_card(LARGE), colour=True)


def test_names_cannot_move_the_cursor_or_break_a_table():
    hostile = replace(budget(), model="a\x1b[2Jb\nc|d")
    assert "a\\x1b[2Jb\\nc|d" in render(hostile)
    column = Column("name", "name")
    assert "a\\|b" in render_rows([column], [{"name": "a|b"}], "markdown")


@pytest.mark.parametrize("sign", list("=+-@"))
def test_no_cell_of_a_csv_is_a_formula(sign):
    name = f"{sign}HYPERLINK(1)"
    assert f"'{name}" in render(replace(budget(), model=name), "csv")
    rows = render_rows([Column("id", "id"), Column("n", "n")], [{"id": name, "n": -5}], "csv")
    assert rows == f"id,n\n'{name},-5"


@pytest.mark.parametrize(
    ("made", "purpose", "words"),
    [
        (
            replace(budget(), breakdown=BREAKDOWN | {"weights": 497_495_040}),  # 124,373,760 * 4
            "weights",
            "124,373,760 x 4 B",
        ),
        (_with_job(precision="fp32"), "autocast copies", "none: no autocast"),
        (_with_job(precision="bf16"), "weights", "parameters, bfloat16"),
        (_with_job(mode="eval"), "gradients", "none: nothing is trained"),
        (_with_job(mode="eval"), "optimizer states", "none: nothing is trained"),
        (_with_job(mode="eval"), "activations", "nothing is saved"),
        (_with_job(mode="eval"), "autocast copies", "until the end of forward"),
        (_with_job(checkpointing="full"), "activations", "recomputed"),
        (_with_job(optimizer="sgd"), "optimizer states", "SGD keeps nothing"),
        (
            replace(
                budget(),
                peak=replace(budget().peak, step=1),
                breakdown=BREAKDOWN | {"optimizer states": 0},
            ),
            "optimizer states",
            "none yet",
        ),
    ],
)
def test_how_a_part_is_counted_follows_the_job(made, purpose, words):
    lines = {line.name: line.explanation for line in ledger(made).lines}
    assert words in lines[purpose]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"quant": "int8", "lora_rank": 8, "lora_targets": ("q_proj",)},
            ", 8-bit weights, LoRA rank 8 on q_proj",
        ),
        ({"quant": "nf4", "mode": "eval"}, ", eval, amp-bf16, 4-bit weights, "),
        ({"mode": "forward", "logits_to_keep": 1}, ", forward, the last logits, "),
        ({"mode": "forward", "logits_to_keep": 5}, ", forward, logits of the last 5 tokens, "),
        ({"mode": "forward", "pool": "mean"}, ", forward, mean pooling, "),
        ({"mode": "forward", "with_grad": True}, ", forward, its graph kept, "),
    ],
)
def test_a_job_is_told_with_what_decides_its_memory(changes, words):
    assert words in job_text(_with_job(**changes))


def test_every_part_says_how_it_is_counted():
    assert all(line.explanation for line in ledger(on_card(SMALL)).lines)


def test_csv_is_one_row_with_the_same_columns_for_every_budget():
    rows = [list(csv.reader(io.StringIO(render(made, "csv")))) for made in BUDGETS.values()]
    assert {tuple(row[0]) for row in rows} == {tuple(rows[0][0])}
    record = dict(zip(*rows[1], strict=True))
    assert int(record["peak.allocated_bytes"]) == ALLOCATED
    assert record["device.fits"] == "False"
    assert int(record["out_of_memory.requested_bytes"]) == 6_593_445_888


def test_markdown_is_a_table_with_the_verdict_in_bold():
    text = render(on_card(SMALL), "markdown")
    assert text.startswith("**DOES NOT FIT**: ")
    assert "| what it is " in text


ROWS = [{"name": "1e5", "size": 1024, "other": 1}, {"name": "x,y", "size": 2, "other": 2}]
COLUMNS = [Column("name", "card"), Column("size", "size", "right", lambda n: f"{n:,} B")]


def test_rows_keep_values_in_json_and_csv_and_texts_in_tables():
    assert json.loads(render_rows(COLUMNS, ROWS, "json")) == [
        {"name": "1e5", "size": 1024},
        {"name": "x,y", "size": 2},
    ]
    assert render_rows(COLUMNS, ROWS, "csv") == 'name,size\n1e5,1024\n"x,y",2'
    assert render_rows(COLUMNS, ROWS, "table").splitlines()[2].split() == ["1e5", "1,024", "B"]
    assert render_rows(COLUMNS, ROWS, "markdown").splitlines()[2] == "| 1e5    | 1,024 B |"


@pytest.mark.parametrize("output", FORMATS)
def test_no_rows_are_no_error(output):
    assert render_rows(COLUMNS, [], output)


def test_columns_are_aligned_by_what_a_terminal_shows():
    rows = [["日本", "1"], ["cafe\u0301", "1,024"], ["", "22"]]
    assert grid(rows, ["card", "B"]).splitlines() == [
        "card        B",
        "------  -----",
        "日本        1",
        "cafe\u0301    1,024",
        "           22",
    ]
    assert grid(rows[:1]) == "日本  1"
