"""What bypassed nodes mean in a queued graph: read from the canvas that comes with it, through reroutes and subgraphs."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page import bypass, middlewares
from comfyui_otca.page.bypass import BYPASSED, MUTED, WITH_A_MEANING, as_meant, named

# {id: (class, {input: (id, output)}, values of widgets)}
METHOD = {
    "20": ("PrimitiveInt", {}, [7]),
    "1": ("OTCA_LoadFlowModel", {}, []),
    "3": ("OTCA_SDESampler", {"model": ("1", 0), "window_start": ("20", 0), "window_length": ("5", 1)}, None),
    "5": ("OTCA_MixGRPOWindow", {"iteration": ("20", 0)}, [0, "increment", 16, 4, "progressive", 25, 1, 0, False]),
    "8": ("OTCA_RewardStack", {"trajectories": ("3", 0)}, []),
    "9": ("OTCA_TCDWeights", {"trajectories": ("3", 0)}, [0.5]),
    "10": ("OTCA_MOCAFuse", {"scores": ("8", 0), "credit": ("9", 0)}, None),
    "11": ("OTCA_GRPOStep", {"model": ("1", 0), "trajectories": ("3", 0), "advantages": ("10", 0)}, []),
    "12": ("OTCA_TrainingRun", {"model": ("11", 0), "report": ("11", 1)}, []),
    "13": ("PreviewImage", {"images": ("12", 0)}, []),
    "14": ("OTCA_SaveLoRA", {"model": ("11", 0)}, []),
}


def declared(class_type):
    cls = NODE_CLASS_MAPPINGS.get(class_type)
    table = cls.INPUT_TYPES() if cls else {}
    return {**table.get("required", {}), **table.get("optional", {})}


def widgets(class_type, **given):
    """Values by position, as a canvas saves them."""
    values = []
    for name, (type_, options) in declared(class_type).items():
        if isinstance(type_, list) or type_ in bypass.WIDGETS:
            values.append(given.get(name, options.get("default")))
            values += ["increment"] if options.get("control_after_generate") else []
    return values


def canvas_of(nodes, modes=(), **values):
    """The canvas of such nodes, of which those in `modes` have another mode; a node's widgets by `node_ID={name: value}`."""
    links, made = [], []
    for name, (class_type, inputs, saved) in nodes.items():
        ends = []
        for slot, (input, (origin, output)) in enumerate(inputs.items()):
            links.append([len(links) + 1, int(origin), output, int(name), slot, "*"])
            type_ = declared(class_type).get(input, ("*",))[0]
            ends.append({"name": input, "type": type_, "link": len(links)})
        cls = NODE_CLASS_MAPPINGS.get(class_type)
        outputs = [{"type": type_} for type_ in (cls.RETURN_TYPES if cls else ("INT",))]
        given = values.get(f"node_{name}", {})
        saved = widgets(class_type, **given) if saved is None or given else saved
        made.append({"id": int(name), "type": class_type, "mode": dict(modes).get(name, 0), "inputs": ends})
        made[-1] |= {"outputs": outputs, "widgets_values": saved}
    return {"nodes": made, "links": links}


def queued(nodes, out=()):
    """What ComfyUI queues: without the bypassed nodes, and without what they alone would feed."""
    return {
        name: {
            "class_type": class_type,
            "inputs": {input: list(link) for input, link in inputs.items() if link[0] not in out},
            "_meta": {"title": class_type},
        }
        for name, (class_type, inputs, _) in nodes.items()
        if name not in out
    }


def meant(*out, nodes=METHOD, **values):
    return as_meant(queued(nodes, out), canvas_of(nodes, dict.fromkeys(out, BYPASSED), **values))


def test_a_graph_in_which_nothing_is_bypassed_stays_what_it_is():
    assert meant() == queued(METHOD)
    assert as_meant(queued(METHOD), canvas_of(METHOD, {"9": MUTED})) == queued(METHOD), "muted is not bypassed"


def test_without_its_credit_node_all_steps_count_alike():
    prompt = meant("9")
    stands_in = prompt.pop("9")
    assert stands_in["class_type"] == "OTCA_StepCredit"
    assert stands_in["inputs"] == {"trajectories": ["3", 0], "method": "uniform"}
    assert stands_in["_meta"] == {"title": "Step Credit: TCD (bypassed)"}
    others = queued(METHOD)
    del others["9"]
    assert prompt == others


