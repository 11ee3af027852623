"""Results as tables: in the terminal, as Markdown and as LaTeX. A table is a title, columns and rows of text."""

import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tqpo.reproduce.cells import read
from tqpo.reproduce.paper import OMNISAFE, SUITE, TABLE1, TABLE2, UNLEVELLED

Cells = dict[str, dict[str, Any]]  # by `Cell.name`

NAMES = {
    "qcpo": "QCPO",
    "tqpo": "TQPO",
    "ppo-lag": "PPO-Lagrangian",
    "tqpo-baseline": "TQPO + baseline",
    "qcpo-tilt": "QCPO + tilt",
    "tqpo-no-tilt": "TQPO, no tilt",
    "tqpo-fixed-tilt": "TQPO, fixed tilt",
    "tqpo-released-tilt": "TQPO, released tilt",
}
Z = 1.959964  # of a 95 % interval


class Content(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def load(paths: Iterable[pathlib.Path]) -> Cells:
    """The cells that are there, complete or not."""
    cells = {path.stem: read(path) for path in paths}
    return {name: cell for name, cell in cells.items() if cell and "last_tenth" in cell}


def percent(pair: Sequence[float | None] | None) -> list[float | None]:
    return [None if x is None else 100 * x for x in pair or ()]


def plus_minus(pair: Sequence[float | None], form: str) -> str:
    return " ± ".join(form.format(x) for x in pair if x is not None)


def beside(ours: Any, paper: Any, form: str, printed: str) -> tuple[str, str, str]:
    """Mean ± deviation of ours and of the paper, and their difference; dashes where the paper has none."""
    if not paper:
        return plus_minus(ours, form), "–", "–"
    return plus_minus(ours, form), plus_minus(paper, printed), f"{ours[0] - paper[0]:+.1f}"


def interval(estimate: dict[str, float], scale: float = 1.0) -> str:
    value, low, high = (f"{scale * estimate[name]:.1f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def each(shares: Iterable[float]) -> str:
    """The share of each seed in percent."""
    return " ".join(f"{100 * x:.0f}" for x in shares)


def name_of(cell: dict[str, Any]) -> str:
    settings = cell["settings"]
    known = NAMES.get(settings["algo"]) or str(settings["algo"])
    return known if settings["preset"] == "paper" else f"{known}, {settings['preset']} preset"


def heading(cell: dict[str, Any]) -> tuple[str, str, str]:
    settings = cell["settings"]
    level = "–" if settings["algo"] == "ppo-lag" else f"{settings['safety']:.0%}"
    return settings["task"], level, name_of(cell) + ("" if cell["complete"] else " (not complete)")


def ordered(cells: Cells) -> list[dict[str, Any]]:
    """By task and level; PPO-Lagrangian, QCPO and TQPO before what the paper does not have."""
    tasks = list(dict.fromkeys(c.task for c in TABLE1))
    algos = ["ppo-lag", "qcpo", "qcpo-tilt", "tqpo-no-tilt", "tqpo-fixed-tilt", "tqpo", "tqpo-baseline"]

    def place(cell: dict[str, Any]) -> tuple:
        s = cell["settings"]
        task = tasks.index(s["task"]) if s["task"] in tasks else len(tasks)
        algo = algos.index(s["algo"]) if s["algo"] in algos else len(algos)
        return task, 0 if s["algo"] == "ppo-lag" else s["safety"], s["preset"] != "paper", s["preset"], algo

    return sorted(cells.values(), key=place)


def against_paper(cells: Iterable[dict[str, Any]], title: str) -> Content:
    """Paper – ours – difference, over the last tenth of training."""
    columns = ("task", "level", "algorithm", "R", "paper", "Δ", "Pr [%]", "paper", "Δ", "Pr of each seed [%]")
    rows = []
    for cell in cells:
        last, paper = cell["last_tenth"], cell["published"] or {}
        reward = beside(last["return_mean_std"], paper.get("episode_return"), "{:.1f}", "{:g}")
        shares = percent(last["safety_prob_mean_std"]), percent(paper.get("safety_prob"))
        rows.append((*heading(cell), *reward, *beside(*shares, "{:.1f}", "{:.0f}"), each(last["safety_prob"])))
    return Content(title, columns, rows)


def table1(cells: Cells) -> Content:
    names = {c.name for c in TABLE1}
    extra = {
        ("ppo-lag", "paper"),
        ("tqpo-baseline", "paper"),
        ("tqpo", "fast"),
        ("budget", "fast"),
        ("budget-dial", "fast"),
    }
    ours = {n for n, c in cells.items() if (c["settings"]["algo"], c["settings"]["preset"]) in extra}
    chosen = {name: cell for name, cell in cells.items() if name in names | ours}
    return against_paper(ordered(chosen), "Table 1, with PPO-Lagrangian and rows of ours: the last tenth of training")


def table2(cells: Cells) -> Content:
    chosen = {c.name: cells[c.name] for c in TABLE2 if c.name in cells}
    return against_paper(ordered(chosen), "Table 2, the ablations at 95 %: the last tenth of training")


def released(cells: Cells, paper_preset: Cells) -> Content:
    """As the authors' code has it, beside the paper and the `paper` preset."""
    columns = ("task", "level", "algorithm", "R, paper", "`paper`", "`released`", "Pr, paper", "`paper`", "`released`")
    rows = []
    for cell in (c for c in ordered(cells) if c["settings"]["preset"] == "released" and c["published"]):
        s, published = cell["settings"], cell["published"]
        other = paper_preset.get(f"{s['task']}-{s['algo']}-{100 * s['safety']:g}-paper")
        lasts = [c["last_tenth"] if c else None for c in (other, cell)]
        reward = [plus_minus(x["return_mean_std"], "{:.1f}") if x else "–" for x in lasts]
        safe = [plus_minus(percent(x["safety_prob_mean_std"]), "{:.1f}") if x else "–" for x in lasts]
        printed = (
            plus_minus(published["episode_return"], "{:g}"),
            plus_minus(percent(published["safety_prob"]), "{:.0f}"),
        )
        task, level, name = heading(cell)
        name = name.replace(", released preset", "")
        rows.append(
            (task, level, name, printed[0], *reward, printed[1], *safe, each(cell["last_tenth"]["safety_prob"]))
        )
    title = "The released code's configuration: the last tenth of training"
    return Content(title, (*columns, "Pr of each seed"), rows)


def readings(cells: Cells) -> Content:
    """Ways to read the paper's R and Pr, all of the same runs."""
    ways = ("last tenth", "last 100 episodes", "discounted, fresh")
    columns = ("task", "level", "algorithm", "R, paper", *ways, "Pr, paper", *ways)
    rows = []
    for cell in (c for c in ordered(cells) if c["published"]):
        curves = cell["curves"]
        window = {"return": curves["return_mean"][-1], "safety_prob": curves["safety_prob"][-1]}
        found = [cell["last_tenth"], cell.get("last_window", window), cell.get("discounted")]
        mean = {k: [sum(x[k]) / len(x[k]) if x else None for x in found] for k in ("return", "safety_prob")}
        reward = ["–" if x is None else f"{x:.1f}" for x in mean["return"]]
        safe = ["–" if x is None else f"{100 * x:.1f}" for x in mean["safety_prob"]]
        published = cell["published"]
        printed = f"{published['episode_return'][0]:g}", f"{100 * published['safety_prob'][0]:.0f}"
        rows.append((*heading(cell), printed[0], *reward, printed[1], *safe))
    return Content("Readings of R and Pr, means over seeds", columns, rows)


def protocols(cells: Cells) -> Content:
    """The last tenth of training beside fresh episodes of the final policy."""
    numbers = ("R, training", "R, fresh", "Pr, training", "Pr, fresh", "Pr of each seed, fresh")
    rows = []
    for cell in ordered(cells):
        if not (fresh := cell.get("fresh")):
            continue
        last, pooled = cell["last_tenth"], fresh["pooled"]
        reward = f"{last['return_mean_std'][0]:.1f}", interval(pooled["return"])
        safe = f"{100 * last['safety_prob_mean_std'][0]:.1f}", interval(pooled["constraints"][0]["safety_prob"], 100)
        own = each(s["constraints"][0]["safety_prob"]["value"] for s in fresh["seeds"])
        rows.append((*heading(cell), *reward, *safe, own))
    title = "Two protocols: training episodes, and fresh episodes of the final policies (95 % intervals)"
    return Content(title, ("task", "level", "algorithm", *numbers), rows)


def certificates(cells: Cells) -> Content:
    """How the choice among snapshots ended, where a cell has one: which seeds are certified, after how many episodes."""
    rows = []
    for cell in ordered(cells):
        found = [x for x in (cell.get("certificates") or {}).values() if x]
        if found and "dial" not in cell:
            task, _, name = heading(cell)
            certified = sum(x["word"] == "certified" for x in found)
            each = ", ".join(f"{x['word']} {x['episodes']:,}" for x in found)
            rows.append((task, f"{cell['settings']['safety']:.0%}", name, f"{certified} of {len(found)}", each))
    columns = ("task", "level", "algorithm", "certified", "each seed, after so many episodes")
    return Content("Certificates of the kept policies, at 95 % confidence", columns, rows)


def dial(cells: Cells) -> Content:
    """What each run with a dial gives at every level: certificates, and fresh episodes of the certified positions."""
    columns = ("task", "level", "certified", "episodes", "R, fresh", "Pr, fresh", "R of each seed")
    rows = []
    for cell in (c for c in ordered(cells) if "dial" in c):
        seeds = list(cell["dial"].values())
        for level in seeds[0]:
            found = [seed[level] for seed in seeds]
            words = [x["certificate"]["word"] for x in found]
            counts = [x["certificate"]["episodes"] for x in found]
            reward, safe = ([x["fresh"][name] for x in found] for name in ("return", "safety_prob"))
            own = " ".join(f"{x:.1f}" if word == "certified" else "–" for x, word in zip(reward, words, strict=True))
            means = f"{sum(reward) / len(reward):.1f}", f"{100 * sum(safe) / len(safe):.1f}"
            certified = f"{words.count('certified')} of {len(words)}"
            span = f"{min(counts):,} to {max(counts):,}"
            rows.append((cell["settings"]["task"], f"{float(level):.0%}", certified, span, *means, own))
    return Content("One run for all levels: certified positions of the dial", columns, rows)


def ablation(cells: Cells, whole: Cells) -> Content:
    """Variants beside the algorithm itself, fresh episodes: return, safety, and how many seeds are at their level."""
    known = {c["settings"]["algo"] for c in cells.values()}
    kept = whole | cells if "budget-blind" in known else {}
    groups: dict[str, dict[tuple[str, float], str]] = {}
    for cell in (c for c in ordered(kept) if c.get("fresh") and c["settings"]["preset"] == "fast"):
        s, seeds = cell["settings"], cell["fresh"]["seeds"]
        safe = [x["constraints"][0]["safety_prob"]["value"] for x in seeds]
        reward = sum(x["return"]["value"] for x in seeds) / len(seeds)
        at = sum(x >= s["safety"] for x in safe)
        text = f"{reward:.1f} @ {100 * sum(safe) / len(safe):.1f}, {at}/{len(safe)}"
        groups.setdefault(s["algo"], {})[s["task"], s["safety"]] = text
    places = sorted({place for row in groups.values() for place in row}, key=lambda x: (x[0] != "SimpleEnv", x))
    rows = [(algo, *(row.get(place, "–") for place in places)) for algo, row in groups.items()]
    columns = ("algorithm", *(f"{task} {level:.0%}" for task, level in places))
    return Content("What its parts do: R @ Pr [%] in fresh episodes, seeds at their level", columns, rows)


def leaderboard(cells: Cells) -> Content:
    """The suite in fresh episodes: return, safety, mean cost, certificates; OmniSafe's published means beside it."""
    columns = ("task", "level", "algorithm", "R", "Pr [%]", "mean cost", "certified")
    rows, own = [], {c.name for c in SUITE}
    shown = [c for name, c in cells.items() if name in own and c.get("fresh")]
    for task in dict.fromkeys(c.task for c in SUITE):
        for cell in ordered({str(i): c for i, c in enumerate(shown) if c["settings"]["task"] == task}):
            pooled, found = cell["fresh"]["pooled"], [x for x in (cell.get("certificates") or {}).values() if x]
            first = pooled["constraints"][0]
            certified = f"{sum(x['word'] == 'certified' for x in found)} of {len(found)}" if found else "–"
            numbers = (
                interval(pooled["return"]),
                interval(first["safety_prob"], 100),
                interval(first["episode_cost_mean"]),
            )
            _, level, name = heading(cell)
            rows.append((task, "–" if cell["settings"]["algo"] in UNLEVELLED else level, name, *numbers, certified))
        for algo, published in OMNISAFE.items() if any(row[0] == task for row in rows) else ():
            if found := published.get(task.removeprefix("SafetyPoint")):
                rows.append((task, "–", f"{algo}, OmniSafe", f"{found[0]:g}", "–", f"{found[1]:g}", "–"))
    return Content("The suite at d = 25, fresh episodes; OmniSafe's limit is on the mean", columns, rows)


def price(cells: Cells, others: Cells) -> Content:
    """The return of each cell of `budget` as a share of what PPO earns without a constraint, which others may know."""
    free = {
        c["settings"]["task"]: fresh_return(c)
        for c in (others | cells).values()
        if c["settings"]["algo"] == "ppo" and c.get("fresh")
    }
    rows = []
    for cell in (c for c in ordered(cells) if c["settings"]["algo"] == "budget" and c.get("fresh")):
        task, level, _ = heading(cell)
        if task in free:
            reward = fresh_return(cell)
            rows.append((task, level, f"{reward:.1f}", f"{free[task]:.1f}", f"{100 * reward / free[task]:.0f} %"))
    return Content("The price of safety", ("task", "level", "R, budget", "R, PPO without a constraint", "kept"), rows)


def fresh_return(cell: dict[str, Any]) -> float:
    return cell["fresh"]["pooled"]["return"]["value"]


def is_judged(cell: dict[str, Any]) -> bool:
    return bool(cell.get("judge") and cell["judge"]["mujoco"])


def judge(cells: Cells) -> Content:
    """The same policies in MuJoCo and in JAX."""
    columns = ("task", "level", "algorithm", "episodes", "R, MuJoCo", "R, JAX", "Pr, MuJoCo", "Pr, JAX", "agree")
    rows = []
    for cell in filter(is_judged, ordered(cells)):
        both = [cell["judge"][simulator]["pooled"] for simulator in ("mujoco", "jax")]
        reward, safe = [x["return"] for x in both], [x["constraints"][0]["safety_prob"] for x in both]
        same = " ".join(name for name, pair in (("R", reward), ("Pr", safe)) if agree(*pair)) or "neither"
        texts = (*map(interval, reward), *(interval(x, 100) for x in safe))
        rows.append((*heading(cell), str(both[0]["episodes"]), *texts, same))
    return Content("MuJoCo as the judge: final policies of two seeds of each cell", columns, rows)


def agree(a: dict[str, float], b: dict[str, float]) -> bool:
    """Whether the 95 % interval of the difference holds 0, each side's error taken from its own interval."""
    errors = [(x["high"] - x["low"]) / (2 * Z) for x in (a, b)]
    return abs(a["value"] - b["value"]) <= Z * math.hypot(*errors)


def times(cells: Cells) -> Content:
    """How long each program ran."""
    programs: dict[tuple, list[dict[str, Any]]] = {}
    for cell in ordered(cells):
        if timing := cell.get("group"):
            programs.setdefault((cell["settings"]["task"], timing["total_s"]), []).append(cell)
    rows = []
    for (task, seconds), members in programs.items():
        timing = members[0]["group"]
        names = ", ".join(dict.fromkeys(name_of(c) for c in members))
        trained = timing["first_chunk_s"] + timing["train_s"]
        rows.append((task, names, str(timing["runs"]), f"{trained:.0f}", f"{seconds:.0f}"))
    columns = ("task", "algorithms", "runs", "training [s]", "in all [s]")
    return Content("Wall-clock time of each program, several of them sharing one GPU", columns, rows)


def rich_table(content: Content):
    from rich.table import Table

    out = Table(title=content.title)
    for column in content.columns:
        out.add_column(column, justify="left" if column in {"task", "algorithm", "algorithms"} else "right")
    for row in content.rows:
        out.add_row(*(text.replace("[", r"\[") for text in row))
    return out


def markdown(content: Content) -> str:
    lines = [content.columns, ("---",) * len(content.columns), *content.rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def latex(content: Content) -> str:
    signs = (("%", r"\%"), ("±", r"$\pm$"), ("–", "--"), ("≤", r"$\le$"), ("_", r"\_"), ("Δ", r"$\Delta$"))

    def clean(text: str) -> str:
        for a, b in signs:
            text = text.replace(a, b)
        return text

    body = [" & ".join(clean(x) for x in row) + r" \\" for row in (content.columns, *content.rows)]
    head = [f"% {content.title}", rf"\begin{{tabular}}{{{'l' * len(content.columns)}}}", r"\hline"]
    return "\n".join([*head, body[0], r"\hline", *body[1:], r"\hline", r"\end{tabular}", ""])
