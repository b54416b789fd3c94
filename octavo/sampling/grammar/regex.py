"""Read a regex before native code does: bounded in length, depth and repetition, and in one dialect.

Users write regexes for Python, for JSON Schema (ECMA 262) or for Rust. They are read here once and written anew in
the part of the language that every grammar backend understands the same way; what no automaton can follow
(look-around, back-references) is refused by name. Anchors are resolved, for backends match whole texts.
"""

from dataclasses import dataclass

from octavo.errors import InvalidRequestError

MAX_REGEX_DEPTH = 50
"""Most groups that may lie within each other."""
MAX_REPETITIONS = 10_000
"""Largest number in a ``{m,n}``."""
MAX_REGEX_SIZE = 50_000
"""Most characters that a regex stands for once its repetitions are written out."""

_LARGE_REGEX_SIZE = 1000

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
# Digits and words are those of ECMA 262, which JSON Schema is about; backends differ on others.
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_"}
_KEPT_ESCAPES = set("dDwWsS")
_SYNTAX = set("\\^$.|?*+()[]{}")
_CLASS_SYNTAX = set("\\^-[]&~")
_ANYTHING = r"[\s\S]*"
_START, _END = "^", "$"
_LOOKAROUNDS = {"?=": "lookahead", "?!": "lookahead", "?<=": "lookbehind", "?<!": "lookbehind", "?>": "atomic groups"}


@dataclass(frozen=True, slots=True)
class Regex:
    """A regex that has been read.

    Attributes:
        text: what a whole text has to match; without anchors.
        guidance_only: what in it xgrammar does not know, None if it knows all.
        size: characters that it stands for, its repetitions written out.
        names_escaped: whether it names characters that stand in JSON strings by an escape only: quotes, backslashes,
            control characters.
    """

    text: str
    guidance_only: str | None = None
    size: int = 1
    names_escaped: bool = False

    @property
    def is_large(self) -> bool:
        """Whether a backend that works out everything beforehand would take seconds."""
        return self.size > _LARGE_REGEX_SIZE


@dataclass(frozen=True, slots=True)
class _Item:
    """A part of a branch: its text, the size it stands for, and its branches if it is a group without repetition."""

    text: str
    size: int = 1
    branches: "list[list[_Item]] | None" = None


def read_regex(text: str, name: str, *, matches_part: bool = False) -> Regex:
    """Check a regex and write it for the backends.

    Args:
        name: the field it comes from, for errors.
        matches_part: whether a match anywhere in a text is enough, as with ``pattern`` in JSON Schema; else the whole
            text has to match.

    Raises:
        InvalidRequestError: it is malformed, too large, or uses what no backend can follow.
    """
    parser = _Parser(text, name)
    bodies = [_body(branch, parser, matches_part) for branch in _flat(parser.parse())]
    return Regex("|".join(bodies), parser.guidance_only, parser.size, parser.names_escaped)


def escape(text: str) -> str:
    """A regex, in the backends' common dialect, that matches just this text."""
    return "".join(map(_literal, text))


def _flat(branches: list[list[_Item]]) -> list[list[_Item]]:
    """Branches, those of groups that are all of a branch included, so that anchors in such groups are seen."""
    flat = []
    for branch in branches:
        inner = branch[0].branches if len(branch) == 1 else None
        flat.extend([branch] if inner is None else _flat(inner))
    return flat


def _body(branch: list[_Item], parser: "_Parser", matches_part: bool) -> str:
    begins = bool(branch) and branch[0].text == _START
    branch = branch[1:] if begins else branch
    ends = bool(branch) and branch[-1].text == _END
    branch = branch[:-1] if ends else branch
    if any(_has_anchor(item) for item in branch):
        raise parser.error("uses ^ or $ within the text, which nothing can match")
    body = "".join(item.text for item in branch)
    if not matches_part:
        return body
    return ("" if begins else _ANYTHING) + body + ("" if ends else _ANYTHING)