def test_without_a_map_over_the_picture_and_without_a_credit_the_fusion_stays():
    nodes = {**METHOD, "9": ("OTCA_SpatialCredit", {"trajectories": ("3", 0)}, None)}
    prompt = meant("9", nodes=nodes)
    assert "9" not in prompt and "credit" not in prompt["10"]["inputs"] and "12" in prompt


def test_without_its_fusion_node_the_advantages_are_added_up_over_the_same_spread():
    prompt = meant("9", "10", node_10={"std_scope": "batch"})
    assert prompt["10"]["class_type"] == "OTCA_WeightedFuse"
    wanted = {"scores": ["8", 0], "credit": ["9", 0], "mode": "weighted_advantages", "std_scope": "batch"}
    assert prompt["10"]["inputs"] == wanted and prompt["9"]["class_type"] == "OTCA_StepCredit"
    assert prompt["11"]["inputs"]["advantages"] == ["10", 0]


def test_without_stepwise_gain_uniform_credit_is_fused_as_it_would_have_fused_its_gains():
    inputs = {"model": ("1", 0), "trajectories": ("3", 0), "scores": ("8", 0)}
    nodes = {name: METHOD[name] for name in ("1", "20", "3", "5", "8", "11")}
    nodes["10"] = ("OTCA_StepwiseGain", inputs, None)
    prompt = meant("10", nodes=nodes, node_10={"fusion": "weighted_sum"})
    assert prompt["10_credit"]["class_type"] == "OTCA_StepCredit"
    wanted = {"scores": ["8", 0], "credit": ["10_credit", 0], "mode": "weighted_sum", "std_scope": "group"}
    assert prompt["10"]["inputs"] == wanted
    alone = {"3": METHOD["3"], "8": METHOD["8"], "10": nodes["10"]}
    assert not meant("10", nodes=alone).keys() & {"10", "10_credit"}, "neither of the two runs for nobody"


def test_without_tuned_model_stock_nodes_get_what_make_trainable_got():
    nodes = {
        "1": ("UNETLoader", {}, []),
        "2": ("OTCA_MakeTrainable", {"model": ("1", 0), "clip": ("4", 0), "vae": ("5", 0)}, []),
        "4": ("CLIPLoader", {}, []),
        "5": ("VAELoader", {}, []),
        "11": ("OTCA_GRPOStep", {"model": ("2", 0)}, []),
        "24": ("OTCA_TunedModel", {"model": ("11", 0)}, []),
        "21": ("KSampler", {"model": ("24", 0)}, []),
        "22": ("VAEDecode", {"samples": ("21", 0), "vae": ("24", 2)}, []),
        "23": ("KSampler", {"model": ("24", 3)}, []),
    }
    prompt = meant("24", nodes=nodes)
    assert (prompt["21"]["inputs"], prompt["22"]["inputs"]["vae"]) == ({"model": ["1", 0]}, ["5", 0])
    assert not prompt.keys() & {"23", "24"}, "there is no second model"


def test_what_shows_a_bypassed_nodes_picture_does_not_run_and_the_rest_does():
    nodes = METHOD | {
        "15": ("OTCA_BestOfN", {"advantages": ("10", 0)}, []),
        "16": ("PreviewImage", {"images": ("15", 1)}, []),
    }
    nodes["11"] = ("OTCA_GRPOStep", {**METHOD["11"][1], "advantages": ("15", 0)}, [])
    prompt = meant("15", nodes=nodes)
    assert prompt["11"]["inputs"]["advantages"] == ["10", 0] and not prompt.keys() & {"15", "16"}
    assert meant("12").keys() == METHOD.keys() - {"12", "13"}


def test_one_bypassed_node_behind_another():
    nodes = METHOD | {
        "6": ("OTCA_CombineCredit", {"trajectories": ("3", 0), "credit_1": ("9", 0), "credit_2": ("9", 0)}, []),
        "7": ("OTCA_SpatialCredit", {"trajectories": ("3", 0), "credit": ("6", 0)}, []),
        "10": ("OTCA_MOCAFuse", {"scores": ("8", 0), "credit": ("7", 0)}, None),
    }
    assert meant("6", "7", "10", nodes=nodes)["10"]["inputs"]["credit"] == ["9", 0]


