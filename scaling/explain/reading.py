"""Read a configuration file, however it was written: JSON with comments, YAML 1.1, keys that stand twice, templates."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from scaling.explain.findings import Finding, Severity, Topic
from scaling.explain.tree import Tree
from strategies.errors import ScalingError

MAX_BYTES = 2**22
"""Of one file: the longest configuration known stays below 100 KB."""
MAX_DEPTH = 40
PLACEHOLDER = re.compile(r"\$\{[^}]*\}|\{\{[^}]*\}\}|<[A-Za-z_ ]+>")
"""``${zero_stage}``, ``{{ stage }}`` and ``<stage>``, as templates have them."""
JSON_PLACEHOLDER = re.compile(PLACEHOLDER.pattern + r"|(?<![\"\w])[A-Z][A-Z0-9_]{2,}(?![\"\w])")
"""And bare words in capitals, which are plain values in YAML."""


class Syntax(StrEnum):
    """How a file is written."""

    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A file that was read."""

    name: str
    """As it was given."""
    path: Path
    syntax: Syntax
    tree: Tree | None
    """None where it cannot be read."""
    findings: tuple[Finding, ...]
    is_clean: bool
    """Whether any JSON or YAML reader takes it as it is."""


def read_file(name: str) -> ReadFile:
    """Return the file at ``name`` with what is wrong with how it is written.

    Raises:
        ScalingError: there is no such file, or it is no text of a reasonable size.
    """
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ScalingError(f"{name} has {path.stat().st_size:,} bytes; a configuration has at most {MAX_BYTES:,}")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ScalingError(f"cannot read {name}: {error}; give the path of an existing file") from error
    return read_text(data.decode("utf-8-sig", errors="replace"), name=name)


def read_text(text: str, *, name: str) -> ReadFile:
    """Return the configuration that ``text`` holds; ``name`` tells JSON from YAML."""
    path = Path(name).expanduser()
    is_json = path.suffix.lower() not in (".yaml", ".yml") and text.lstrip()[:1] in ("{", "/", "#", "")
    if is_json or path.suffix.lower() == ".json":
        syntax, (tree, findings, is_clean) = Syntax.JSON, _read_json(text, name)
    else:
        syntax, (tree, findings, is_clean) = Syntax.YAML, _read_yaml(text, name)
    if tree is not None and _depth(tree) > MAX_DEPTH:
        tree, findings = None, [_broken(name, syntax, f"it is nested more than {MAX_DEPTH} levels deep")]
    return ReadFile(name=name, path=path, syntax=syntax, tree=tree, findings=tuple(findings), is_clean=is_clean)


Read = tuple[Tree | None, list[Finding], bool]


def _read_json(text: str, name: str) -> Read:
    twice: list[str] = []
    try:
        return _as_tree(_loads(text, twice), name, Syntax.JSON, [*_twice(name, twice)], not twice)
    except (ValueError, RecursionError) as error:
        first = error
    twice.clear()
    bare, what = _without_comments(text)
    try:
        tree = _loads(bare, twice)
    except (ValueError, RecursionError):
        return _read_hjson(text, name, first)
    return _as_tree(tree, name, Syntax.JSON, [_only_hjson(name, what, first), *_twice(name, twice)], False)


def _read_hjson(text: str, name: str, first: BaseException) -> Read:
    """Return what DeepSpeed's own reader makes of ``text``: HJSON, where it is no template."""
    found = JSON_PLACEHOLDER.search(re.sub(r'"(?:\\.|[^"\\])*"', '""', text))
    if found is None:
        try:
            import hjson

            tree = json.loads(json.dumps(hjson.loads(text)))
            if isinstance(tree, dict) and tree:
                return tree, [_only_hjson(name, "quotes or commas that are missing", first)], False
        except Exception:  # hjson is not installed, or cannot read it either: it raises whatever it likes
            pass
    return None, [_broken(name, Syntax.JSON, _where(first), placeholder=found.group(0) if found else "")], False


