"""The pages of the reference, made from the code: a Sphinx extension for lines such as `<!-- made: settings -->`.

What is behind `made:` is one of the functions in `MADE` and its arguments. Links that leave docs/, such as
`../SECURITY.md`, go to the page that includes the file, or to the file itself.
"""

import ast
import dataclasses
import inspect
import os
import re
import tomllib
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INCLUDED = {  # a file outside of docs/ and its page
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security_policy",
    "examples/flower_quickstart/README.md": "flower_quickstart",
}
PLACE = re.compile(r"^<!-- made: (\w+) ?(.*) -->$", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
GIVEN = ("shape", "classes")  # what a model is given by its data: no file says it


class Option(NamedTuple):
    """A field of a class: its name, type and default, and the comment beside or above it."""

    name: str
    type: str
    default: str
    meaning: str


def options(kind: type) -> list[Option]:
    """What can be said of an object of a class, in order."""
    notes = {name: note for base in _own(kind) for name, note in _notes(base).items()}
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # a name for type checkers only
        hints = {}
    found = []
    for name, one in inspect.signature(kind).parameters.items():
        hint = hints.get(name, Any)
        hint = type(one.default) if hint is Any and one.default not in (None, one.empty) else hint
        found.append(Option(name, words(hint), _default(kind, one), notes.get(name, "")))
    given = GIVEN if kind.__module__.startswith("fedfilt.models.") else ()
    return [option for option in found if option.name not in given]


def _own(kind: type) -> list[type]:
    """A class and the classes of fedfilt that it is made from, these first."""
    return [base for base in reversed(kind.__mro__) if base.__module__.startswith("fedfilt.")]


def _default(kind: type, parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return ""
    fields = {field.name: field for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    made = getattr(fields.get(parameter.name), "default_factory", dataclasses.MISSING)
    value = parameter.default if made is dataclasses.MISSING else made()
    return written(value)


def written(value: Any) -> str:
    """A default as a file has it."""
    from fedfilt._parts import name_of

    if folder := _folder(type(value)):
        return f'"{name_of(value, folder)}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return "" if value is None or dataclasses.is_dataclass(value) or value == {} else f"{value}"


def _folder(kind: Any) -> str:
    """The folder of a part, "" for other classes."""
    from fedfilt._parts import FOLDERS

    package = kind.__module__.split(".")
    return package[1] if len(package) == 3 and package[1] in FOLDERS else ""


def words(hint: Any) -> str:
    """A type as a file has it.

    >>> words(int | tuple[int, int]), words(tuple[str, ...])
    ('whole number or list of whole numbers', 'list of texts')
    """
    several = typing.get_args(hint)
    known = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    if hint in known:
        return known[hint]
    if typing.get_origin(hint) is tuple and several:
        inner = words(several[0])
        return "list of lists" if inner.startswith("list") else f"list of {inner}s"
    if (several and type(None) in several) or isinstance(hint, type(int | str)):
        return " or ".join(words(one) for one in several if one is not type(None))
    if dataclasses.is_dataclass(hint):
        return "part" if _folder(hint) else "table"
    return "part" if "Callable" in str(hint) else "" if hint is Any else getattr(hint, "__name__", str(hint))


def _notes(kind: type) -> dict[str, str]:
    """The comment of every field of a class body."""
    lines = inspect.getsource(kind).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    notes = {}
    for node in getattr(body, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.end_lineno or node.lineno
            beside = lines[last - 1].encode()[node.end_col_offset or 0 :].decode()
            above = lines[node.lineno - 2].strip()
            note = beside if "#" in beside else above if above.startswith("#") else ""
            notes[node.target.id] = note.partition("#")[2].strip()
    return notes


def table(rows: list[Option], prefix: str = "") -> str:
    """Options as a table in Markdown."""
    if not rows:
        return ""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, meaning in rows:
        lines.append(f"| {code(prefix + name)} | {cell(kind)} | {code(default)} | {cell(meaning)} |")
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def cell(text: str) -> str:
    """Text in a table: bars are escaped, and so is what Markdown would take for markup outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|").replace("\n", " "))
    return "".join(part if part.startswith("`") else re.sub(r"([\[\]<>*_])", r"\\\1", part) for part in parts)


def summary(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


# --- what can be made ---------------------------------------------------------------------------------------------


def settings() -> str:
    """Every table of an experiment, from the dataclasses that it becomes."""
    from fedfilt.runs.config import DEFAULTS, PARTS, Config

    hints = typing.get_type_hints(Config)
    plain, tables = [], []
    for option in options(Config):
        key, hint = option.name, hints[option.name]
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if key in PARTS:
            folder = PARTS[key][0]
            own = (
                [] if hint is Any else [row for row in options(hint) if row.name not in ("name", "options", "topology")]
            )
            tables.append(
                f"## [{key}]\n\n{capital(option.meaning)} `{key}.name` is one of the [{folder}]({folder}.md), "
                f"`{written(DEFAULTS[key])}` by default, or `module:Class`. Its options are the other keys"
                f"{', and these of all of them:' if own else '.'}\n\n{table(own, f'{key}.')}"
            )
        elif dataclasses.is_dataclass(inner):
            name = f"[{key}]" if inner is hint else f"[[{key}]]"
            what = capital(re.sub(r"(^| ?:? )[Tt]he table \[\w+\]:? ?|An entry of \S+ ", "", summary(inner)))
            tables.append(f"## {name}\n\n{cell(what)}\n\n{table(options(typing.cast(type, inner)), f'{key}.')}")
        else:
            plain.append(option)
    return "\n".join(["## The experiment itself\n", table(plain), *tables])


def capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def listing() -> str:
    """All defaults as a file."""
    import fedfilt

    return f"```toml\n{fedfilt.load(None).toml()}```\n"


def parts(folder: str) -> str:
    """Every part of a folder: what it is, its options, an example."""
    from fedfilt import _parts

    found = {name: _parts.find(folder, name) for name in _parts.names(folder)}
    lines = ["| name | what it is |", "|---|---|"]
    lines += [f"| [`{name}`](#{name}) | {cell(summary(part))} |" for name, part in found.items()]
    for name, part in found.items():
        rows = [] if folder == "engines" else options(part)
        lines += [f"\n## {name}\n", _auto(f"fedfilt.{folder}", part.__name__, ()), table(rows)]
    return "\n".join(lines)


def names(*wanted: str) -> str:
    """Public names of fedfilt, or of a module in it (`flower.GFedFilt`): signature, docstring, example, source."""
    import fedfilt

    return "\n".join(_named(fedfilt, name) for name in wanted)


def _named(package: Any, name: str) -> str:
    from importlib import import_module

    folder, _, name = name.rpartition(".")
    module = import_module(f"fedfilt.{folder}") if folder else package
    thing = getattr(module, name)
    rows = options(thing) if isinstance(thing, type) and (dataclasses.is_dataclass(thing) or _is_row(thing)) else []
    lines = [f"| {code(row.name)} | {cell(row.meaning)} |" for row in rows if row.meaning]
    fields = "\n".join(["", "| field | meaning |", "|---|---|", *lines, ""]) if lines else ""
    return _auto(module.__name__, name, ("members",)) + fields


def _is_row(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _auto(module: str, name: str, flags: tuple[str, ...]) -> str:
    from importlib import import_module

    thing = getattr(import_module(module), name)
    kind = "exception" if isinstance(thing, type) and issubclass(thing, Exception) else "class"
    kind = kind if isinstance(thing, type) else "function"
    lines = [f".. auto{kind}:: {module}.{name}", *(f"   :{flag}:" for flag in flags if kind == "class")]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def commands() -> str:
    """Every command with its arguments and options."""
    import typer

    from fedfilt.cli import app

    return "\n".join(_commands(typer.main.get_command(app), ["fedfilt"]))


def _commands(command: Any, path: list[str]) -> Iterator[str]:
    import click

    inner = getattr(command, "commands", None)
    if inner is None:
        context = click.Context(command, info_name=" ".join(path))
        usage = " ".join([*path, *command.collect_usage_pieces(context)])
        yield f"## {' '.join(path)}\n\n{_help(command.help)}\n\n```\n{usage}\n```\n"
        rows = [_row(one, context) for one in command.params if one.name != "help"]
        if rows:
            yield "\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]) + "\n"
        return
    for name, one in inner.items():
        yield from _commands(one, [*path, name])


def _help(text: str | None) -> str:
    return re.sub(r"(?<!`)([<>\[\]*])(?!`)", r"\\\1", inspect.cleandoc(text or "").replace("\b\n", ""))


def _row(one: Any, context: Any) -> str:
    if one.param_type_name == "argument":
        name, shown = code(one.make_metavar(context)), ""
    else:
        value = "" if one.is_flag or one.count else f" {one.make_metavar(context)}"
        name = ", ".join(code(flag + value) for flag in [*one.opts, *one.secondary_opts])
        told = one.show_default if isinstance(one.show_default, str) else one.default
        shown = "" if told is None or told is False or told == () or callable(told) else f"{told}"
    variable = f" Also: `{one.envvar}` in the environment." if one.envvar else ""
    return f"| {name} | {cell(one.help or '')}{variable} | {code(shown)} |"


def file(path: str) -> str:
    """A page that lies outside of docs/."""
    return (ROOT / path).read_text(encoding="utf-8")


MADE: dict[str, Callable[..., str]] = {one.__name__: one for one in (settings, listing, parts, names, commands, file)}


# --- Sphinx -------------------------------------------------------------------------------------------------------


def filled(text: str, page: Path) -> str:
    """A page with what is made for it, and links that work on the site."""
    source = {name: path for path, name in INCLUDED.items()}.get(page.stem) if page.parent == DOCS else None
    base = (ROOT / source).parent if source else page.parent
    made = PLACE.sub(lambda found: MADE[found[1]](*found[2].split()), text)
    return LINK.sub(lambda found: _linked(found[1], found[2] or "", base, page), made)


def _linked(target: str, anchor: str, base: Path, page: Path) -> str:
    """A link as the site needs it: `target` is a path from `base`, and the page is elsewhere."""
    path = Path(os.path.normpath(base / target))
    if not path.is_relative_to(ROOT) or not path.exists():
        return target + anchor  # Sphinx says that it leads nowhere
    inside = str(path.relative_to(ROOT))
    if inside in INCLUDED:
        path = DOCS / f"{INCLUDED[inside]}.md"
    elif not path.is_relative_to(DOCS) and repository():
        return f"{repository()}/{'tree' if path.is_dir() else 'blob'}/main/{inside}{anchor}"
    elif path.is_dir():
        path, anchor = DOCS / "repository.md", ""
    return os.path.relpath(path, page.parent) + anchor


def repository() -> str:
    """Where the source is, if pyproject.toml says so; without, linked files come along with the site."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    return next((url.rstrip("/") for name, url in urls.items() if name.lower() in ("repository", "source")), "")


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""

    def read(_: Any, name: str, source: list[str]) -> None:
        source[0] = filled(source[0], Path(app.srcdir) / f"{name}.md")

    def docstring(_: Any, what: str, name: str, thing: Any, settings: Any, lines: list[str]) -> None:
        text = "\n".join(lines)
        for paragraph in text.split("\n\n"):
            if ">>>" not in paragraph:
                plain = re.sub(r"(\||(?<!\w)\*\*(?=[\w{]))", r"\\\1", paragraph)
                text = text.replace(paragraph, re.sub(r"`?docs/(\w+)\.md`?", r":doc:`/\1`", plain))
        lines[:] = text.split("\n")

    def signature(_: Any, what: str, name: str, thing: Any, settings: Any, given: str, back: str) -> tuple[str, str]:
        return shorter(given), shorter(back)

    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True}


def shorter(text: str | None) -> Any:
    """A signature with arrays called Array, as in the code."""
    return text and re.sub(r"~?numpy\.ndarray\[.*?\], ~?numpy\.dtype\[[^\]]*\]\]", "Array", text)