def test_without_its_window_a_sampler_has_its_own_numbers_whatever_comfyui_lets_through():
    graph = queued(METHOD, ["5"])
    graph["3"]["inputs"]["window_length"] = ["20", 0]  # as ComfyUI has it: the window's first whole number goes through
    own = {"window_start": 2, "window_length": 3}
    prompt = as_meant(graph, canvas_of(METHOD, {"5": BYPASSED}, node_3=own))
    assert prompt["3"]["inputs"] == {"model": ["1", 0], "window_start": ["20", 0], "window_length": 3}
    assert "5" not in prompt


def test_without_the_update_nothing_is_recorded_and_what_needs_the_record_does_not_run():
    graph = queued(METHOD, ["11"])
    for name in ("12", "14"):
        graph[name]["inputs"]["model"] = ["1", 0]  # ComfyUI lets the model through
    prompt = as_meant(graph, canvas_of(METHOD, {"11": BYPASSED}))
    assert prompt.keys() == METHOD.keys() - {"11", "12", "13"}


def test_a_reroute_and_a_bypassed_node_of_somebody_elses_are_followed():
    nodes = METHOD | {
        "30": ("Reroute", {"": ("9", 0)}, []),
        "31": ("Theirs", {"any": ("30", 0)}, []),
        "10": ("OTCA_MOCAFuse", {"scores": ("8", 0), "credit": ("31", 0)}, None),
    }
    graph = queued(nodes, ["9", "30", "31"])
    canvas = canvas_of(nodes, {"9": BYPASSED, "31": BYPASSED})
    theirs = next(node for node in canvas["nodes"] if node["id"] == 31)
    theirs["inputs"][0]["type"] = theirs["outputs"][0]["type"] = "OTCA_CREDIT"
    prompt = as_meant(graph, canvas)
    assert prompt["10"]["inputs"]["credit"] == ["9", 0] and prompt["9"]["class_type"] == "OTCA_StepCredit"


def test_in_a_subgraph_whose_inputs_and_outputs_lead_out_of_it():
    """7 is a subgraph with Step Credit: TCD in it: trajectories come in, credit goes out."""
    inner = {
        "id": "u-1",
        "nodes": [
            {"id": 9, "type": "OTCA_TCDWeights", "mode": BYPASSED, "inputs": [{"name": "trajectories", "link": 1}]}
        ],
        "links": [
            {"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": 9, "target_slot": 0},
            {"id": 2, "origin_id": 9, "origin_slot": 0, "target_id": -20, "target_slot": 0},
        ],
    }
    nodes = {name: entry for name, entry in METHOD.items() if name != "9"}
    nodes |= {
        "7": ("u-1", {"trajectories": ("3", 0)}, []),
        "10": ("OTCA_MOCAFuse", {"scores": ("8", 0), "credit": ("7", 0)}, None),
    }
    canvas = canvas_of(nodes) | {"definitions": {"subgraphs": [inner]}}
    prompt = as_meant(queued(nodes, ["7"]), canvas)
    assert prompt["7:9"]["class_type"] == "OTCA_StepCredit"
    assert prompt["7:9"]["inputs"]["trajectories"] == ["3", 0] and prompt["10"]["inputs"]["credit"] == ["7:9", 0]
    canvas["nodes"][-1]["mode"] = BYPASSED
    outer = next(node for node in canvas["nodes"] if node["type"] == "u-1")
    outer["mode"] = BYPASSED
    assert "7:9" not in as_meant(queued(nodes, ["7", "10"]), canvas), "with the subgraph all in it is out"


@pytest.mark.parametrize("class_type", sorted(WITH_A_MEANING))
def test_what_stands_in_a_nodes_place_has_all_that_its_class_requires(class_type):
    cls = NODE_CLASS_MAPPINGS[class_type]
    inputs = {name: ("1", 0) for name, (type_, _) in declared(class_type).items() if str(type_).startswith("OTCA_")}
    nodes = {"1": ("Anything", {}, []), "2": (class_type, inputs, None)}
    nodes["3"] = ("Other", {f"from_{slot}": ("2", slot) for slot in range(len(cls.RETURN_TYPES))}, [])
    for name, entry in meant("2", nodes=nodes).items():
        if name in ("1", "3"):
            continue
        required = NODE_CLASS_MAPPINGS[entry["class_type"]].INPUT_TYPES()["required"]
        assert entry["inputs"].keys() - {"credit"} == required.keys()
        for input, value in entry["inputs"].items():
            if isinstance(type_ := declared(entry["class_type"])[input][0], list):
                assert value in type_, input
        assert name != "2" or NODE_CLASS_MAPPINGS[entry["class_type"]].RETURN_TYPES == cls.RETURN_TYPES


