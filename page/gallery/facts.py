"""How a picture was made, by the texts that its file carries: prompt, seed, model, LoRAs.

The graph in it is a stranger's, and data: links are followed, nothing is looked up, loaded or run. Whatever type a value has,
what does not fit is left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ...host import json_files
from .texts import Carried, carried

MOST_NODES = 5000
LONGEST_PROMPT, LONGEST_NAME = 8000, 300  # characters that are kept
MOST_LORAS = 32

# Inputs that hold a prompt, a seed, a model's file; by their names in ComfyUI's nodes and in those of widely used packs.
PROMPTS = ("prompt", "model.prompt")
_TEXTS = "text text_g text_l clip_l t5xxl replace string string_a string_b value wildcard_text on_true on_false"
TEXTS = ("positive", *PROMPTS, *_TEXTS.split())
NEGATIVES = ("negative", "negative_prompt")
SEEDS = ("seed", "noise_seed", "value", "int", "number")
MODELS = ("ckpt_name", "unet_name", "model_name", "gguf_name", "base_ckpt_name", "model", "checkpoint")
# Where no prompt comes from, and no model.
NOT_TEXT = {*"model clip vae latent_image latent samples pixels image images mask control_net system_prompt".split()}
NOT_TEXT |= {"noise", "sampler", "sigmas", *NEGATIVES}
NOT_MODEL = frozenset(
    "positive negative conditioning clip vae latent_image latent samples image images noise sigmas model_negative".split()
)
SAMPLES = ("latent_image", "latent", "samples")
ASKS = ("positive", "guider", "conditioning")  # inputs by which a node that samples has its prompt
STAYS = ("disable", False)  # values of `add_noise` that add none
BRANCHES = {"on_true": False, "on_false": True}  # inputs of a switch, and how it stands where it does not take them
NO_TEXT = "ConditioningZeroOut"  # makes nothing of what a prompt says

Node = dict[str, Any]
Graph = dict[str, Node]


@dataclass(frozen=True)
class Facts:
    """The facts of how a picture was made.

    Attributes:
        seed: in decimal digits, since a browser has no whole numbers as large; "" if it is not known.
        graph: the same for pictures of the same nodes with the same links; "" without a graph.
        about: that graph in a few words.
        note: what could not be read, a sentence; "" if nothing.
    """

    width: int = 0
    height: int = 0
    animated: bool = False
    prompt: str = ""
    negative: str = ""
    seed: str = ""
    model: str = ""
    loras: tuple[str, ...] = ()
    graph: str = ""
    about: str = ""
    note: str = ""


def read(file: BinaryIO) -> Facts:
    """Reads the facts of a picture's file. Raises ValueError if it is not a picture."""
    content = carried(file)
    made = _of_graph(content) if "prompt" in content.texts else {}
    if not made.get("prompt") and "parameters" in content.texts:
        made |= _of_parameters(content.texts["parameters"])
    return Facts(content.width, content.height, content.animated, note="; ".join(content.left_out[:3]), **made)


def shown(text: str, most: int) -> str:
    """A stranger's text as it can be stored and sent: without half a character or a zero byte, and not longer than that."""
    return text[:most].encode("utf-8", "replace").decode().replace("\0", "")


# --- ComfyUI's graph --------------------------------------------------------------------------------------------------


def _of_graph(found: Carried) -> dict[str, Any]:
    try:
        content = json_files.parse(found.texts["prompt"].replace("[NaN]", "[null]"))  # NaN: ComfyUI's IS_CHANGED
    except ValueError as error:
        found.left_out.append(f"its graph {shown(str(error), 200)}")
        return {}
    if not isinstance(content, dict):
        found.left_out.append("its graph is not an object")
        return {}
    if len(content) > MOST_NODES:
        found.left_out.append(f"its graph has {len(content)} nodes, and {MOST_NODES} are the most that is read")
        return {}
    graph = {
        name: node
        for name, node in content.items()
        if isinstance(node, dict) and isinstance(node.get("class_type"), str) and isinstance(node.get("inputs"), dict)
    }
    # The node that made the picture: of those that sample the nearest to what saves it, which is the last; else the nearest one
    # that asks a server for it
    saves = [name for name, node in graph.items() if "filename_prefix" in node["inputs"]] or list(graph)
    names = dict.fromkeys([*_walk(graph, saves, lambda key: True), *graph])
    sampler = next((name for kind in (_draws, _samples, _asks) for name in names if kind(graph[name]["inputs"])), None)
    if not graph or sampler is None:
        return {"graph": _digest(graph), "about": _about(graph, "")} if graph else {}
    model, loras = "", {}
    for name in _walk(graph, [sampler], lambda key: key not in NOT_MODEL):
        inputs = graph[name]["inputs"]
        loras |= dict.fromkeys(_loras(inputs))
        named = next((inputs[key] for key in MODELS if isinstance(inputs.get(key), str)), "")
        model = model or shown(named, LONGEST_NAME)
    return {
        "prompt": shown(", ".join(_texts(graph, sampler)), LONGEST_PROMPT),
        "negative": shown(", ".join(_texts(graph, sampler, negative=True)), LONGEST_PROMPT),
        "seed": _seed(graph, sampler),
        "model": model,
        "loras": tuple(loras)[:MOST_LORAS],
        "graph": _digest(graph),
        "about": _about(graph, graph[sampler]["class_type"]),
    }


def _source(graph: Graph, value: Any) -> str:
    """The node that a value comes from; "" if it is not a link."""
    return str(value[0]) if isinstance(value, list) and len(value) == 2 and str(value[0]) in graph else ""


