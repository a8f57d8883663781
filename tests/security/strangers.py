"""Graphs as strangers send them: the examples with something changed, and made of nothing; for hypothesis."""

from __future__ import annotations

import copy
import functools
import json
import math
from pathlib import Path
from random import Random

from hypothesis import strategies as st

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [
    json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "workflows" / "api").glob("*.json"))
]
CLASSES = sorted(NODE_CLASS_MAPPINGS)
WINDOW = {"iteration": 0, "steps": 4, "length": 2, "mode": "progressive", "every": 1, "stride": 1}


def deep(levels):
    value = 0
    for level in range(levels):
        value = {"a": value} if level % 3 == 0 else [value]
    return value


NUMBERS = [
    *[0, 1, -1, 2, 3, 5, 8, 2**31, 2**63 - 1, 2**63, 10**30, -(10**30), 0.5, 1.0, 1e-12, 1e300],
    *[math.nan, math.inf, -math.inf],
]
TEXTS = [
    *["", " ", "auto", "cpu", "evaluation/sum", "../x", "/proc/self/environ", "C:\\x", "\\\\host\\share", "\0"],
    *["\ud800", "é\u202e\u2028", "{}", "$\\frac$", "nan", "-1", "1e999", "http://127.0.0.1:99999", "x" * 100_000],
    *["a,b,," * 1000, "none", "true", "\n\n", "Fix: ", "%s%n"],
]
SHAPES = [
    *[None, True, False, [], {}, [[]], [1], ["1", 0, 0], ["1", "0"], ["1", 0.0], ["1", True], [None, 0]],
    *[deep(8), deep(40), deep(3000), [1] * 10_000],
    *[{"__value__": [1, 2]}, {"__value__": None}, {"__value__": {"__value__": 1}}, {"content": "x"}],
]
ODD = [*NUMBERS, *TEXTS, *SHAPES]
INDICES = [0, 0, 0, 1, 1, 2, 7, -1, 10**20]
IDS = ["", " ", "1:2:3", "None", "__proto__", "x" * 50_000, "é", "\ud800", "-1", "1.5", "Fix: "]
METAS = [
    *[None, [], 5, "t", {"title": 5}, {"title": None}, {"title": "x" * 100_000}, {"title": "a\nb"}],
    *[deep(3000), {"title": "Training Run"}],
]


def value(random, graph):
    """A constant or a link of any kind."""
    if random.random() < 0.6:
        return random.choice(ODD)
    return [random.choice([*graph, "nowhere"]), random.choice(INDICES)]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def change_input(random, graph):
    entry = graph[random.choice(sorted(graph))]
    if isinstance(entry.get("inputs"), dict):
        names = sorted({*entry["inputs"], *offers(entry), "unknown"})
        entry["inputs"][random.choice(names)] = value(random, graph)


def allowed_input(random, graph):
    """A value that the declaration offers, so that what lies behind the declarations is reached."""
    entry = graph[random.choice(sorted(graph))]
    offered = offers(entry)
    if offered:
        name = random.choice(sorted(offered))
        entry["inputs"][name] = random.choice(offered[name])


def offers(entry):
    return _offers(entry["class_type"]) if entry.get("class_type") in CLASSES else {}


@functools.cache
def _offers(class_type):
    """{input: some values} of the constants that a node declares."""
    known = NODE_CLASS_MAPPINGS[class_type]
    found = {}
    inputs = known.INPUT_TYPES()
    for name, (type_, *options) in {**inputs.get("required", {}), **inputs.get("optional", {})}.items():
        own = options[0] if options else {}
        low, high = own.get("min", 0), own.get("max", 0)
        if isinstance(type_, list):
            found[name] = type_ or ["none"]
        elif type_ == "BOOLEAN":
            found[name] = [False, True]
        elif type_ == "INT":
            found[name] = sorted({low, high, *(n for n in (1, 2, 3, 4, 5, 8, 36, 40) if low <= n <= high)})
        elif type_ == "FLOAT":
            found[name] = sorted({low, high, *(n for n in (0.5, 1.0, 1.5) if low <= n <= high)})
        elif type_ == "STRING":
            found[name] = [own.get("default", ""), "mine", "attn.to_q", "evaluation/sum", "cpu"]
    return found


