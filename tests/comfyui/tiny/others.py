"""The classes of comfy.supported_models that are not in the tables of pictures and videos, and why."""

from __future__ import annotations

NO_FLOW = "no flow matching"
COSMOS = "flow matching in another parametrisation: its noise level runs to 80 and its velocity is scaled"
SOUND = "makes sound"
SOLID = "makes 3D shapes"
SEES = "looks at pictures, makes none"

NOT: dict[str, str] = {
    **dict.fromkeys(
        (
            *("LotusD", "Stable_Zero123", "SD15_instructpix2pix", "SD15", "SD20", "SD21UnclipL", "SD21UnclipH"),
            *("SDXL_instructpix2pix", "SDXLRefiner", "SDXL", "SSD1B", "KOALA_700M", "KOALA_1B", "Segmind_Vega"),
            *("SD_X4Upscaler", "Stable_Cascade_C", "Stable_Cascade_B", "SV3D_u", "SV3D_p", "SVD_img2vid"),
            *("PixArtAlpha", "PixArtSigma", "HunyuanDiT", "HunyuanDiT1", "CosmosT2V", "CosmosI2V"),
            *("CogVideoX_T2V", "CogVideoX_I2V", "CogVideoX_Inpaint"),
        ),
        NO_FLOW,
    ),
    **dict.fromkeys(("CosmosT2IPredict2", "CosmosI2VPredict2"), COSMOS),
    "WAN21_FlowRVS": "a flow from a picture to a picture, not from noise",
    **dict.fromkeys(("StableAudio", "StableAudio3", "ACEStep", "ACEStep15", "MiniMaxMusic3"), SOUND),
    **dict.fromkeys(("Hunyuan3Dv2mini", "Hunyuan3Dv2", "Hunyuan3Dv2_1", "TripoSplat", "Trellis2"), SOLID),
    "HiDreamO1": "its noise is scaled by 8 (noise_scale)",
    **dict.fromkeys(("RT_DETR_v4", "SAM3", "SAM31", "DepthAnything3"), SEES),
}
