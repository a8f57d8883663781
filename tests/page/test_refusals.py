"""What the canvas shows where VALIDATE_INPUTS refuses a value, from ComfyUI's answer as it makes it."""

import asyncio
import inspect
import re
import types

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from comfyui_otca.host import extras
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, WITHHELD
from comfyui_otca.page import middlewares
from comfyui_otca.tests.bundle.conftest import declared, file_inputs
from comfyui_otca.trainer.types import REPLACED
from comfyui_otca.trainer.workflow import Workflow


def answered(class_type, **values):
    """ComfyUI's answer to a prompt with this node alone: what VALIDATE_INPUTS says, once for every input that it takes."""
    cls = NODE_CLASS_MAPPINGS[class_type]
    taken = [name for name in inspect.getfullargspec(cls.VALIDATE_INPUTS).args if name in values]
    said = cls.VALIDATE_INPUTS(**{name: values[name] for name in taken})
    errors = [
        {
            "type": "custom_validation_failed",
            "message": "Custom validation failed for node",
            "details": f"{name} - {said}",
            "extra_info": {"input_name": name},
        }
        for name in taken
        if said is not True
    ]
    summary = "\n".join(f"{error['message']}: {error['details']}" for error in errors)
    error = {
        "type": "prompt_outputs_failed_validation",
        "message": "Prompt outputs failed validation",
        "details": summary,
    }
    node = {"errors": errors, "dependent_outputs": ["9"], "class_type": class_type}
    return {"error": error, "node_errors": {"5": node}}