def _loads(text: str, twice: list[str]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> Tree:
        found: Tree = {}
        for key, value in items:
            if key in found:
                twice.append(key)
            found[key] = value
        return found

    return json.loads(text, object_pairs_hook=pairs)


_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|(//[^\n]*|#[^\n]*|/\*.*?\*/)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)


def _without_comments(text: str) -> tuple[str, str]:
    """Return ``text`` without comments and trailing commas, and which of them it had."""
    plain = _STRING_OR_COMMENT.sub(lambda match: match.group(1) or " ", text)
    bare = _TRAILING_COMMA.sub(lambda match: match.group(1) or "", plain)
    had = [
        word
        for word, is_there in (("comments", plain != text), ("a comma before a bracket", bare != plain))
        if is_there
    ]
    return bare, " and ".join(had) or "text that is no JSON"


def _read_yaml(text: str, name: str) -> Read:
    import yaml

    twice: list[str] = []

    class Loader(yaml.SafeLoader):
        """As accelerate and transformers read, but it tells which keys stand twice."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Tree:
        loader.flatten_mapping(node)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                twice.append(key.value)
            seen.add(str(key.value))
        return {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        tree = yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError) as error:
        found = PLACEHOLDER.search(text)
        return None, [_broken(name, Syntax.YAML, _where(error), placeholder=found.group(0) if found else "")], False
    return _as_tree(tree, name, Syntax.YAML, [*_twice(name, twice)], not twice)


def _as_tree(value: Any, name: str, syntax: Syntax, findings: list[Finding], is_clean: bool) -> Read:
    if isinstance(value, dict) and value:
        return _text_keys(value), findings, is_clean
    what = "it is empty" if not value else f"it holds a {type(value).__name__}, not keys with values"
    return None, [*findings, _broken(name, syntax, what)], False


def _text_keys(value: Any, depth: int = 0) -> Any:
    """Return a tree whose keys are text: YAML takes ``on:`` and ``2:`` for other things."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _text_keys(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_text_keys(each, depth + 1) for each in value]
    return value


def _depth(value: Any, depth: int = 0) -> int:
    if depth > MAX_DEPTH + 1 or not isinstance(value, dict | list) or not value:
        return depth
    inner = value.values() if isinstance(value, dict) else value
    return max(_depth(each, depth + 1) for each in inner)


def _where(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested beyond reason"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    told = getattr(error, "problem", None) or next(iter(str(error).splitlines()), type(error).__name__)
    return f"{place}{told}"


def _broken(name: str, syntax: Syntax, what: str, *, placeholder: str = "") -> Finding:
    is_json = syntax is Syntax.JSON
    template = f" ({placeholder} is a placeholder: the file is a template)" if placeholder else ""
    return Finding(
        severity=Severity.ERROR,
        topic=Topic.UNREADABLE if is_json else Topic.UNREADABLE_YAML,
        file=name,
        key="",
        message=f"this is not {syntax.upper()}: {what}{template}",
        fix=f"put a value in place of {placeholder}" if placeholder else "correct the text at that place",
    )


def _only_hjson(name: str, what: str, error: BaseException) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        topic=Topic.HINT,
        file=name,
        key="",
        message=f"not plain JSON ({what}; {_where(error)}): DeepSpeed's own reader (HJSON) takes it, accelerate and "
        f"transformers stop",
        fix="write plain JSON (--fix does)",
    )


def _twice(name: str, keys: list[str]) -> list[Finding]:
    return [
        Finding(
            severity=Severity.ERROR,
            topic=Topic.CONTRADICTION,
            file=name,
            key=key,
            message=f"{key} stands twice in one block: DeepSpeed refuses the file, other readers take the last one",
            fix=f"keep one {key} (--fix keeps the last)",
        )
        for key in dict.fromkeys(keys)
    ]
