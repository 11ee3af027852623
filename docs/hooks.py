"""What the site has beyond the pages: the references of settings and functions, and files that pages show.

mkdocs calls the functions `on_…`; settings.md and api.md say where the references go.
"""

import dataclasses
import enum
import inspect
import io
import pathlib
import re
import tokenize
from typing import Any

import tqpo
from tqpo.algorithms import presets
from tqpo.envs import TASKS
from tqpo.envs.config import TaskConfig
from tqpo.training.job import Job

ROOT = pathlib.Path(__file__).parents[1]
OUTSIDE = re.compile(r"\]\(\.\./((?:results|examples)/[^)#]+)\)")


def on_files(files, config):
    """Pictures and examples that a page links to outside `docs/` become part of the site."""
    from mkdocs.structure.files import File

    for page in list(files.documentation_pages()):
        for name in OUTSIDE.findall(page.content_string):
            if files.get_file_from_path(name) is None:
                files.append(File(name, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown, page, **_):
    markdown = OUTSIDE.sub(r"](\1)", markdown)
    for marker, write in {"<!-- settings -->": reference, "<!-- functions -->": functions}.items():
        markdown = markdown.replace(marker, write()) if marker in markdown else markdown
    return markdown


def functions() -> str:
    """What `import tqpo` gives, and the classes that it returns, for mkdocstrings to write out."""
    given = [getattr(tqpo, name) for name in sorted(tqpo.__all__, key=lambda name: name != "train")]
    returned = dict.fromkeys(inspect.signature(f).return_annotation for f in given)
    own = [c for c in returned if inspect.isclass(c) and c.__module__.startswith("tqpo")]
    return "\n\n".join(f"::: {x.__module__}.{x.__qualname__}" for x in (*given, *own))


def reference() -> str:
    """Every setting with its default, and that of each preset which has another."""
    columns = {  # preset, whether on the host → algorithm → config
        "host" if host else name: {algo: presets.preset(name, algo, host=host) for algo in presets.PRESETS[name]}
        for name in sorted(presets.PRESETS, key=lambda name: name != Job.preset)
        for host in (False, True)
        if not host or name == Job.preset
    }
    groups: dict[type, dict[str, dict[str, dict[str, Any]]]] = {}  # class → field → column → algorithm → value
    for column, by_algo in columns.items():
        for algo, config in by_algo.items():
            for cls, name, value in leaves(config):
                groups.setdefault(cls, {}).setdefault(name, {}).setdefault(column, {})[algo] = value
    job = {f.name: [shown(default_of(f))] for f in dataclasses.fields(Job)}
    parts = [table("The job", Job, ["default"], job)]
    for cls, rows in groups.items():
        cells = {name: [by_algorithm(row[Job.preset]), elsewhere(row)] for name, row in rows.items()}
        parts.append(table(title_of(cls), cls, [f"`{Job.preset}`", "others, where they differ"], cells))
    fields = [
        f.name for f in dataclasses.fields(TaskConfig) if not dataclasses.is_dataclass(getattr(TaskConfig, f.name))
    ]
    tasks = {name: [shown(getattr(TaskConfig(), name)), differing(name)] for name in fields}
    parts.append(table("A task (`--task-set`)", TaskConfig, ["default", "tasks that differ"], tasks))
    return "\n\n".join(parts)


def differing(name: str) -> str:
    """Which tasks have another value of a constant than the default."""
    values = {task: shown(getattr(config, name)) for task, config in TASKS.items()}
    return grouped({task: x for task, x in values.items() if x != shown(getattr(TaskConfig(), name))})


def elsewhere(row: dict[str, dict[str, Any]]) -> str:
    """The presets whose value is not the usual one."""
    values = {column: by_algorithm(found) for column, found in row.items()}
    return grouped({column: x for column, x in values.items() if x != values[Job.preset]})


def grouped(values: dict[str, str]) -> str:
    """Names that share a value, with it."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(f"`{name}`")
    return "<br>".join(f"{', '.join(group)}: {value}" for value, group in names.items())


def leaves(config: Any):
    """(class, field, value) of every setting inside a config that is not itself settings."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        inner = value[:1] if field.name == "constraints" else (value,)
        for x in inner:
            if dataclasses.is_dataclass(x):
                yield from leaves(x)
            else:
                yield type(config), field.name, value


def title_of(cls: type) -> str:
    """A heading: the algorithm that a `Config` is of, or what the settings are about."""
    algorithm = cls.__module__.rpartition(".")[2].replace("_", "-")
    known = {"LearnerConfig": "Batches and PPO", "NetworkSpec": "The network", "DualConfig": "How λ moves"}
    return f"`{algorithm}` alone" if cls.__name__ == "Config" else known.get(cls.__name__, f"A {cls.__name__.lower()}")


def table(title: str, cls: type, heads: list[str], rows: dict[str, list[str]]) -> str:
    said = meanings(cls)
    lines = [f"| setting | {' | '.join(heads)} | meaning |", "|---" * (len(heads) + 2) + "|"]
    lines += [f"| `{name}` | {' | '.join(cells)} | {escaped(said[name])} |" for name, cells in rows.items()]
    about = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    return f"## {title}\n\n{'' if cls.__name__ == 'Config' else escaped(about)}\n\n" + "\n".join(lines)


def meanings(cls: type) -> dict[str, str]:
    """The comment after each field, or on the lines under it."""
    found, name = {}, ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(cls)).readline):
        if token.type == tokenize.NAME and token.start[1] == 4 and re.match(r"\s*\w+:", token.line):
            name = token.string
            found.setdefault(name, "")
        elif token.type == tokenize.COMMENT and name:
            found[name] = f"{found[name]} {token.string.removeprefix('#').strip()}".strip()
        elif token.type == tokenize.NAME and token.string == "def":
            break
    return found


def default_of(field: dataclasses.Field) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def by_algorithm(values: dict[str, Any]) -> str:
    """The value that most algorithms have, and the others with their names."""
    algorithms: dict[str, list[str]] = {}
    for algo, value in values.items():
        algorithms.setdefault(shown(value), []).append(algo)
    usual, *others = sorted(algorithms, key=lambda value: -len(algorithms[value]))
    return "; ".join([usual, *(f"{value} ({', '.join(algorithms[value])})" for value in others)])


def shown(value: Any) -> str:
    if isinstance(value, enum.IntEnum):
        return f"{int(value)} ({value.name.lower()})"
    if isinstance(value, float):
        return f"{value:g}"
    if type(value) is int:
        return f"{value:,}"
    if isinstance(value, tuple | list | dict) and not value:
        return "–"
    return escaped("–" if value is None else str(value))


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