# (class, input) of what has to be there: a folder of votes is made, prompts are typed, and a run is known to the canvas alone.
NAMING = [
    *[each for each in file_inputs() if each[1] not in ("votes", "evaluation_prompts", "resume_run")],
    *[("OTCA_EmbeddedModel", "model")],
]
SET = {
    "ScoreImages": {"input_types": {"reward_1": "OTCA_REWARD"}},
    "RewardVote": {"learn": True},
    "TCDWeights": {"proxy": "image_features"},
}
MARKERS = ("preprocessor_config.json", "tokenizer_config.json", "model_config.json")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of models in which all is there that nodes name by default."""
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path))
    monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", str(tmp_path))
    for cls in NODE_CLASS_MAPPINGS.values():
        for section in ("required", "optional"):
            for type_, options in cls.INPUT_TYPES().get(section, {}).values():
                name = options.get("default")
                named = name not in type_ if isinstance(type_, list) else type_ == "STRING" and "suggest" in options
                if not named or not name or (tmp_path / name).exists():
                    continue
                if name.endswith((".pth", ".pt", ".json", ".safetensors")):
                    (tmp_path / name).write_bytes(b"")
                elif "/" in name:
                    (tmp_path / name).mkdir(parents=True)
                    markers = MARKERS[1:] if name.startswith("KlingTeam") else MARKERS
                    for marker in markers if name != "yuvalkirstain/PickScore_v1" else ("config.json",):
                        (tmp_path / name / marker).write_text("{}")
    (tmp_path / "KlingTeam" / "VideoReward" / "tokenizer_config.json").unlink()  # so that its base is asked for
    return tmp_path


def defaults(cls):
    declared = cls.INPUT_TYPES()
    inputs = {**declared["required"], **declared.get("optional", {})}
    first = {name: type_[0] for name, (type_, _) in inputs.items() if isinstance(type_, list) and type_}
    return first | {name: options["default"] for name, (_, options) in inputs.items() if "default" in options}


@pytest.mark.parametrize(("name", "about"), NAMING)
def test_whatever_is_missing_is_one_error_on_the_input_that_names_it(here, name, about):
    cls, name = NODE_CLASS_MAPPINGS[name], name.removeprefix("OTCA_")
    model = {"model": "OTCA_MODEL"} if name == "TCDWeights" else {}
    known = {"input_types": {"trajectories": "OTCA_TRAJECTORIES", **model}} | defaults(cls) | SET.get(name, {})
    missing = {"guides": "nowhere = 1", "file": "nowhere.txt", "prompts": '{"file": "nowhere.txt"}'}.get(
        about, "nowhere"
    )
    answer = answered(f"OTCA_{name}", **known | {about: missing})
    (error,) = middlewares.put_right(answer)["node_errors"]["5"]["errors"]
    assert error["extra_info"]["input_name"] == error["message"] == about
    problem, fix, _ = error["details"].partition(" Fix: ")
    assert "nowhere" in problem and not problem.startswith(f"{about}: "), error
    assert fix and ", " not in problem.partition(str(here))[2], "a list of folders that were searched comes last"


def needing():
    """(class, inputs) by which a node of ours needs a package that ComfyUI does not bring."""
    for class_type, node in NODE_CLASS_MAPPINGS.items():
        texts = [
            (name, given.type if isinstance(given.type, list) else ["x"]) for name, given in declared(node).items()
        ]
        values = [{name: value} for name, options in texts for value in options]
        yield from ((class_type, inputs) for inputs in values if node.needs(**inputs) and not node.NEEDS)
        yield from [(class_type, {})] * bool(node.NEEDS)


@pytest.mark.parametrize(("class_type", "inputs"), needing())
def test_a_node_that_lacks_a_package_is_refused_with_the_line_that_installs_it(class_type, inputs, here, monkeypatch):
    """What the page cuts a graph down to, `lacks`, and what ComfyUI refuses, by VALIDATE_INPUTS, are the same."""
    cls, known = NODE_CLASS_MAPPINGS[class_type], SET.get(class_type.removeprefix("OTCA_"), {})
    monkeypatch.setenv("OTCA_ALLOW_HOSTS", "api.wandb.ai:443")
    monkeypatch.setattr(extras, "installed", lambda name: None)
    values = defaults(cls) | known | inputs
    (name, lack), answer = cls.lacks(**values), answered(class_type, **values)
    (error,) = middlewares.put_right(answer)["node_errors"]["5"]["errors"]
    assert (
        lack.command in error["details"]
        and "-m pip install" in lack.command
        and error["extra_info"]["input_name"] == name
    )


def test_a_graph_that_lacks_a_package_is_refused_as_a_whole(monkeypatch, small_graph):
    """ComfyUI does not see it, which would run what does not need the reward: sampler and heatmap."""
    installed = extras.installed
    monkeypatch.setattr(extras, "installed", lambda name: None if name == "rapidocr" else installed(name))
    graph = small_graph()
    graph["77"] = {"class_type": "OTCA_RewardText", "inputs": {"coefficient": 1.0}}
    queued = {"/prompt": (200, {"prompt_id": "1"})}
    [(status, told)], events = through_comfyui(queued, middlewares.say_refusals_once, prompt=graph)
    assert (status, told, events) == (200, {"prompt_id": "1"}, []), "no output needs it"
    stack = next(node for node, entry in graph.items() if entry["class_type"] == "OTCA_RewardStack")
    graph[stack]["inputs"]["reward_9"] = ["77", 0]
    [(status, told)], [(_, sent, _)] = through_comfyui(queued, middlewares.say_refusals_once, prompt=graph)
    (error,) = told["node_errors"]["77"]["errors"]
    assert status == 400 and error["extra_info"]["input_name"] == error["message"] == "coefficient"
    assert sent["inputs"] == {"77": ["coefficient"]}
    assert re.match(r"Reward: Text needs rapidocr>=3.10 \(none is here\).* Fix: .*-m pip install ", error["details"])
    [package] = sent["packages"]
    assert package["node"] == "77" and package["command"] in error["details"] and "rapidocr" in package["text"]


def test_a_stack_without_rewards_marks_the_socket_to_connect_one_to():
    told = middlewares.put_right(answered("OTCA_RewardStack", input_types={"trajectories": "OTCA_TRAJECTORIES"}))
    (error,) = told["node_errors"]["5"]["errors"]
    assert error["extra_info"]["input_name"] == error["message"] == "reward_1"
    assert error["details"] == "no reward is connected. Fix: connect a Reward node to it"
    assert told["error"]["details"] == f"reward_1: {error['details']}"


def test_two_nodes_with_the_same_fault_are_two_errors():
    answer = answered("OTCA_RewardPython", file="nowhere.py", clip="")
    answer["node_errors"]["6"] = answer["node_errors"]["5"]
    told = middlewares.put_right(answer)
    assert [len(node["errors"]) for node in told["node_errors"].values()] == [1, 1]


def test_other_nodes_and_other_errors_stay_as_they_are():
    theirs = answered("OTCA_RewardPython", file="nowhere.py", clip="")
    theirs["node_errors"]["5"]["class_type"] = "SomebodyElses"
    assert middlewares.put_right(theirs) == theirs
    missing = {"type": "required_input_missing", "message": "m", "details": "file"}
    missing["extra_info"] = {"input_name": "file"}
    ours = {"node_errors": {"5": {"errors": [missing], "class_type": "OTCA_RewardPython"}}}
    assert middlewares.put_right(ours) == ours


def through_comfyui(answers, prepare, method="POST", prompt=None):
    """What a page gets of {path: (status, answer)}, and the events that it was sent, once `prepare` has had the server."""
    events = []

    async def main():
        async def answer(request):
            await request.read()
            status, content = answers[request.path]
            return web.json_response(content, status=status)

        app = web.Application()
        for path in answers:
            app.router.add_route(method, path, answer)
        prepare(types.SimpleNamespace(app=app, send_sync=lambda *event: events.append(event)))
        async with TestClient(TestServer(app)) as client:
            asked = {"json": {"prompt": prompt or {}, "client_id": "this page"}} if method == "POST" else {}
            replies = [await client.request(method, path, **asked) for path in answers]
            return [(reply.status, await reply.json()) for reply in replies]

    return asyncio.run(main()), events


def test_what_comfyui_answers_is_put_right_on_its_way_to_the_page():
    answers = {
        "/prompt": (400, answered("OTCA_RewardPython", file="nowhere.py", clip="")),
        "/api/prompt": (200, {"prompt_id": "1", "number": 1, "node_errors": {}}),
        "/other": (400, answered("OTCA_RewardPython", file="nowhere.py", clip="")),
    }
    (refused, queued, other), events = through_comfyui(answers, middlewares.say_refusals_once)
    assert refused[0] == 400 and len(refused[1]["node_errors"]["5"]["errors"]) == 1
    assert [queued, other] == [answers["/api/prompt"], answers["/other"]]
    assert events == [("otca.refused", {"inputs": {"5": ["file"]}, "packages": []}, "this page")]


# As 0.33 and 0.3.64 say it.
UNKNOWN = [
    {
        "type": "missing_node_type",
        "message": "Node 'mine' not found. The custom node may not be installed.",
        "details": "Node ID '#7'",
        "extra_info": {"node_id": "7", "class_type": "OTCA_RewardPython", "node_title": "mine"},
    },
    {
        "type": "invalid_prompt",
        "message": "Cannot execute because node OTCA_RewardPython does not exist.",
        "details": "Node ID '#7'",
        "extra_info": {},
    },
]


def test_a_node_that_waits_for_the_users_word_is_named_as_that():
    for error in UNKNOWN:
        told = middlewares.put_right({"error": error, "node_errors": []})
        assert told["error"] == {**error, "message": WITHHELD["OTCA_RewardPython"]}
        assert "OTCA_ALLOW_PYTHON_REWARDS" in told["error"]["message"] and ". Fix: " in told["error"]["message"]
        theirs = {
            **error,
            "message": error["message"].replace("OTCA_", "THEIR_"),
            "extra_info": {"class_type": "Theirs"},
        }
        assert middlewares.put_right({"error": theirs, "node_errors": {}})["error"] == theirs


def test_a_queued_node_that_is_not_listed_has_its_class_again():
    """ComfyUI's page queues it without one; what a script or a damaged page sends stays what it is."""
    handlers = []
    middlewares.name_queued(types.SimpleNamespace(add_on_prompt_handler=handlers.append))
    (handler,) = handlers
    inner = {"id": "in", "nodes": [{"id": 5, "type": "OTCA_RewardPython"}, {"id": 4, "type": ["x"]}, 7]}
    other = {"id": "also", "nodes": [{"id": 5, "type": "Theirs"}]}  # a number counts within its subgraph
    canvas = {"nodes": [{"id": 7, "type": "OTCA_RewardPython"}, {"id": 6, "type": "Theirs"}]}
    canvas["nodes"] += [{"id": 3, "type": "in"}, {"id": 2, "type": "also"}]
    canvas["definitions"] = {"subgraphs": [inner, other, None]}
    prompt = {
        "7": {"inputs": {}},
        "3:5": {"inputs": {}},
        "6": {"inputs": {}},
        "2:5": {"inputs": {}},
        "3:4": {},
        "9": None,
    }
    data = {"prompt": prompt, "client_id": "a", "extra_data": {"extra_pnginfo": {"workflow": canvas}}}
    named = {"inputs": {}, "class_type": "OTCA_RewardPython"}
    assert handler(data) == {**data, "prompt": {**prompt, "7": named, "3:5": named}}
    for other in (
        7,
        {},
        {"prompt": prompt},
        {"prompt": prompt, "extra_data": {"extra_pnginfo": None}},
        {"prompt": [], "extra_data": {"extra_pnginfo": {"workflow": canvas}}},
    ):
        assert handler(other) == other


