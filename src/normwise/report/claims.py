"""The claims' result as a document, in the order of the notes and in one of the languages."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from normwise.claims.claim import Point
from normwise.claims.registry import CLAIMS
from normwise.claims.run import ClaimsResult, Judged
from normwise.claims.texts import Text, read_text
from normwise.claims.verdict import VERDICTS, Expectation, Number
from normwise.report.document import (
    Axis,
    Block,
    Column,
    Command,
    Document,
    Figure,
    Legend,
    Note,
    Prose,
    Section,
    Table,
)
from normwise.report.spelling import significant, with_half


def document(result: ClaimsResult, language: str = "en") -> Document:
    """All claims: a table first, then each with its sentence, verdict, picture and numbers."""
    page = read_text("page", language)
    sections = [Section("", _overview(result, page))]
    for claim in result.claims:
        sections += _claim(result, claim, page, read_text(claim.id, language))
    return Document(
        title=page.title,
        verdict=_summary(result, page),
        sections=[*sections, _conditions(result, page)],
        language=language,
    )


def statements(language: str = "en") -> Table:
    """Every claim with its sentence."""
    page = read_text("page", language)
    return Table(
        "statements",
        [Column(page.words("words", "claim")), Column(page.words("words", "statement"), "text")],
        [(name, read_text(name, language).title) for name in CLAIMS],
    )


def _summary(result: ClaimsResult, page: Text) -> str:
    words = page.lists["words"]
    found = Counter(claim.verdict for claim in result.claims)
    counts = [
        words["count"].format(count=found[name], verdict=page.words("verdicts", name))
        for name in VERDICTS if found[name]
    ]  # fmt: skip
    joined = words["separator"].join(counts)
    return words["summary"].format(
        total=len(result.claims), counts=f"{joined[:1].upper()}{joined[1:]}"
    )


def _overview(result: ClaimsResult, page: Text) -> list[Block]:
    words = page.lists["words"]
    columns = [
        Column(words["claim"], "anchor"), Column(words["verdict"]), Column(words["stated"]),
        Column(words["measured"]), Column(words["seconds"], "seconds"),
    ]  # fmt: skip
    rows = []
    for claim in result.claims:
        number = deciding(claim.numbers)
        rows.append((
            claim.id, page.words("verdicts", claim.verdict), stated(number.expected, page),
            measured(number), claim.seconds,
        ))  # fmt: skip
    failed: list[Block] = [
        Note(words["failed"].format(claim=name, reason=reason), alert=True)
        for name, reason in result.failed.items()
    ]
    quick: list[Block] = [Note(words["quick"])] if result.settings.quick else []
    return [Prose(page.body), *quick, *failed, Table("claims", columns, rows)]


def deciding(numbers: list[Number]) -> Number:
    """The first number that is not as stated, else the first."""
    judged = [number for number in numbers if number.expected is not None]
    return next((number for number in judged if number.answer != "yes"), judged[0])


def stated(expected: Expectation | None, page: Text) -> str:
    """Where a number must lie for the statement to be right."""
    if expected is None:
        return "-"
    low, high = expected.holds
    words = page.lists["words"]
    if math.isinf(low):
        return words["below"].format(significant(high))
    if math.isinf(high):
        return words["above"].format(significant(low))
    if low == high:
        return significant(low)
    return words["between"].format(significant(low, 4), significant(high, 4))


def measured(number: Number) -> str:
    """The mean of a number with its interval."""
    if not number.values:
        return "-"
    half = number.half_width
    return with_half(number.mean, half) if half else significant(number.mean)


def _claim(result: ClaimsResult, claim: Judged, page: Text, text: Text) -> Iterator[Section]:
    """The heading of its part of the notes, where it is the first of it, and the claim."""
    section = CLAIMS[claim.id].section
    first = next(one.id for one in result.claims if CLAIMS[one.id].section == section)
    if claim.id == first:
        yield Section(page.words("sections", str(section)), [], detail=True)
    blocks: list[Block] = [
        Prose(text.body),
        *_finding(claim, page, text),
        *_figures(claim, page, text),
        _numbers(claim, page, text),
        *_rows(claim, text),
        *([Prose(text.prose["reading"])] if "reading" in text.prose else []),
        Note(_conditions_of(claim, page)),
        Command(_command(result, [claim.id])),
    ]
    yield Section(text.title, blocks, detail=True, level=3, anchor=claim.id)


def _finding(claim: Judged, page: Text, text: Text) -> list[Block]:
    """The verdict, and each number that is not as stated."""
    verdict = page.words("verdicts", claim.verdict)
    head = page.words("findings", "head").format(
        verdict=f"{verdict[:1].upper()}{verdict[1:]}", finding=page.words("findings", claim.verdict)
    )
    lines = [
        page.words("findings", "differs").format(
            name=text.words("numbers", number.key), measured=measured(number),
            stated=stated(number.expected, page),
        )
        for number in claim.numbers if number.answer in ("partly", "no", "unclear")
    ]  # fmt: skip
    return [Note(head, strong=True), *map(Note, lines)]


def _numbers(claim: Judged, page: Text, text: Text) -> Table:
    words = page.lists["words"]
    return Table(
        name=f"{claim.id}-numbers",
        columns=[
            Column(words["number"], "text"), Column(words["predicted"], "number"),
            Column(words["stated"]), Column(words["measured"]), Column(words["answer"]),
        ],
        rows=[
            (text.words("numbers", number.key),
             None if number.expected is None else number.expected.predicted,
             stated(number.expected, page), measured(number),
             page.words("answers", number.answer))
            for number in claim.numbers
        ],
    )  # fmt: skip


def _rows(claim: Judged, text: Text) -> list[Block]:
    rows = claim.measurement.rows
    if not rows:
        return []
    kinds = {key: "text" if isinstance(rows[0][key], str) else "number" for key in rows[0]}
    return [
        Table(
            name=f"{claim.id}-table",
            columns=[Column(text.words("table", key), kind) for key, kind in kinds.items()],
            rows=[
                tuple(text.words("table", v) if isinstance(v, str) else v for v in row.values())
                for row in rows
            ],
        )
    ]


def _figures(claim: Judged, page: Text, text: Text) -> list[Block]:
    points = claim.measurement.points
    if not points:
        return []
    picture = CLAIMS[claim.id].picture
    names = list(dict.fromkeys(text.words("picture", point["label"]) for point in points))
    words = page.lists["words"]
    draw = _DRAWN[picture.kind]
    return [
        Figure(
            name=f"{claim.id}-picture",
            kind=picture.kind,
            title=text.words("picture", "title"),
            rows=draw(points, text),
            colour=Legend("", names) if picture.kind == "lines" or "mark" in points[0] else None,
            level=claim.measurement.level,
            caption=_caption(claim, words),
            x=Axis(text.words("picture", "x"), picture.x_log),
            y=Axis(text.words("picture", "y"), picture.y_log),
        )
    ]


def _lines(points: list[Point], text: Text) -> list[Point]:
    return [
        {**point, "label": (name := text.words("picture", point["label"])), "colour": name}
        for point in points
    ]


def _marks(points: list[Point], text: Text) -> list[Point]:
    """A row for each mark, or for each label where there are no marks, and its mean."""
    rows: dict[tuple[str, str], list[float]] = {}
    for point in points:
        name = text.words("picture", point["label"])
        mark = text.words("picture", point["mark"]) if "mark" in point else name
        rows.setdefault((mark, name), []).append(point["y"])
    marked = {
        (mark, name): {"label": mark, "colour": "" if mark == name else name} for mark, name in rows
    }
    return [
        {**marked[key], "y": value, "mean": None}
        for key, values in rows.items()
        for value in values
    ] + [{**marked[key], "y": None, "mean": fmean(values)} for key, values in rows.items()]


_DRAWN: dict[str, Callable[[list[Point], Text], list[Point]]] = {"lines": _lines, "marks": _marks}


def _caption(claim: Judged, words: dict[str, str]) -> str:
    """What the marks mean."""
    found = claim.measurement
    said = {
        "seeds_marks": CLAIMS[claim.id].picture.kind == "marks",
        "predicted_line": any("predicted" in point for point in found.points),
        "level_line": found.level is not None,
    }
    return " ".join(words[key] for key, holds in said.items() if holds)


def _conditions_of(claim: Judged, page: Text) -> str:
    words = page.lists["words"]
    parts = [
        f"{page.words('conditions', key)} {_value(value, page)}"
        for key, value in claim.measurement.conditions.items()
    ]
    return f"{words['conditions']}: {words['separator'].join(parts)}"


def _value(value: object, page: Text) -> str:
    return page.words("conditions", value) if isinstance(value, str) else f"{value:g}"


def _conditions(result: ClaimsResult, page: Text) -> Section:
    words, made = page.lists["words"], result.conditions
    return Section(
        words["conditions"],
        [
            Note(words["on"].format(
                machine=made["processor"], cores=made["cores"], torch=made["torch"],
                date=made["date"],
            )),
            Note(words["rerun_all"]),
            Command(_command(result, result.settings.ids)),
        ],
        detail=True,
    )  # fmt: skip


def _command(result: ClaimsResult, ids: Sequence[str]) -> str:
    """The line that measures these claims as they were."""
    asked = result.settings
    quick = ["--quick"] if asked.quick else []
    seeds = ["--seeds", str(asked.seeds)] if asked.seeds else []
    return " ".join(["normwise claims run", *ids, *quick, *seeds])
