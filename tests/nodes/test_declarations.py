"""What every node class says: its inputs, outputs and words; few inputs at first sight, and nothing hidden that has to be set."""

from __future__ import annotations

import inspect
import re

from comfyui_otca import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

NODES = list(NODE_CLASS_MAPPINGS.items())
COMFYUIS = {"IMAGE", "MODEL", "CLIP", "VAE", "CONDITIONING"}  # edges to and from ComfyUI's own nodes
WIDGETS = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}


def inputs(node):
    declared = node.INPUT_TYPES()
    return {name: spec for section in ("required", "optional") for name, spec in declared.get(section, {}).items()}


def is_widget(type_):
    return isinstance(type_, list) or type_ in WIDGETS


def test_title_category_and_outputs():
    for node_id, node in NODES:
        assert node_id == f"OTCA_{node.__name__}" and NODE_DISPLAY_NAME_MAPPINGS[node_id] == node.TITLE
        assert node.CATEGORY.startswith("OTCA/") and len(node.CATEGORY) > len("OTCA/") and len(node.DESCRIPTION) > 20
        assert set(node.INPUT_TYPES()) <= {"required", "optional", "hidden"}, node_id
        names, tips = (getattr(node, of, ()) for of in ("RETURN_NAMES", "OUTPUT_TOOLTIPS"))
        assert isinstance(node.RETURN_TYPES, tuple) and len(set(names)) == len(node.RETURN_TYPES), node_id
        assert len(names) == len(tips) == len(node.RETURN_TYPES) and all(tips), node_id
        assert set(getattr(node, "OUTPUT_LABELS", ())) <= set(names), node_id
    assert len(set(NODE_DISPLAY_NAME_MAPPINGS.values())) == len(NODES)


def test_a_newcomer_sees_twenty_nodes_and_what_they_connect_to():
    """Whatever is rarer is a level further down, or research; so are those credits and fusions that are not of the paper."""
    stages = {}
    for node_id, node in NODES:
        _, stage, *below = node.CATEGORY.split("/")
        assert not below or (stage, *below) in (("rewards", "more"), ("rewards", "services")), node_id
        if not below:
            stages.setdefault(stage, []).append(node)
    hidden = {stage: stages.pop(stage) for stage in ("research", "more")}
    everyday = [node for nodes in stages.values() for node in nodes]
    assert len(everyday) <= 20 and len(hidden["more"]) <= 4
    needed = {
        type_ for node in everyday for type_, _ in node.INPUT_TYPES()["required"].values() if not is_widget(type_)
    }
    assert needed - COMFYUIS <= {type_ for node in everyday for type_ in node.RETURN_TYPES}


def test_the_function_takes_what_is_declared():
    for node_id, node in NODES:
        parameters = inspect.signature(getattr(node, node.FUNCTION)).parameters.values()
        named = {
            each.name: each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"
        }
        declared = {name: section for section, table in node.INPUT_TYPES().items() for name in table}
        assert set(named) <= set(declared), node_id
        assert any(each.kind is each.VAR_KEYWORD for each in parameters) or set(declared) <= set(named), node_id
        for name, parameter in named.items():
            if declared[name] in ("optional", "hidden"):
                assert parameter.default is not inspect.Parameter.empty, f"{node_id}: {name} may be left unconnected"


TO_DOWNLOAD = {
    ("OTCA_RewardHPSv2", "path")
}  # choices whose default is a file that ComfyUI lists as missing until it is there


def test_inputs_explain_themselves_and_have_defaults_in_their_range():
    for node_id, node in NODES:
        shown = [options["display_name"] for _, options in inputs(node).values()]
        assert all(name.strip() for name in shown) and len(set(shown)) == len(shown), node_id
        for name, (type_, options) in inputs(node).items():
            assert options["tooltip"].rstrip(".…?").strip(), (node_id, name)
            if isinstance(type_, list):
                there = type_ and ("default" not in options or options["default"] in type_)
                assert there or (node_id, name) in TO_DOWNLOAD, (node_id, name)
            elif type_ not in WIDGETS:
                assert type_ in COMFYUIS or type_.startswith("OTCA_"), (node_id, name)
            else:
                assert type(options["default"]) is WIDGETS[type_], (node_id, name)
                if type_ in ("INT", "FLOAT"):
                    assert options["min"] <= options["default"] <= options["max"], (node_id, name)
                if options["default"] == "":
                    assert options.get("placeholder"), f"{node_id}: {name} does not say what goes into it"


def test_a_node_shows_few_widgets_at_first_sight_and_what_it_does_not_show_will_do():
    for node_id, node in NODES:
        widgets = {name: options for name, (type_, options) in inputs(node).items() if is_widget(type_)}
        shown = [name for name, options in widgets.items() if not options.get("advanced")]
        assert len(shown) <= 6 and (shown or not widgets), (node_id, shown)
        for name, (type_, options) in inputs(node).items():
            assert not options.get("advanced") or ("default" in options and is_widget(type_)), (node_id, name)


def test_what_shows_something_runs_without_a_training_below():
    outputs = {node_id for node_id, node in NODES if getattr(node, "OUTPUT_NODE", False)}
    worth_seeing = {"OTCA_SCORES", "OTCA_CREDIT", "OTCA_ADVANTAGES"}
    seen = {node_id for node_id, node in NODES if worth_seeing & set(node.RETURN_TYPES)}
    seen -= {"OTCA_MyPictures"}  # whose scores were there before
    assert outputs == {"OTCA_TrainingRun", "OTCA_SaveLoRA", "OTCA_ScoreImages", "OTCA_RewardGradientStep"} | seen