def link_window(random, graph):
    graph["window"] = {"class_type": "OTCA_MixGRPOWindow", "inputs": dict(WINDOW)}
    entry = graph[random.choice(sorted(graph))]
    numbers = sorted(name for name, offered in offers(entry).items() if type(offered[0]) is int)
    if numbers:
        entry["inputs"][random.choice(numbers)] = ["window", random.choice([0, 1])]


def move_link(random, graph):
    """From one node of a kind to another output that may or may not fit."""
    links = [
        (node, name)
        for node, entry in graph.items()
        for name, value in entry["inputs"].items()
        if isinstance(value, list)
    ]
    if links:
        node, name = random.choice(links)
        graph[node]["inputs"][name] = [random.choice(sorted(graph)), random.choice([0, 0, 1])]


def change_class(random, graph):
    node = random.choice(sorted(graph))
    graph[node]["class_type"] = random.choice([*CLASSES, "OTCA_", "PreviewImage", "x" * 50_000, "é", 5, None])


def remove(random, graph):
    if len(graph) > 1:
        del graph[random.choice(sorted(graph))]


def remove_input(random, graph):
    entry = graph[random.choice(sorted(graph))]
    if isinstance(entry.get("inputs"), dict) and entry["inputs"]:
        del entry["inputs"][random.choice(sorted(entry["inputs"]))]


def double(random, graph):
    node = random.choice(sorted(graph))
    graph[f"{node}x"] = {**graph[node], "inputs": dict(graph[node]["inputs"])}
    links = [
        (other, name) for other, entry in graph.items() for name, value in entry["inputs"].items() if value == [node, 0]
    ]
    if links:
        other, name = random.choice(links)
        graph[other]["inputs"][name] = [f"{node}x", 0]


def rename(random, graph):
    node = random.choice(sorted(graph))
    graph[random.choice(IDS)] = graph.pop(node)


def change_meta(random, graph):
    graph[random.choice(sorted(graph))]["_meta"] = random.choice(METAS)


def change_entry(random, graph):
    node = random.choice(sorted(graph))
    graph[node][random.choice(["inputs", "is_changed", "more"])] = random.choice(SHAPES)


GENTLE = [allowed_input, allowed_input, allowed_input, link_window, move_link, double, remove_input]
HARSH = [change_input, change_input, change_input, change_class, remove, rename, change_meta, change_entry]


def changed(seed, examples=EXAMPLES, changes=(*GENTLE, *HARSH), most=3):
    """An example with up to so many changes, by a number: drawn piece by piece they would take longer than they are checked."""
    random = Random(seed)
    graph = copy.deepcopy(random.choice(examples))
    for change in random.choices(changes, k=random.randint(1, most)):
        if graph and all(isinstance(entry.get("inputs"), dict) for entry in graph.values()):
            change(random, graph)
    return graph


nodes = st.fixed_dictionaries(
    {
        "class_type": st.sampled_from([*CLASSES, "OTCA_X", "KSampler", "", 5]),
        "inputs": st.dictionaries(
            st.sampled_from(
                ["model", "trajectories", "scores", "credit", "seed", "steps", "reward_1", "path", "é", ""]
            ),
            st.sampled_from(ODD) | st.tuples(st.sampled_from("012"), st.sampled_from(INDICES)).map(list) | junk,
            max_size=3,
        )
        | junk,
    },
    optional={"_meta": st.sampled_from(METAS), "more": junk},
)
made_up = st.dictionaries(st.sampled_from(["0", "1", "2", *IDS]), nodes | junk, max_size=4) | junk
