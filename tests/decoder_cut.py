"""A layer's program out of a whole model's: its rows, by names as they are in the layer."""

from collections.abc import Sequence
from typing import Any

from decoder_keys import before_layers, layer_in, names_of, scaled

from vrambudget.program.decoder_body import LAYERS
from vrambudget.program.form import Program, Row, with_paths
from vrambudget.program.rows import makes, reads, renamed
from vrambudget.recording.merging import UnfitError
from vrambudget.recording.programs import Probe

_KEPT = {"weight", "buffer"}
_CALLS = {"enter", "leave"}


def cut(program: Program, base: Probe, *, has_body: bool) -> Program:
    """Return a layer's program of a whole model's, with the norm behind the last layer.

    A layer takes all that it is called with where what is around it is a program, too.
    """
    rows = [*with_paths(program.code)]
    own_layer = layer_in(base)
    stack = own_layer.rpartition(".")[0]
    model, _, layers = stack.rpartition(".")
    masks, tables = (
        [n for w, v in program.code if w == "op" and v[0] == k for n in v[1:2]]
        for k in ("mask", "rotary")
    )
    inside = [row for path, row in rows if is_in(path, own_layer)]
    layer = [row for row in inside if row[0] not in _CALLS]
    read = {name for row in layer for name in reads(*row)}
    (entered,) = (v for path, (w, v) in rows if (w, path) == ("enter", own_layer))
    rotary = tables[0] if tables else []
    own = [name for name in entered[1:] if name in read - {*rotary}]  # a mask, distances
    positions = base.recording.facts.get("position_ids")
    if positions in own:
        own.append(own.pop(own.index(positions)))
        program.source["reads_positions"] = True
    if not own or len(tables) > 1:
        raise UnfitError("layers of several kinds are no single program")
    if len(masks) > 1:
        program.source["makes_both_masks"] = True
    (left,) = (v for path, (w, v) in rows if (w, path) == ("leave", own_layer))
    last = max(at for at, (_, (word, _)) in enumerate(rows) if word == "leave")
    behind = (path for path, _ in rows[last:] if path.startswith(f"{model}."))
    home = next((path for path in behind if not is_in(path, stack)), "")  # OPT may have none
    norm = [row for path, row in rows if home and is_in(path, home)]
    made = [name for row in norm for name in makes(*row)]
    (given,) = {name for row in norm for name in reads(*row)} - {*made} or left
    gone = {value for word, value in norm if word == "del"}
    norm = [row for row in norm if row[0] != "del" or row[1] in made]
    (result,) = [name for name in made if name not in gone] or left
    taken = entered if has_body else [entered[0], *rotary, *own]
    code = [
        *(("enter", taken), *layer, ("leave", left)),
        *(("enter", [given]), *norm, ("leave", [result])),
    ]
    _follow_tables(program, code, rotary)
    code = _numbered(program, code)
    program.source |= {
        **before_layers(rows, model),
        "logits": [*scaled(rows, "", before="")],
        **names_of(model, layers, home.removeprefix(f"{model}."), base),
    }
    program.code = [_relative(row, own_layer, home) for row in code]
    _keep_built(program, base, own_layer, [own_layer, home])
    return program


def cut_body(program: Program, base: Probe) -> Program:
    """Return the program of what stands around the layers: what they take, what they return."""
    rows, facts = [*with_paths(program.code)], base.recording.facts
    stack = layer_in(base).rpartition(".")[0]
    model = stack.rpartition(".")[0]
    calls = [at for at, (path, (w, _)) in enumerate(rows) if is_in(path, stack) and w in _CALLS]
    first, last = calls[0], calls[-1]
    (ids,) = (own[-1] for own in program.inputs if own[0] == "input_ids")
    given = [facts[name] for name in ("attention_mask", "position_ids") if name in facts]
    begin = [row for path, row in rows[:first] if not is_in(path, stack) and row[0] not in _CALLS]
    end = [row for path, row in rows[last + 1 :] if is_in(path, model)]
    end = [row for row in end if not (row[0] == "at" and is_in(row[1][0], stack))]
    left, (entered, *_) = rows[last][1][1][:1], rows[first][1][1]
    known = {entered, *left, *(name for row in end for name in makes(*row))}
    end = [row for row in end if row[0] != "del" or row[1] in known]
    gone = {value for word, value in end if word == "del"}
    results = [name for row in end for name in makes(*row) if name not in gone] or left
    code = [
        *(("enter", [ids, *given]), *begin, ("leave", rows[first][1][1])),
        *(("enter", left), *end, ("leave", results[-1:])),
    ]
    code = _numbered(program, code)
    program.code = [_relative(row, model) for row in code]
    _keep_built(program, base, model, [model])
    layers = stack.removeprefix(f"{model}.")
    built = [row for row in program.built if ".rotary_emb." not in f".{row[1][0]}"]
    at = next(i for i, (word, v) in enumerate(built) if word in _KEPT and is_in(v[0], layers))
    before, after = (
        [row for row in rows if not is_in(row[1][0], layers)] for rows in (built[:at], built[at:])
    )
    program.built = [*before, ("module", [layers, LAYERS]), *after]
    return program