def _inputs(graph: Graph, name: str) -> Node:
    """The inputs of a node, without the branch that a switch does not take."""
    inputs = graph[name]["inputs"]
    if not BRANCHES.keys() <= inputs.keys():
        return inputs
    state = inputs.get("switch")
    if source := _source(graph, state):
        state = graph[source]["inputs"].get("value")
    return {key: value for key, value in inputs.items() if key not in BRANCHES or BRANCHES[key] is not state}


def _walk(graph: Graph, begin: list[str], follow: Callable[[str], bool]) -> Iterator[str]:
    """Nodes from which these have their inputs, the nearest first, each once."""
    waiting, visited = list(dict.fromkeys(begin)), set(begin)
    for name in waiting:
        yield name
        sources = (_source(graph, value) for key, value in _inputs(graph, name).items() if follow(key))
        fresh = [source for source in dict.fromkeys(filter(None, sources)) if source not in visited]
        waiting += fresh
        visited.update(fresh)


def _samples(inputs: Node) -> bool:
    return any(isinstance(inputs.get(key), list) for key in ASKS) and any(key in inputs for key in SAMPLES)


def _draws(inputs: Node) -> bool:
    """Whether it samples, and does not only hand samples and prompts on."""
    return _samples(inputs) and any(key in inputs for key in ("seed", "noise_seed", "noise"))


def _asks(inputs: Node) -> bool:
    return any(key in inputs for key in PROMPTS) and ("seed" in inputs or "model" in inputs)


def _texts(graph: Graph, sampler: str, negative: bool = False) -> list[str]:
    """The texts nearest to a sampler, in the order of inputs: what it is asked for, or what it is to leave out."""
    inputs = graph[sampler]["inputs"]
    if negative and (guider := _source(graph, inputs.get("guider"))):
        inputs = graph[guider]["inputs"]
    waiting = [inputs.get(key) for key in reversed(NEGATIVES)] if negative else _saying(graph, sampler, False)[::-1]
    texts: dict[str, None] = {}
    sources: set[str] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and value.strip():
            texts[value.strip()] = None
        if (name := _source(graph, value)) and name not in sources and graph[name]["class_type"] != NO_TEXT:
            sources.add(name)
            waiting += reversed(_saying(graph, name, negative))
    return list(texts)


def _saying(graph: Graph, name: str, negative: bool) -> list:
    """The values by which a node has its text: of inputs that are called so, else of all that could bring one."""
    inputs = _inputs(graph, name)
    for keys in (NEGATIVES, TEXTS[1:]) if negative else (TEXTS,):
        if values := [inputs[key] for key in keys if key in inputs]:
            return values
    return [value for key, value in inputs.items() if isinstance(value, list) and key not in NOT_TEXT]


def _seed(graph: Graph, sampler: str) -> str:
    """The seed of a sampler, or of the node that it has its noise or seed from; that of an earlier one where it adds none."""
    line = _walk(graph, [sampler], lambda key: "latent" in key or key in SAMPLES)
    noisy = (name for name in line if _draws(inputs := graph[name]["inputs"]) and inputs.get("add_noise") not in STAYS)
    for name in _walk(graph, [next(noisy, sampler)], lambda key: key in (*SEEDS, "noise")):
        for key in SEEDS:
            value = graph[name]["inputs"].get(key)
            if type(value) is int and 0 <= value < 2**64:
                return str(value)
    return ""


def _loras(inputs: Node) -> Iterator[str]:
    """LoRAs of a loader that are not off: ComfyUI's, those of packs that have several in a row, and lists of them."""
    for key, value in inputs.items():
        if isinstance(value, dict) and isinstance(value.get("lora"), str) and value.get("on") is not False:
            yield shown(value["lora"], LONGEST_NAME)
        elif isinstance(value, str) and re.fullmatch(r"lora(_name)?(_\d+)?(_name)?", key) and value not in ("", "None"):
            if inputs.get("strength_model") != 0:
                yield shown(value, LONGEST_NAME)


def _digest(graph: Graph) -> str:
    """The same for graphs that have the same kinds of nodes with the same links, whatever their values and numbers are."""
    lines = []
    for node in graph.values():
        links = sorted((key, _source(graph, value)) for key, value in node["inputs"].items() if isinstance(value, list))
        ends = [(key, graph[source]["class_type"] if source else "") for key, source in links]
        lines.append(json.dumps([node["class_type"], ends]))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _about(graph: Graph, sampler: str) -> str:
    count = f"{len(graph)} nodes"
    return shown(f"{sampler}, {count}" if sampler else count, LONGEST_NAME)


# --- the text of other programs ---------------------------------------------------------------------------------------


def _of_parameters(text: str) -> dict[str, Any]:
    """Prompt, `Negative prompt:`, and a last line `Steps: …, Seed: …, Model: …`; LoRAs are in the prompt, as <lora:NAME:1>."""
    before, mark, settings = text.rpartition("\nSteps: ")
    if not mark:
        before, settings = ("", text) if text.startswith("Steps: ") else (text, "")
    prompt, _, negative = before.partition("Negative prompt:")
    seed = re.search(r"\bSeed: (\d{1,20})\b", settings)
    model = re.search(r"\bModel: ([^,\n]+)", settings)
    loras = dict.fromkeys(re.findall(r"<lora:([^:>\n]{1,300})[:>]", prompt))
    return {
        "prompt": shown(prompt.strip(), LONGEST_PROMPT),
        "negative": shown(negative.strip(), LONGEST_PROMPT),
        "seed": str(int(seed[1])) if seed else "",
        "model": shown(model[1].strip(), LONGEST_NAME) if model else "",
        "loras": tuple(shown(name, LONGEST_NAME) for name in loras)[:MOST_LORAS],
    }
