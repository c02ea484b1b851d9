"""Whole numbers of several recordings as exact expressions of their sizes.

    c * batch^i * length^j ..., sums of two such, quotients rounded down or up

A form is taken only if it gives the number of every recording; none is a best guess. Numbers that
none gives are `unfit`.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement

from vrambudget.expressions import value

_DIVISORS = (2, 4, 8, 16, 32, 64, 3, 7, 14)  # a video may be 8 n + 1 at all probes
_MOST_PAIRED = 220  # monomials of which two are summed


class Fitter:
    """Finds expressions; `probes` are the sizes of each recording, by name."""

    def __init__(self, probes: Sequence[dict[str, int]]) -> None:
        self.symbols = [s for s in probes[0] if len({p[s] for p in probes}) > 1]
        self.probes = probes
        self.unfit: list[tuple[int, ...]] = []
        self._memo: dict[tuple[int, ...], int | str | None] = {}
        few = len(self.symbols) < 5  # noqa: PLR2004 - then higher powers are few, too
        degrees = range(1, 5 if few or len(self.symbols) < 13 else 4)  # noqa: PLR2004
        self._monomials = [
            tuple(choice.count(i) for i in range(len(self.symbols)))
            for degree in degrees
            for choice in combinations_with_replacement(range(len(self.symbols)), degree)
        ]
        self._bases = {e: [self._at(e, p) for p in probes] for e in self._monomials}
        self._by_ratio: dict[tuple[Fraction, ...], tuple[int, ...]] = {}
        for e in self._monomials:
            self._by_ratio.setdefault(self._ratio(self._bases[e]), e)

    @staticmethod
    def _ratio(values: Sequence[int]) -> tuple[Fraction, ...]:
        return tuple(Fraction(v, values[0]) for v in values)

    def _at(self, e: tuple[int, ...], probe: dict[str, int]) -> int:
        n = 1
        for symbol, power in zip(self.symbols, e, strict=True):
            n *= probe[symbol] ** power
        return n

    def fit(self, values: Sequence[int]) -> int | str | None:
        """Return a number or an expression, None where there is none."""
        key = tuple(values)
        if key not in self._memo:
            self._memo[key] = key[0] if len(set(key)) == 1 else next(self._forms(key), None)
            if self._memo[key] is None:
                self.unfit.append(key)
        return self._memo[key]

    def _forms(self, v: tuple[int, ...]) -> Iterator[str]:
        for s in self.symbols:
            if all(p[s] == n for p, n in zip(self.probes, v, strict=True)):
                yield s
        if v[0] and (e := self._by_ratio.get(self._ratio(v))) is not None:
            yield self._text(e, Fraction(v[0], self._bases[e][0]))
        yield from self._ratios(v)
        yield from self._lines(v)  # before 7ths: an edge of two pixels is no seventh of 64 to 112
        yield from self._quotients(v, self._parts("{}//{}", "-(-{}//{})"))
        yield from self._pairs(v)
        less = [*self._parts("({}//{}-1)").items()]  # windows of two pixels, one pixel apart
        areas = {
            f"{a}*{b}": [m * n for m, n in zip(x, y, strict=True)] for a, x in less for b, y in less
        }
        yield from self._quotients(v, areas)

    def _lines(self, v: tuple[int, ...]) -> Iterator[str]:
        for e in self._monomials:
            b = self._bases[e]
            i = next(i for i in range(len(b)) if b[i] != b[0])
            a = Fraction(v[i] - v[0], b[i] - b[0])
            c = v[0] - a * b[0]
            if a and c.denominator == 1 and all(a * y + c == x for x, y in zip(v, b, strict=True)):
                yield f"{self._text(e, a)}{int(c):+d}"

    def _ratios(self, v: tuple[int, ...]) -> Iterator[str]:
        """Yield quotients of two sizes, or of a number and one, times a size."""
        numbers = [(s, [p[s] for p in self.probes]) for s in self.symbols]
        tops = [*numbers, *((str(n), [n] * len(v)) for n in {v[0] * b[0] for _, b in numbers})]
        for a, x in tops:
            for b, y in numbers:
                if a == b or 0 in y:
                    continue
                q = [m // n for m, n in zip(x, y, strict=True)]
                if q == [*v]:
                    yield f"{a}//{b}"
                for c, z in numbers:
                    if [m * n for m, n in zip(q, z, strict=True)] == [*v]:
                        yield f"({a}//{b})*{c}"
                if v[0] and q[0] and v[0] % q[0] == 0:
                    k = v[0] // q[0]
                    if [k * m for m in q] == [*v]:
                        yield f"{k}*({a}//{b})"

    def _pairs(self, v: tuple[int, ...]) -> Iterator[str]:
        few = [(e, self._bases[e]) for e in self._monomials][:_MOST_PAIRED]
        for i, (e, b) in enumerate(few):
            for f, g in few[i + 1 :]:
                found = _two(v, b, g)
                if found:
                    x, y = found
                    second = self._text(f, abs(y))
                    yield f"{self._text(e, x)}{'+' if y > 0 else '-'}{second}"

    def _quotients(self, v: tuple[int, ...], parts: Mapping[str, list[int]]) -> Iterator[str]:
        near = [((0,) * len(self.symbols), [1] * len(v))]
        near += [(e, self._bases[e]) for e in self._monomials if sum(e) <= 2]  # noqa: PLR2004
        for text, q in parts.items():
            for e, b in near:
                h = [x * y for x, y in zip(q, b, strict=True)]
                if not h[0] or (v[0] % h[0] and not any(e)):
                    continue
                c = Fraction(v[0], h[0])
                if all(x == c * y for x, y in zip(v, h, strict=True)):
                    rest = self._text(e, c)
                    yield f"({text})*{rest}" if rest != "1" else text

    def _parts(self, *forms: str) -> dict[str, list[int]]:
        texts = [f.format(s, d) for s in self.symbols for d in _DIVISORS for f in forms]
        return {text: [value(text, p) for p in self.probes] for text in texts}

    def _text(self, e: tuple[int, ...], c: Fraction) -> str:
        powers = zip(self.symbols, e, strict=True)
        parts = [s if x == 1 else f"{s}**{x}" for s, x in powers if x]
        head = [str(c.numerator)] if c.numerator != 1 or not parts else []
        text = "*".join(head + parts)
        return text if c.denominator == 1 else f"{text}//{c.denominator}"


def _two(v: Sequence[int], b: Sequence[int], g: Sequence[int]) -> tuple[Fraction, Fraction] | None:
    """Return x, y with v = x b + y g, quarters (patches of 2 x 2), None where there are none."""
    for i in range(1, len(v)):
        d = b[0] * g[i] - b[i] * g[0]
        if d:
            x, rest = divmod(4 * (v[0] * g[i] - v[i] * g[0]), d)
            y, rest_y = divmod(4 * (b[0] * v[i] - b[i] * v[0]), d)
            if rest or rest_y or not x or not y:
                return None
            fits = all(x * p + y * q == 4 * n for n, p, q in zip(v, b, g, strict=True))
            return (Fraction(x, 4), Fraction(y, 4)) if fits else None
    return None
