"""Loss expressions: what is read, what is refused with a column and a reason, and that nothing else ever happens."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xmclab.errors import ConfigError
from xmclab.objectives.expr import MAX_LENGTH, TermSpec, format_expression, parse_expression


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("ds", [TermSpec("ds")]),
        (" ds + bce ", [TermSpec("ds"), TermSpec("bce")]),
        ("0.7*ds+0.3*bce", [TermSpec("ds", 0.7), TermSpec("bce", 0.3)]),
        ("bce*0.3", [TermSpec("bce", 0.3)]),
        ("0*ds+2*bce", [TermSpec("ds", 0.0), TermSpec("bce", 2.0)]),
        (
            "supcon(temperature=0.05)+0.1*bce",
            [TermSpec("supcon", options={"temperature": 0.05}), TermSpec("bce", 0.1)],
        ),
        ("psl(ds)+ova_n(bce)", [TermSpec("ds", reduction="psl"), TermSpec("bce", reduction="ova_n")]),
        (
            "0.5*ova(bce(temperature=2), cells='sum')",
            [TermSpec("bce", 0.5, {"temperature": 2}, "ova", {"cells": "sum"})],
        ),
        (
            "pml.SupConLoss(a='x', b=-1, c=True, d=None)+dist.sub.name",
            [TermSpec("pml.SupConLoss", options={"a": "x", "b": -1, "c": True, "d": None}), TermSpec("dist.sub.name")],
        ),
        ("ds+(bce+(supcon))", [TermSpec("ds"), TermSpec("bce"), TermSpec("supcon")]),
        ("ds()", [TermSpec("ds")]),
    ],
)
def test_reads(text, terms):
    assert parse_expression(text) == terms
    assert parse_expression(format_expression(terms)) == terms


def test_terms_know_their_columns():
    assert [term.column for term in parse_expression("  0.7*ds + é + psl(bce)")] == [7, 12, 16]


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "empty"),
        ("   ", 1, "empty"),
        ("ds+", 4, "missing term after '+'"),
        ("0.3*", 5, "missing term after '*'"),
        ("ds+bce)", 7, "cannot be parsed"),
        ("ds)+(bce", 3, "cannot be parsed"),
        ("(ds", 1, "cannot be parsed"),
        ("ds bce", 4, "cannot be parsed"),
        ("0.3ds", 3, "cannot be parsed"),
        ("1", 1, "a number without a loss"),
        ("ds+0.5", 4, "a number without a loss"),
        ("ds-bce", 4, "subtracted"),
        ("-ds", 1, "a term cannot have a sign"),
        ("-0.5*ds", 1, "at least 0"),
        ("1e999*ds", 1, "at least 0"),
        ("9" * 400 + "*ds", 1, "at least 0"),
        ("True*ds", 1, "one number and one loss"),
        ("ds/2", 1, "only '+' and '*'"),
        ("ds*bce", 1, "one number and one loss"),
        ("2*3*ds", 1, "one number and one loss"),
        ("0.5*(ds+bce)", 1, "one number and one loss"),
        ("psl(ds+bce)", 1, "does not contain exactly one loss"),
        ("psl(0.5*ds)", 1, "does not contain exactly one loss"),
        ("psl(ds, bce)", 1, "does not contain exactly one loss"),
        ("psl(pal(ds))", 1, "does not contain exactly one loss"),
        ("psl(*ds)", 1, "does not contain exactly one loss"),
        ("__import__('os')", 1, "does not contain exactly one loss"),
        ("ds(0.05)", 1, "does not contain exactly one loss"),
        ("ds(**x)", 6, "'**'"),
        ("ds(temperature=x)", 16, "not a literal"),
        ("ds(temperature=1e999)", 16, "not a literal"),
        ("ds(temperature=[1])", 16, "not a literal"),
        ("ds(temperature=f'{x}')", 16, "not a literal"),
        ("ds(temperature=__import__('os').getpid())", 16, "not a literal"),
        ("ds(a=1, a=2)", 11, "given twice"),
        ("ds+ds", 4, "appears twice"),
        ("psl(ds)+0.5*pal(ds)", 13, "appears twice"),
        ("ds().x", 1, "not a loss name"),
        ("psl(ds)(bce)", 1, "not a loss name"),
        ("ds,bce", 1, "not a loss name"),
        ("[ds]", 1, "not a loss name"),
        ("lambda: ds", 1, "not a loss name"),
        ("ds if bce else ds", 1, "not a loss name"),
        ("'ds'", 1, "not a loss name"),
        ("(ds := 1)", 2, "not a loss name"),
        ("ds\0", 3, "unexpected character"),
        ("ds\n+bce", 3, "unexpected character"),
        ("ds#bce", 3, "unexpected character"),
        ("ds+\ud800", 4, "unexpected character"),
        ("ds" * MAX_LENGTH, MAX_LENGTH + 1, "longer than"),
    ],
)
def test_refuses_with_column_and_reason(text, column, reason):
    with pytest.raises(ConfigError) as caught:
        parse_expression(text, "loss.clf")
    (problem,) = caught.value.problems
    assert problem.where == "loss.clf"
    assert problem.message.startswith(f"column {column} of ")
    assert reason in problem.message
    assert problem.hint
    assert len(problem.message) < 300


def test_shows_the_expression():
    with pytest.raises(ConfigError, match=r"^loss.clf: column 4 of 'ds\+': missing term"):
        parse_expression("ds+", "loss.clf")


def test_lists_all_problems_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_expression("ds(1)+-bce+3+supcon+supcon")
    assert [problem.message.split(":")[0].split()[1] for problem in caught.value.problems] == ["1", "7", "12", "21"]


DEEP = ["(" * 400 + "ds" + ")" * 400, "-" * 990 + "1", "a" + "()" * 490, "a(" * 190 + ")" * 190]


@pytest.mark.parametrize("text", DEEP)
def test_deep_nesting_is_refused(text):
    with pytest.raises(ConfigError):
        parse_expression(text)


@pytest.mark.parametrize("error", [RecursionError, MemoryError, ValueError])
def test_what_pythons_parser_gives_up_on_is_refused(error, monkeypatch):
    def give_up(source, mode):
        raise error

    monkeypatch.setattr("xmclab.objectives.expr.ast.parse", give_up)
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse_expression("ds")


def test_long_chains_need_no_deep_stack():
    assert len(parse_expression("+".join(f"a{i}" for i in range(200)))) == 200
    assert parse_expression("a" + ".a" * 490)[0].name == "a" + ".a" * 490


names = st.sampled_from(["ds", "bce", "supcon", "pml.SupConLoss", "a.b.c"])
numbers = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text("ab1 +()'\"\\\n\0é€\u3000\ud800", max_size=8)
options = st.dictionaries(st.sampled_from(["temperature", "margin", "x"]), numbers | texts | st.booleans() | st.none())


@st.composite
def specs(draw: st.DrawFn) -> TermSpec:
    reduction = draw(st.none() | st.sampled_from(["psl", "ova"]))
    return TermSpec(
        draw(names),
        draw(st.floats(0, 1e6)),
        draw(options),
        reduction,
        draw(options) if reduction else {},
    )


@settings(max_examples=100, deadline=None)
@given(terms=st.lists(specs(), min_size=1, max_size=3, unique_by=lambda term: term.name))
def test_round_trip(terms):
    text = format_expression(terms)
    if len(text) <= MAX_LENGTH:
        assert parse_expression(text) == terms


FRAGMENTS = [*"+*-().,='\"\\[]{}@%é \n\0\ud800", "ds", "bce", "psl", "x=", "0.5", "1e999", "1_0", "0x", "**", ":="]
FRAGMENTS += ["lambda", "await", "yield", "f'{", "not ", "None"]


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(FRAGMENTS), max_size=15).map("".join))
@example(text="ds('\\d')")
@example(text="1if 1else ds")
@example(text="0_7")
def test_any_text_is_read_or_refused(text):
    try:
        terms = parse_expression(text)
    except ConfigError:
        return
    assert terms
    assert parse_expression(format_expression(terms)) == terms
