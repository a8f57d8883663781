"""Results as the nodes of workflows/otca.json send them, without a training: for what the page makes of them."""

from __future__ import annotations

import math
import random
from contextlib import contextmanager

CREDIT, FUSION, STACK, RUN = "9", "10", "8", "12"
REWARDS = ["clip_t", "colorfulness", "sharpness"]
SEND = """([node, kind, data]) => {
    const detail = { node, kind, data: { ...data, workflow_id: (app.rootGraph ?? app.graph).id } };
    comfyAPI.api.api.dispatchEvent(new CustomEvent("otca.result", { detail }));
}"""


def feed(canvas, node: str, kind: str, data: dict) -> None:
    canvas.page.evaluate(SEND, [node, kind, data])


def feed_run(canvas, run: str, iteration: int) -> None:
    """An iteration of the run, once the page knows what the next Run begins: that answer lets go of other runs' curves."""
    canvas.page.locator(".otca-curves-coming").get_by_text("next Run").wait_for()
    feed(canvas, RUN, "run", {"run": run, "iteration": iteration})


def feed_heatmap(canvas, prompts: int, samples: int, steps: int, scale: float = 1.0) -> None:
    """A credit and its advantages; the first sample's are `scale` times as large as they would be."""
    rng = random.Random(prompts * samples * steps)
    rows = prompts * samples
    weights = [[round(1 + 0.8 * math.sin(j + row % 3), 3) for j in range(steps)] for row in range(rows)]
    fused = [rng.gauss(0, 1) * (scale if row == 0 else 1) for row in range(rows)]
    credit = {
        "node": CREDIT,
        "made_by": "",
        "groups": [row // samples for row in range(rows)],
        "prompts": [f"a red circle, number {number}" for number in range(prompts)],
        "trained": list(range(steps)),
        "sigmas": [1 - j / steps for j in range(steps + 1)],
        "weights": weights,
        "delta": weights,
    }
    advantages = {
        "credit_node": CREDIT,
        "names": REWARDS,
        "objectives": [[rng.gauss(0, 1) for _ in REWARDS] for _ in range(rows)],
        "coefficients": [[1 / 3] * 3] * rows,
        "advantage": fused,
        "step_advantage": [[z * w for w in row] for z, row in zip(fused, weights, strict=True)],
        "valid": [True] * rows,
        "shares": [1 / 3] * 3,
    }
    feed(canvas, CREDIT, "credit", credit)
    feed(canvas, FUSION, "advantages", advantages)


def feed_scores(canvas, prompts: int, samples: int) -> None:
    rng = random.Random(prompts * samples)
    rows, columns = prompts * samples, len(REWARDS) + 1
    scores = {
        "names": REWARDS,
        "held_out_names": ["accuracy"],
        "groups": [row // samples for row in range(rows)],
        "prompts": [f"a red circle, number {number}" for number in range(prompts)],
        "values": [[rng.random() for _ in REWARDS] for _ in range(rows)],
        "held_out": [[rng.random()] for _ in range(rows)],
        "advantages": [[rng.gauss(0, 1) for _ in range(columns)] for _ in range(rows)],
        "correlation": [[1 if i == j else -0.5 for j in range(columns)] for i in range(columns)],
        "thumbnails": None,
        "thumbnail_columns": 8,
    }
    feed(canvas, STACK, "scores", scores)


def answer(canvas, route: str, said) -> None:
    more = {"body": said, "content_type": "image/png"} if isinstance(said, bytes) else {"json": said}
    canvas.page.route(route, lambda asked: asked.fulfill(**more))


@contextmanager
def answering(canvas, answers: dict):
    """The server's answers by route: JSON, or a picture's bytes."""
    for route, said in answers.items():
        answer(canvas, route, said)
    try:
        yield
    finally:
        for route in answers:
            canvas.page.unroute(route)
