"""`python -m comfyui_otca.tools.blueprints`: subgraphs/*.json, which ComfyUI offers as subgraph blueprints.

Each is put together on the canvas of a real ComfyUI (found as the tests in tests/comfyui find it), and saved as its own
*Publish Subgraph* saves it.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import sync_playwright

from ..tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from ..tests.comfyui.server import ROOT, ComfyUI, installations

SUBGRAPHS = ROOT / "subgraphs"
Ends = tuple[tuple[str, str], ...]  # nodes inside, and an input of each


@dataclass(frozen=True)
class Blueprint:
    """A subgraph.

    Attributes:
        nodes: name here to class, place [x, y] and the widgets' values.
        links: (node, output) to (node, input).
        inputs: what is asked for outside, with its type, and where it goes.
        outputs: what is given, with its type, and where it comes from.
    """

    title: str
    category: str
    description: str
    nodes: Mapping[str, tuple[str, tuple[int, int], Mapping[str, object]]]
    links: Sequence[tuple[tuple[str, str], tuple[str, str]]]
    inputs: Mapping[str, tuple[str, Ends]]
    outputs: Mapping[str, tuple[str, tuple[str, str]]]


PICK_BEST = Blueprint(
    "Pick Best",
    "OTCA",
    "Generates 8 pictures of the prompt, scores them by the reward that is connected, and keeps the best 2.",
    nodes={
        "positive": ("CLIPTextEncode", (0, 0), {}),
        "negative": ("CLIPTextEncode", (0, 240), {"text": ""}),
        "latent": ("EmptyLatentImage", (0, 480), {"width": 1024, "height": 1024, "batch_size": 8}),
        "sampler": ("KSampler", (480, 0), {"sampler_name": "euler", "scheduler": "simple", "cfg": 4.0}),
        "decoder": ("VAEDecode", (480, 480), {}),
        "scorer": ("OTCA_ScoreImages", (860, 0), {"keep": 2}),
    },
    links=[
        (("positive", "CONDITIONING"), ("sampler", "positive")),
        (("negative", "CONDITIONING"), ("sampler", "negative")),
        (("latent", "LATENT"), ("sampler", "latent_image")),
        (("sampler", "LATENT"), ("decoder", "samples")),
        (("decoder", "IMAGE"), ("scorer", "images")),
    ],
    inputs={
        "model": ("MODEL", (("sampler", "model"),)),
        "clip": ("CLIP", (("positive", "clip"), ("negative", "clip"))),
        "vae": ("VAE", (("decoder", "vae"),)),
        "reward": ("OTCA_REWARD", (("scorer", "reward_1"),)),
        "prompt": ("STRING", (("positive", "text"), ("scorer", "prompt"))),
        "width": ("INT", (("latent", "width"),)),
        "height": ("INT", (("latent", "height"),)),
        "generate": ("INT", (("latent", "batch_size"),)),
        "keep": ("INT", (("scorer", "keep"),)),
        "seed": ("INT", (("sampler", "seed"),)),
        "steps": ("INT", (("sampler", "steps"),)),
        "cfg": ("FLOAT", (("sampler", "cfg"),)),
    },
    outputs={
        "best": ("IMAGE", ("scorer", "best")),
        "ranked": ("IMAGE", ("scorer", "ranked")),
        "places": ("INT", ("scorer", "places")),
    },
)

THREE_REWARDS = Blueprint(
    "Three Rewards",
    "OTCA",
    "Scores samples by text alignment, human preference and aesthetics (CLIP-T, HPSv2.1, Aesthetic): what OTCA trains by.",
    nodes={
        "text": ("OTCA_RewardClipT", (0, 0), {}),
        "preference": ("OTCA_RewardHPSv2", (0, 320), {}),
        "aesthetic": ("OTCA_RewardAesthetic", (0, 640), {}),
        "stack": ("OTCA_RewardStack", (480, 0), {}),
    },
    links=[
        (("text", "reward"), ("stack", "reward_1")),
        (("preference", "reward"), ("stack", "reward_2")),
        (("aesthetic", "reward"), ("stack", "reward_3")),
    ],
    inputs={
        "trajectories": ("OTCA_TRAJECTORIES", (("stack", "trajectories"),)),
        "CLIP-T": ("FLOAT", (("text", "coefficient"),)),
        "HPSv2.1": ("FLOAT", (("preference", "coefficient"),)),
        "Aesthetic": ("FLOAT", (("aesthetic", "coefficient"),)),
    },
    outputs={"scores": ("OTCA_SCORES", ("stack", "scores")), "table": ("IMAGE", ("stack", "table"))},
)

OTCA_BLOCK = Blueprint(
    "OTCA Block",
    "OTCA",
    "The method between scores and update: TCD Weights, MOCA Fuse and GRPO Step, with what one changes most outside.",
    nodes={
        "credit": ("OTCA_TCDWeights", (0, 0), {}),
        "fusion": ("OTCA_MOCAFuse", (520, 0), {}),
        "update": ("OTCA_GRPOStep", (900, 0), {}),
    },
    links=[
        (("credit", "credit"), ("fusion", "credit")),
        (("fusion", "advantages"), ("update", "advantages")),
    ],
    inputs={
        "model": ("OTCA_MODEL", (("update", "model"),)),
        "trajectories": ("OTCA_TRAJECTORIES", (("credit", "trajectories"), ("update", "trajectories"))),
        "scores": ("OTCA_SCORES", (("fusion", "scores"),)),
        "smallest weight": ("FLOAT", (("credit", "w_min"),)),
        "learning rate": ("FLOAT", (("update", "learning_rate"),)),
        "pull to original": ("FLOAT", (("update", "kl_coefficient"),)),
    },
    outputs={
        "model": ("OTCA_MODEL", ("update", "model")),
        "report": ("OTCA_REPORT", ("update", "report")),
        "heatmap": ("IMAGE", ("fusion", "heatmap")),
    },
)

PUBLISHED = """({ title, nodes, links, inputs, outputs }) => {
    app.graph.clear();
    const made = {};
    for (const [name, [type, place, values]] of Object.entries(nodes)) {
        const node = made[name] = LiteGraph.createNode(type);
        app.graph.add(node);
        node.pos = place;
        for (const [key, value] of Object.entries(values)) node.widgets.find(widget => widget.name === key).value = value;
    }
    const output = ([name, key]) => made[name].outputs.findIndex(slot => slot.name === key);
    const input = ([name, key]) => made[name].inputs.findIndex(slot => slot.name === key);
    for (const [from, to] of links) made[from[0]].connect(output(from), made[to[0]], input(to));
    const { subgraph, node } = app.graph.convertToSubgraph(new Set(Object.values(made)));
    for (const [name, inner] of Object.entries(made)) made[name] = subgraph.nodes.find(
        other => other.type === inner.type && other.pos[0] === inner.pos[0] && other.pos[1] === inner.pos[1]);
    for (const own of [...subgraph.inputs]) subgraph.removeInput(own);  // ComfyUI puts some widgets outside by itself
    for (const [name, [type, ends]] of Object.entries(inputs)) {
        const slot = subgraph.addInput(name, type);
        for (const end of ends) slot.connect(made[end[0]].inputs[input(end)], made[end[0]]);
    }
    for (const [name, [type, end]] of Object.entries(outputs)) {
        subgraph.addOutput(name, type).connect(made[end[0]].outputs[output(end)], made[end[0]]);
    }
    node.title = subgraph.name = title;
    subgraph.inputNode.pos = [-260, 0];
    subgraph.outputNode.pos = [1380, 0];
    const { nodes: [outer], subgraphs } = app.canvas._serializeItems([node]);
    return JSON.stringify({
        revision: 0, last_node_id: outer.id, last_link_id: 0, nodes: [outer], links: [], version: 0.4,
        definitions: { subgraphs }, extra: {},
    });
}"""


def main() -> None:
    comfyui = ComfyUI(installations()[-1], Path(tempfile.mkdtemp(prefix="otca-blueprints-")))
    try:
        comfyui.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            canvas = Canvas(browser.new_page(viewport={"width": 1600, "height": 900}), comfyui, "classic")
            for blueprint in (PICK_BEST, THREE_REWARDS, OTCA_BLOCK):
                save(canvas, blueprint)
            browser.close()
    finally:
        comfyui.stop()


def save(canvas: Canvas, blueprint: Blueprint) -> None:
    target = SUBGRAPHS / f"{blueprint.title}.json"
    SUBGRAPHS.mkdir(exist_ok=True)
    content = with_lasting_ids(json.loads(canvas.page.evaluate(PUBLISHED, vars(blueprint))))
    (graph,) = content["definitions"]["subgraphs"]
    graph |= {"category": blueprint.category, "description": blueprint.description}
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(target)


def with_lasting_ids(content: dict) -> dict:
    """The same with ids that are the same each time that it is made."""
    text = json.dumps(content)
    (graph,) = content["definitions"]["subgraphs"]
    for number, id in enumerate([graph["id"], *(slot["id"] for slot in (*graph["inputs"], *graph["outputs"]))]):
        text = text.replace(id, str(uuid.uuid5(uuid.NAMESPACE_URL, f"comfyui-otca/{graph['name']}/{number}")))
    return json.loads(text)


if __name__ == "__main__":
    main()
