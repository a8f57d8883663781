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
TEXTS = ("text", "prompt", "text_g", "text_l", "clip_l", "t5xxl", "positive", "string", "value", "wildcard_text")
SEEDS = ("seed", "noise_seed", "value", "int", "number")
MODELS = ("ckpt_name", "unet_name", "model_name", "gguf_name", "base_ckpt_name", "model", "checkpoint")
# Where no prompt comes from, and no model.
NOT_TEXT = frozenset("negative model clip vae latent_image latent samples pixels image images mask control_net".split())
NOT_MODEL = frozenset(
    "positive negative conditioning clip vae latent_image latent samples image images noise sigmas".split()
)
SAMPLES = ("latent_image", "latent", "samples")
ASKS = ("positive", "guider", "conditioning")  # inputs by which a node that samples has its prompt

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
    made: dict[str, Any] = {}
    if "prompt" in content.texts:
        made = _of_graph(content)
    if not made.get("prompt") and "parameters" in content.texts:
        made |= _of_parameters(content.texts["parameters"])
    return Facts(content.width, content.height, content.animated, note="; ".join(content.left_out[:3]), **made)


def shown(text: str, most: int) -> str:
    """A stranger's text as it can be stored and sent: without half a character or a zero byte, and not longer than that."""
    return text[:most].encode("utf-8", "replace").decode().replace("\0", "")


# --- ComfyUI's graph --------------------------------------------------------------------------------------------------


def _of_graph(found: Carried) -> dict[str, Any]:
    try:
        content = json_files.parse(
            found.texts["prompt"].replace("[NaN]", "[null]")
        )  # which ComfyUI writes of IS_CHANGED
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
    sampler = _sampler(graph)
    if not graph or sampler is None:
        return {"graph": _digest(graph), "about": _about(graph, "")} if graph else {}
    model, loras = _model(graph, sampler)
    return {
        "prompt": shown(", ".join(_texts(graph, sampler, ASKS)), LONGEST_PROMPT),
        "negative": shown(", ".join(_texts(graph, sampler, ("negative", "guider"), "negative")), LONGEST_PROMPT),
        "seed": _seed(graph, sampler),
        "model": model,
        "loras": loras,
        "graph": _digest(graph),
        "about": _about(graph, graph[sampler]["class_type"]),
    }


def _links(graph: Graph, name: str, follow: Callable[[str], bool]) -> Iterator[str]:
    """The nodes that a node's inputs come from, by those inputs that are followed."""
    for key, value in graph[name]["inputs"].items():
        if follow(key) and isinstance(value, list) and len(value) == 2 and str(value[0]) in graph:
            yield str(value[0])


def _walk(
    graph: Graph, begin: list[str], follow: Callable[[str], bool], ends: Callable[[str], bool] = lambda name: False
) -> Iterator[str]:
    """Nodes from which these have their inputs, the nearest first, each once; not beyond those that are ends."""
    waiting, visited = list(dict.fromkeys(begin)), set(begin)
    for name in waiting:
        yield name
        if not ends(name):
            fresh = [key for key in dict.fromkeys(_links(graph, name, follow)) if key not in visited]
            waiting += fresh
            visited.update(fresh)


def _sampler(graph: Graph) -> str | None:
    """The node that sampled the picture: the nearest one to what saves it, which of several samplers is the last."""

    def samples(name: str) -> bool:
        inputs = graph[name]["inputs"]
        return any(isinstance(inputs.get(key), list) for key in ASKS) and any(key in inputs for key in SAMPLES)

    saves = [name for name, node in graph.items() if "filename_prefix" in node["inputs"]] or list(graph)
    sampler = next(filter(samples, _walk(graph, saves, lambda key: True)), None)
    return sampler or next(filter(samples, graph), None)


def _texts(graph: Graph, sampler: str, begin: tuple[str, ...], only: str = "") -> list[str]:
    """The texts nearest to a sampler by these inputs; `only`: beyond the guider by that input alone."""
    inputs = graph[sampler]["inputs"]
    texts: dict[str, None] = {}
    for key in begin:
        value = inputs.get(key)
        if not (isinstance(value, list) and len(value) == 2 and str(value[0]) in graph):
            continue
        starts = [str(value[0])]
        if key == "guider" and only:
            starts = list(_links(graph, starts[0], lambda name: name == only))
        for name in _walk(graph, starts, lambda name: name not in NOT_TEXT, lambda name: bool(_own_texts(graph[name]))):
            texts |= dict.fromkeys(_own_texts(graph[name]))
    return list(texts)


def _own_texts(node: Node) -> list[str]:
    values = [node["inputs"].get(key) for key in TEXTS]
    return [value.strip() for value in values if isinstance(value, str) and value.strip()]


def _seed(graph: Graph, sampler: str) -> str:
    """The seed of a sampler, or of the node that it has its noise or seed from."""
    for name in _walk(graph, [sampler], lambda key: key in (*SEEDS, "noise")):
        for key in SEEDS:
            value = graph[name]["inputs"].get(key)
            if type(value) is int and 0 <= value < 2**64:
                return str(value)
    return ""


def _model(graph: Graph, sampler: str) -> tuple[str, tuple[str, ...]]:
    model, loras = "", {}
    for name in _walk(graph, [sampler], lambda key: key not in NOT_MODEL):
        inputs = graph[name]["inputs"]
        loras |= dict.fromkeys(_loras(inputs))
        named = next((inputs[key] for key in MODELS if isinstance(inputs.get(key), str)), "")
        model = model or shown(named, LONGEST_NAME)
    return model, tuple(loras)[:MOST_LORAS]


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
        inputs = sorted(node["inputs"].items())
        ends = [(key, _kind(graph, value)) for key, value in inputs if isinstance(value, list)]
        lines.append(json.dumps([node["class_type"], ends]))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _kind(graph: Graph, link: list) -> str:
    source = graph.get(str(link[0])) if len(link) == 2 else None
    return source["class_type"] if source else ""


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
