"""Where the files come from that the templates' stock loaders name: for ComfyUI's dialog of missing models.

Names, addresses and folders are those of ComfyUI's own templates (package comfyui-workflow-templates 0.11.44), here by ours:
image_z_image_turbo, image_qwen_image, image_krea2_turbo_t2i, image_flux2_klein_text_to_image, flux_dev_full_text_to_image,
video_wan2_2_5B_ti2v, video_wan2_2_14B_t2v. One is not: their Krea 2 is Turbo, and Raw is the file beside it in the same
repository.
"""

HUB = "https://huggingface.co/"
Z_IMAGE = HUB + "Comfy-Org/z_image_turbo/resolve/main/split_files/"
QWEN_IMAGE = HUB + "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/"
KREA_2 = HUB + "Comfy-Org/Krea-2/resolve/main/"
KLEIN = HUB + "Comfy-Org/flux2-klein/resolve/main/split_files/"
FLUX_2 = HUB + "Comfy-Org/flux2-dev/resolve/main/split_files/"
FLUX_1 = HUB + "Comfy-Org/flux1-dev/resolve/main/"
FLUX_ENCODERS = HUB + "comfyanonymous/flux_text_encoders/resolve/main/"
LUMINA = HUB + "Comfy-Org/Lumina_Image_2.0_Repackaged/resolve/main/split_files/"
WAN_21 = HUB + "Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/"
WAN_22 = HUB + "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/"

MODELS, ENCODERS, VAE = "diffusion_models", "text_encoders", "vae"

# By template: (folder of ComfyUI's models, address).
FILES = {
    "z_image": (
        (MODELS, Z_IMAGE + "diffusion_models/z_image_turbo_bf16.safetensors"),
        (ENCODERS, Z_IMAGE + "text_encoders/qwen_3_4b.safetensors"),
        (VAE, Z_IMAGE + "vae/ae.safetensors"),
    ),
    "qwen_image": (
        (MODELS, QWEN_IMAGE + "diffusion_models/qwen_image_fp8_e4m3fn.safetensors"),
        (ENCODERS, QWEN_IMAGE + "text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors"),
        (VAE, QWEN_IMAGE + "vae/qwen_image_vae.safetensors"),
    ),
    "krea2": (
        (MODELS, KREA_2 + "diffusion_models/krea2_raw_fp8_scaled.safetensors"),
        (ENCODERS, KREA_2 + "text_encoders/qwen3vl_4b_fp8_scaled.safetensors"),
        (VAE, KREA_2 + "vae/qwen_image_vae.safetensors"),
    ),
    "flux2_klein": (
        (MODELS, KLEIN + "diffusion_models/flux-2-klein-4b.safetensors"),
        (ENCODERS, KLEIN + "text_encoders/qwen_3_4b.safetensors"),
        (VAE, FLUX_2 + "vae/flux2-vae.safetensors"),
    ),
    "flux1": (
        (MODELS, FLUX_1 + "flux1-dev.safetensors"),
        (ENCODERS, FLUX_ENCODERS + "clip_l.safetensors"),
        (ENCODERS, FLUX_ENCODERS + "t5xxl_fp16.safetensors"),
        (VAE, LUMINA + "vae/ae.safetensors"),
    ),
    "wan22_5b": (
        (MODELS, WAN_22 + "diffusion_models/wan2.2_ti2v_5B_fp16.safetensors"),
        (ENCODERS, WAN_21 + "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors"),
        (VAE, WAN_22 + "vae/wan2.2_vae.safetensors"),
    ),
    "wan22_14b": (
        (MODELS, WAN_22 + "diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors"),
        (MODELS, WAN_22 + "diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors"),
        (ENCODERS, WAN_21 + "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors"),
        (VAE, WAN_22 + "vae/wan_2.1_vae.safetensors"),
    ),
}
# The inputs by which stock loaders name files.
LOADERS = {
    "UNETLoader": ("unet_name",),
    "CLIPLoader": ("clip_name",),
    "DualCLIPLoader": ("clip_name1", "clip_name2"),
    "VAELoader": ("vae_name",),
}


def models_of(template: str, node: dict) -> list[dict[str, str]]:
    """`properties.models` of a node of the API graph: name, url and directory of each file that it loads."""
    known = {url.rsplit("/", 1)[1]: (url, folder) for folder, url in FILES.get(template, ())}
    names = [node["inputs"][name] for name in LOADERS.get(node["class_type"], ())]
    return [{"name": name, "url": known[name][0], "directory": known[name][1]} for name in names]