def _has_anchor(item: _Item) -> bool:
    return item.text in (_START, _END) or any(_has_anchor(i) for branch in item.branches or [] for i in branch)


@dataclass(slots=True)
class _Parser:
    """Recursive descent over a regex; :data:`MAX_REGEX_DEPTH` bounds its depth."""

    source: str
    name: str
    place: int = 0
    dot_is_all: bool = False
    guidance_only: str | None = None
    prefix: str = ""
    size: int = 0
    names_escaped: bool = False

    def error(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self.name}: the regex {message}.", "structured_outputs")

    def parse(self) -> list[list[_Item]]:
        self._read_leading_flags()
        branches = self._alternation(0)
        if self.place < len(self.source):
            raise self.error(f"has a ')' without '(' at character {self.place + 1}")
        if self.prefix:
            branches = [[_Item(self.prefix, 0), *branch] for branch in branches]
        self.size = sum(item.size for branch in branches for item in branch)
        self._check_size(self.size)
        return branches

    def _read_leading_flags(self) -> None:
        while self.source.startswith("(?", self.place):
            end = self.source.find(")", self.place)
            flags = self.source[self.place + 2 : end] if end > 0 else ""
            if not flags or not flags.isalpha():
                return
            if set(flags) - set("is"):
                raise self.error(f"sets the flags {flags[:10]!r}; only i and s are known")
            self.dot_is_all |= "s" in flags
            if "i" in flags:
                self.guidance_only = "'(?i)'"
                self.prefix = "(?i)"
            self.place = end + 1

    def _alternation(self, depth: int) -> list[list[_Item]]:
        if depth > MAX_REGEX_DEPTH:
            raise self.error(f"has more than {MAX_REGEX_DEPTH} groups within each other")
        branches: list[list[_Item]] = [[]]
        while self.place < len(self.source) and self.source[self.place] != ")":
            if self.source[self.place] == "|":
                self.place += 1
                branches.append([])
                continue
            item = self._atom(depth)
            if item is not None:
                branches[-1].append(self._repeated(item))
        return branches

    def _atom(self, depth: int) -> _Item | None:
        char = self.source[self.place]
        self.place += 1
        match char:
            case "(":
                return self._group(depth)
            case "[":
                return _Item(self._char_class())
            case ".":
                return _Item(r"[\s\S]" if self.dot_is_all else r"[^\n]")
            case "^" | "$":
                return _Item(char, 0)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self.error(f"has nothing to repeat before {char!r} at character {self.place}")
            case "{" if self._counts(self.place) is not None:
                raise self.error(f"has nothing to repeat before '{{' at character {self.place}")
            case _:
                return _Item(self._checked_literal(char))

    def _group(self, depth: int) -> _Item | None:
        start = self.place
        opening = "(?:"
        if self.source.startswith("?#", start):
            self.place = self._find(")", start) + 1
            return None
        for mark, feature in _LOOKAROUNDS.items():
            if self.source.startswith(mark, start):
                raise self.error(f"uses {feature} '({mark}', which no grammar backend can follow")
        if self.source.startswith("?:", start):
            self.place += 2
        elif self.source.startswith("?i:", start):
            self.place += 3
            self.guidance_only = "'(?i:'"
            opening = "(?i:"
        elif self.source.startswith(("?<", "?P<"), start):
            self.place = self._find(">", start) + 1
        elif self.source.startswith("?", start):
            raise self.error(f"uses '({self.source[start : start + 3]}', which no grammar backend can follow")
        branches = self._alternation(depth + 1)
        if self.place >= len(self.source):
            raise self.error(f"has a '(' without ')' at character {start}")
        self.place += 1
        text = "|".join("".join(item.text for item in branch) for branch in branches)
        size = sum(item.size for branch in branches for item in branch)
        return _Item(f"{opening}{text})", max(size, 1), branches if opening == "(?:" else None)

    def _find(self, mark: str, start: int) -> int:
        end = self.source.find(mark, start)
        if end < 0:
            raise self.error(f"has a group that does not end, at character {start}")
        return end

    def _repeated(self, item: _Item) -> _Item:
        if self.place >= len(self.source):
            return item
        char = self.source[self.place]
        counts = self._counts(self.place + 1) if char == "{" else None
        if char not in "*+?" and counts is None:
            return item
        if item.text in (_START, _END):
            raise self.error(f"repeats an anchor at character {self.place + 1}")
        if any(_has_anchor(inner) for branch in item.branches or [] for inner in branch):
            raise self.error("repeats a group with ^ or $ in it, which nothing can match")
        if counts is None:
            text, times = item.text + char, 1
            self.place += 1
        else:
            suffix, times, self.place = counts
            text = item.text + suffix
        self._read_laziness()
        size = item.size * max(times, 1)
        self._check_size(size)
        return _Item(text, size)

    def _read_laziness(self) -> None:
        following = self.source[self.place : self.place + 1]
        if following == "?":
            # Which of several matches is preferred does not change what matches.
            self.place += 1
        elif following == "+":
            raise self.error("uses possessive repetition, which no grammar backend can follow")
        elif following == "*" or (following == "{" and self._counts(self.place + 1) is not None):
            raise self.error(f"repeats a repetition at character {self.place + 1}")

    def _counts(self, start: int) -> tuple[str, int, int] | None:
        """The ``{m,n}`` whose inside begins at ``start``: how to write it, its larger number, where it ends."""
        end = self.source.find("}", start, start + 40)
        parts = self.source[start:end].split(",") if end > 0 else []
        if len(parts) not in (1, 2) or not all(not part or (part.isascii() and part.isdigit()) for part in parts):
            return None
        low, high = parts[0], parts[-1]
        if not low and (not high or len(parts) == 1):
            return None
        numbers = [int(part) for part in parts if part]
        if max(numbers) > MAX_REPETITIONS:
            raise self.error(f"repeats {max(numbers)} times; at most {MAX_REPETITIONS:,} are allowed")
        if len(numbers) == 2 and numbers[0] > numbers[1]:
            raise self.error(f"has a repetition {{{low},{high}}} whose numbers are the wrong way round")
        text = ",".join([low or "0", high] if len(parts) == 2 else [low])
        return f"{{{text}}}", max(numbers) + (not high), end + 1

    def _escape(self) -> _Item:
        char = self._next("an unfinished '\\' at its end")
        if char in "dw":
            return _Item(f"[{_CLASSES[char]}]")
        if char in "DW":
            return _Item(f"[^{_CLASSES[char.lower()]}]")
        if char in "sS":
            return _Item("\\" + char)
        if char in "AZz":
            return _Item(_START if char == "A" else _END, 0)
        if char in "bB":
            raise self.error(f"uses '\\{char}' (word boundaries), which no grammar backend can follow")
        if char in "pP":
            return _Item(self._unicode_class(char))
        if char.isdigit() and char != "0":
            raise self.error(f"uses the back-reference '\\{char}', which no grammar backend can follow")
        return _Item(self._checked_literal(self._escaped_char(char)))

    def _escaped_char(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in "xuU":
            return self._by_code(char)
        if char == "c":
            return chr(ord(self._next("an unfinished '\\c'")) & 0x1F)
        if char == "0":
            return "\0"
        if char.isalnum():
            raise self.error(f"uses '\\{char}', which no grammar backend knows")
        return char

    def _by_code(self, kind: str) -> str:
        if self.source.startswith("{", self.place):
            end = self.source.find("}", self.place, self.place + 10)
            digits, self.place = self.source[self.place + 1 : end], end + 1
        else:
            length = {"x": 2, "u": 4, "U": 8}[kind]
            digits, self.place = self.source[self.place : self.place + length], self.place + length
            digits = digits if len(digits) == length else ""
        try:
            code = int(digits, 16) if digits.isalnum() else -1
        except ValueError:
            code = -1
        if 0xD800 <= code < 0xDC00 and kind == "u":
            code = self._low_surrogate(code)
        if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
            raise self.error(f"has an escape '\\{kind}' that names no character")
        return chr(code)

    def _low_surrogate(self, high: int) -> int:
        following = self.source[self.place : self.place + 6]
        try:
            low = int(following[2:], 16) if following.startswith("\\u") else 0
        except ValueError:
            low = 0
        if not 0xDC00 <= low < 0xE000:
            return high
        self.place += 6
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)

    def _unicode_class(self, char: str) -> str:
        self.guidance_only = f"'\\{char}'"
        if not self.source.startswith("{", self.place):
            return f"\\{char}{{{self._next('an unfinished Unicode class')}}}"
        end = self.source.find("}", self.place, self.place + 60)
        name = self.source[self.place + 1 : end] if end > 0 else ""
        if not name or not name.replace("_", "").replace("=", "").isalnum():
            raise self.error(f"has a Unicode class '\\{char}' without a name")
        self.place = end + 1
        return f"\\{char}{{{name}}}"

    def _char_class(self) -> str:
        start = self.place
        parts = ["["]
        if self.source.startswith("^", self.place):
            parts.append("^")
            self.place += 1
        num_marks = len(parts)
        is_plain = num_marks == 2
        while True:
            char = self._next(f"a '[' without ']' at character {start}")
            if char == "]" and len(parts) > num_marks:
                self.names_escaped |= not is_plain
                return "".join(parts) + "]"
            if char == "]" and self.source.find("]", self.place) < 0:
                raise self.error(f"has an empty class at character {start}")
            if char == "[" and self.source.startswith((":", ".", "="), self.place):
                raise self.error("uses a class of POSIX ('[:'), which is not known; write its characters")
            first, last = self._class_member(char)
            is_plain |= last is not None or len(first) > 1 or not _is_escaped_in_json(first)
            if last is not None:
                parts.append(f"{_class_literal(first)}-{_class_literal(last)}")
            else:
                parts.append(_class_literal(first) if len(first) == 1 else first)

    def _class_member(self, char: str) -> tuple[str, str | None]:
        """A character or the text of a class; and the end of a range, if there is one."""
        first = self._class_atom(char)
        is_range = self.source.startswith("-", self.place) and not self.source.startswith("-]", self.place)
        if len(first) > 1 or not is_range or self.place + 1 == len(self.source):
            return first, None
        self.place += 1
        last = self._class_atom(self._next("an unfinished range"))
        if len(last) > 1 or last < first:
            raise self.error(f"has a range in a class that is no range, at character {self.place}")
        return first, last

    def _class_atom(self, char: str) -> str:
        """A single character, or longer text that stands for several in a class."""
        if char != "\\":
            return self._checked(char)
        char = self._next("an unfinished '\\' at its end")
        if char in _KEPT_ESCAPES:
            return _CLASSES.get(char, "\\" + char)
        if char in "pP":
            return self._unicode_class(char)
        if char == "b":
            return "\b"
        return self._checked(self._escaped_char(char))

    def _next(self, missing: str) -> str:
        if self.place >= len(self.source):
            raise self.error(f"has {missing}")
        self.place += 1
        return self.source[self.place - 1]

    def _checked(self, char: str) -> str:
        if char == "\0":
            raise self.error("holds the character NUL, which no grammar backend can follow")
        return char

    def _checked_literal(self, char: str) -> str:
        self.names_escaped |= _is_escaped_in_json(char)
        return _literal(self._checked(char))

    def _check_size(self, size: int) -> None:
        if size > MAX_REGEX_SIZE:
            raise self.error(f"stands for more than {MAX_REGEX_SIZE:,} characters, its repetitions written out")


def _is_escaped_in_json(char: str) -> bool:
    return char in '"\\' or char < " "


def _literal(char: str) -> str:
    if char in _SYNTAX:
        return "\\" + char
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def _class_literal(char: str) -> str:
    if char in _CLASS_SYNTAX or not char.isprintable():
        return f"\\u{{{ord(char):x}}}"
    return char