def test_every_node_that_gives_credit_or_fuses_has_a_meaning_of_comfyuis_own_or_ours():
    lacking = [
        name
        for name, cls in NODE_CLASS_MAPPINGS.items()
        if cls.RETURN_TYPES[:1] in (("OTCA_CREDIT",), ("OTCA_ADVANTAGES",))
        and cls.RETURN_TYPES[0] not in [type_ for type_, _ in declared(name).values()]
        and name not in WITH_A_MEANING
    ]
    assert lacking == []


# --- a stranger's canvas ----------------------------------------------------------------------------------------------

ODD = [None, 7, "text", [], {}, [None], {"id": []}, -10, True, [[1, 2, 3, 4, 5]], 10**400, "9"]


def damaged(value, chance):
    """A copy with some of its parts replaced by what has another type."""
    if chance.random() < 0.02:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {name: damaged(each, chance) for name, each in value.items()}
    return [damaged(each, chance) for each in value] if isinstance(value, list) else value


def test_no_canvas_however_damaged_ends_in_an_error():
    whole = canvas_of(METHOD, {"9": BYPASSED, "10": BYPASSED, "5": BYPASSED, "12": BYPASSED})
    looped = {"id": "OTCA_TCDWeights", "nodes": whole["nodes"], "links": whole["links"]}  # a subgraph that holds itself
    whole["definitions"] = {"subgraphs": [looped]}
    for seed in range(400):
        chance = random.Random(seed)
        canvas = damaged(whole, chance)
        graph = damaged(queued(METHOD, ["9", "10"]), chance)
        if isinstance(canvas, dict) and isinstance(graph, dict):
            assert isinstance(as_meant(named(graph, canvas, WITH_A_MEANING), canvas), dict), seed


def test_links_and_subgraphs_without_an_end_are_left_alone():
    loop = {"30": ("Reroute", {"": ("31", 0)}, []), "31": ("Reroute", {"": ("30", 0)}, [])}
    nodes = METHOD | loop | {"10": ("OTCA_MOCAFuse", {"scores": ("8", 0), "credit": ("30", 0)}, None)}
    assert "credit" not in as_meant(queued(nodes, ["9", "30", "31"]), canvas_of(nodes, {"9": BYPASSED}))["10"]["inputs"]
    itself = {"id": "u-1", "nodes": [{"id": number, "type": "u-1"} for number in range(100)]}
    canvas = {"nodes": itself["nodes"], "definitions": {"subgraphs": [itself]}}
    assert as_meant(queued(METHOD), canvas) == queued(METHOD)


# --- where it is asked ------------------------------------------------------------------------------------------------


def test_it_holds_for_every_prompt_that_comes_with_a_canvas():
    handlers = []
    middlewares.mean_bypass(SimpleNamespace(add_on_prompt_handler=handlers.append))
    (handler,) = handlers
    canvas, graph = canvas_of(METHOD, {"9": BYPASSED}), queued(METHOD, ["9"])
    data = {"prompt": graph, "client_id": "a", "extra_data": {"extra_pnginfo": {"workflow": canvas}}}
    told = handler(data)
    assert told == {**data, "prompt": meant("9")} and told["prompt"] != graph
    for other in (
        {},
        {"prompt": graph},
        {"prompt": graph, "extra_data": {"extra_pnginfo": None}},
        {"prompt": [], "extra_data": 7},
    ):
        assert handler(other) == other, "a script's, or damaged"


def test_a_node_that_is_not_listed_has_its_class_again():
    """ComfyUI's page queues it without one."""
    nodes = METHOD | {"7": ("OTCA_RewardPython", {}, []), "6": ("Theirs", {}, [])}
    graph = queued(nodes)
    for name in ("6", "7"):
        del graph[name]["class_type"]
    told = named(graph, canvas_of(nodes), ["OTCA_RewardPython"])
    assert told["7"]["class_type"] == "OTCA_RewardPython" and told["6"] == graph["6"] and told["3"] == graph["3"]
    assert named({"7": None, "8": {}}, {}, ["x"]) == {"7": None, "8": {}}


def test_the_page_asks_for_its_own_requests(site):
    canvas = canvas_of(METHOD, {"9": BYPASSED})
    answer = site.post("/otca/bypassed", {"prompt": queued(METHOD, ["9"]), "workflow": canvas})
    assert answer.json == {"prompt": meant("9")}