def cut_eager(program: Program, base: Probe) -> Program:
    """Return the program of a type's own way to attend by single operations."""
    layer = layer_in(base)
    rows = [row for path, row in with_paths(program.code) if is_in(path, layer)]
    ops = {v[0]: at for at, (word, v) in enumerate(rows) if word == "op"}
    begin, end = ops["eager.begin"], ops["eager.end"]
    inputs = [*rows[begin][1][2], *rows[begin][1][1]]
    inside = [row for row in rows[begin + 1 : end] if row[0] != "del" or row[1] not in inputs]
    code = [("enter", inputs), *inside, ("leave", rows[end][1][2])]
    code = _numbered(program, code)
    program.code = [_relative(row, layer) for row in code]
    program.built, program.stacks, program.inputs, program.guards = [], [], [], []
    program.result = {}
    return program


def _numbered(program: Program, code: list[Row]) -> list[Row]:
    """Return the code with numbers of its own effects, which the program keeps alone."""
    used = {value[0]: None for word, value in code if word == "call"}
    numbers = {old: new for new, old in enumerate(sorted(used))}
    program.effects = [program.effects[old] for old in numbers]
    return [(w, [numbers[v[0]], *v[1:]] if w == "call" else v) for w, v in code]


def _keep_built(program: Program, base: Probe, home: str, homes: Sequence[str]) -> None:
    """Keep of how the model is built what a module has, and nothing of inputs and results."""
    facts = base.recording.facts
    places = {name: place for name, place, *_ in (*facts["parameters"], *facts["buffers"])}
    program.built.sort(key=lambda row: places[row[1][0]] if row[0] in _KEPT else 0)
    program.built = [
        _relative(row, *homes)
        for row in program.built
        if row[0] in {"module", *_KEPT} and row[1][0].startswith(f"{home}.")
    ]
    program.stacks, program.inputs, program.guards, program.result = [], [], [], {}


def _follow_tables(program: Program, code: Sequence[Row], tables: Sequence[str]) -> None:
    """Let what is made of cos and sin alone have their type: FSDP casts them between layers."""
    known, of_tables, others = {*tables}, set[int](), set[int]()
    for word, value in code:
        if word not in {"op", "call"}:
            continue
        given = {*reads(word, value)}
        is_table = bool(given) and given <= known
        if is_table and (word == "call" or value[0].startswith("shape.")):
            known.update(makes(word, value))
        if word == "call":
            (of_tables if is_table else others).add(value[0])
    for number in of_tables - others:
        program.effects[number] = _retyped(program.effects[number])


def _retyped(value: Any) -> Any:
    if isinstance(value, list):
        return [_retyped(x) for x in value]
    return "~T" if value in {"~float32", "~W"} else value


def is_in(path: str, module: str) -> bool:
    """Return whether a module's path is another's, or below it."""
    return f"{path}.".startswith(f"{module}.")


def _relative(row: Row, *homes: str) -> Row:
    """Return a row with names as they are in its layer."""
    word, value = row

    def plain(path: str) -> str:
        for module in homes:
            if is_in(path, module):
                return path[len(module) + 1 :]
        return path

    if word == "at":
        return word, [plain(value[0]), *value[1:]]
    if word in {"new", "module"}:
        return word, [plain(value[0]), *value[1:]]
    if word in _KEPT:
        return word, [plain(value[0]), plain(value[1]), *value[2:]]
    return word, renamed(value, {}, plain)