def test_only_what_is_another_in_every_iteration_advances():
    advancing = {
        (node_id, name)
        for node_id, node in NODES
        for name, (_, options) in inputs(node).items()
        if options.get("control_after_generate")
    }
    assert {("OTCA_SDESampler", "seed"), ("OTCA_PromptDataset", "index")} <= advancing
    assert ("OTCA_LoadFlowModel", "seed") not in advancing and ("OTCA_PromptDataset", "seed") not in advancing


def test_every_edge_has_two_ends():
    made = {type_ for _, node in NODES for type_ in node.RETURN_TYPES}
    taken = {type_ for _, node in NODES for type_, _ in inputs(node).values() if not is_widget(type_)}
    assert taken - COMFYUIS <= made and made - COMFYUIS <= taken | set(WIDGETS)


# --- words ----------------------------------------------------------------------------------------------------------

SEARCHES = {
    "train lora": {"MakeTrainable", "LoadFlowModel", "GRPOStep", "TrainingRun", "SaveLoRA"},
    "rlhf": {"GRPOStep", "MakeTrainable", "RewardVote"},
    **dict.fromkeys(("fine-tune", "finetune"), {"GRPOStep", "MatchingStep", "MakeTrainable"}),
    "preference": {"MyPictures", "RewardPickScore", "RewardHPSv2"},
    "dpo": {"MyPictures", "MatchingStep"},
    "reward": {"RewardStack", "RewardHTTP"},
    "score image": {"ScoreImages", "RewardStack", "RewardAesthetic"},
    "aesthetic": {"RewardAesthetic"},
    "flux": {"LoadFlowModel", "MakeTrainable", "EmbeddedModel"},
    "grpo": {"GRPOStep", "SDESampler", "StepCredit"},
    # The plain words, which were titles once.
    "load model": {"LoadFlowModel"},
    "sample groups": {"SDESampler"},
    "score samples": {"RewardStack"},
    "step credit": {"TCDWeights"},
    "combine rewards": {"MOCAFuse", "WeightedFuse", "MinNormFuse"},
    "update: grpo": {"GRPOStep"},
    "update: matching": {"MatchingStep"},
    "update: reward gradient": {"RewardGradientStep"},
}


def test_what_people_type_finds_the_node():
    for typed, wanted in SEARCHES.items():
        assert wanted <= {node.__name__ for _, node in NODES if typed in node.SEARCH_ALIASES}, typed
    for node_id, node in NODES:
        aliases = vars(node)["SEARCH_ALIASES"]
        assert isinstance(aliases, list) and len(aliases) >= 3 and len(set(aliases)) == len(aliases), node_id
        assert all(alias == alias.lower().strip() for alias in aliases), node_id


def test_the_essentials_are_the_steps_of_the_method():
    """The loader of folders and the one of ComfyUI's models are one step of it."""
    essentials = [node for _, node in NODES if getattr(node, "ESSENTIALS_CATEGORY", None) == "Training"]
    assert {node.__name__: node.CATEGORY.removeprefix("OTCA/") for node in essentials} == {
        "LoadFlowModel": "model",
        "MakeTrainable": "model",
        "SDESampler": "sampling",
        "RewardStack": "rewards",
        "TCDWeights": "credit",
        "MOCAFuse": "fusion",
        "GRPOStep": "training",
    }


def test_the_tooltip_says_how_an_input_is_called_that_is_shown_by_another_name():
    sampler, moca = (inputs(NODE_CLASS_MAPPINGS[name]) for name in ("OTCA_SDESampler", "OTCA_MOCAFuse"))
    assert sampler["eta"][1]["display_name"] == "amount of noise"
    assert sampler["eta"][1]["tooltip"].endswith("In files and messages: eta.")
    assert sampler["negative_prompt"][1]["display_name"] == "negative prompt"
    assert "In files" not in sampler["negative_prompt"][1]["tooltip"]
    assert moca["std_scope"][1]["tooltip"].endswith("In files and messages: std_scope.")


def test_tooltips_call_other_inputs_as_the_canvas_shows_them():
    """An input's name in files stands in its own tooltip's last sentence alone."""
    coded = {of for _, node in NODES for of in inputs(node) if "_" in of}
    for name, node in NODES:
        choices = {choice for type_, _ in inputs(node).values() if isinstance(type_, list) for choice in type_}
        for of, (_, options) in inputs(node).items():
            text = options["tooltip"].partition(" In files and messages:")[0]
            words_in_it = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", text))
            assert not (words_in_it & coded) - choices, (name, of)


def test_a_required_input_that_is_missing_is_left_to_comfyui():
    """Seen before: "VALIDATE_INPUTS() missing 1 required positional argument" on the node behind."""
    complaints = []
    for name, cls in NODE_CLASS_MAPPINGS.items():
        taken = inspect.signature(getattr(cls, "VALIDATE_INPUTS", lambda: True)).parameters
        required = [missing for missing in cls.INPUT_TYPES()["required"] if missing in taken]
        complaints += [(name, missing) for missing in required if taken[missing].default is not None]
        if (
            taken
            and (answer := cls.VALIDATE_INPUTS(**{"input_types": {}} if "input_types" in taken else {})) is not True
        ):
            complaints += [(name, missing, answer) for missing in required if answer.startswith(f"{missing}:")]
    assert complaints == []