@pytest.mark.parametrize("old", REPLACED)
def test_a_node_of_before_is_queued_as_what_it_is_now(old):
    """By a script; the page does it as it opens a graph (`web/lib/values.js`)."""
    handlers = []
    middlewares.name_queued(types.SimpleNamespace(add_on_prompt_handler=handlers.append))
    inputs = {name: ["1", 0] for name in REPLACED[old][2]}
    now = handlers[0]({"prompt": {"5": {"class_type": old, "inputs": inputs}}})["prompt"]["5"]
    new, values, _ = REPLACED[old]
    assert now == {"class_type": new, "inputs": {**inputs, **values}}
    read = Workflow({"5": {"class_type": old, "inputs": inputs}}, NODE_CLASS_MAPPINGS).nodes["5"]
    assert isinstance(read.cls, type) and read.class_type == new


def test_our_templates_are_listed_by_their_names():
    listed = {"other": ["b", "a"], "ComfyUI-OTCA": ["11 Flux", "01 Quickstart", "02 Tour"]}
    answers = dict.fromkeys(["/workflow_templates", "/api/workflow_templates", "/other"], (200, listed))
    told, _ = through_comfyui(answers, lambda server: middlewares.sort_templates(server, "ComfyUI-OTCA"), "GET")
    ours = {"other": ["b", "a"], "ComfyUI-OTCA": ["01 Quickstart", "02 Tour", "11 Flux"]}
    assert [content for _, content in told] == [ours, ours, listed]
