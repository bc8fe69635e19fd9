"""
Patches as tokens: the encoder of the text models, not a line changed, on digit images (Dosovitskiy et al. 2021).

An image of 8 x 8 pixels is cut into 16 patches of 2 x 2 (or 64 of one pixel, or 4 of 4 x 4), whose mean-pooled
encodings name the digit. Where the pooled output looks is drawn over the image: the last layer's attention, averaged
over its heads and over its queries, which count alike in the mean.
"""

import statistics

import torch
from matplotlib.figure import Figure

from modeling_vanilla import VanillaForImageClassification
from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.images import image_processor, load_images
from modeling_vanilla.experiments.common import Options, Report, figure_of, trained


def run(options: Options) -> Report:
    epochs = options.choose(8, 60)
    rows, means, first = [], {}, None
    for patch in (1, 2, 4):
        scores = []
        for seed in options.seeds:
            tokens = (8 // patch) ** 2
            folder, results = trained(
                options, f"patches-{patch}", "digits", patch_size=patch, max_position_embeddings=tokens,
                num_train_epochs=epochs, seed=seed,
            )  # fmt: skip
            scores.append(figure_of(results, "test", "accuracy"))
            first = folder if patch == 2 and first is None else first
        means[patch] = statistics.mean(scores)
        figures = (f"{value:.1f}" for value in (means[patch], min(scores), max(scores)))
        rows.append((f"{patch} x {patch}", tokens, f"{results['parameters']:,}", *figures))
    assert first is not None
    model = VanillaForImageClassification.from_pretrained(first, attn_implementation="eager").eval()
    images = load_images(DataArguments(task="image_classification", dataset_name="digits"))[0]["test"]
    figure, share = drawn(model, images)
    header = ("patch (pixels)", "tokens", "parameters", "accuracy (%), mean", "lowest", "highest")
    best = max(means, key=means.__getitem__)
    found = (
        f"{epochs} epochs over 1,294 digits. Patches of {best} x {best} pixels name {means[best]:.1f} % of 360 test "
        f"digits, the worst size {min(means.values()):.1f} %. With 2 x 2 patches, the half of an image's patches that "
        f"has most ink gets {100 * share:.0f} % of the pooled output's attention (50 % would be no preference; mean of "
        f"{len(images)} images)."
    )
    return Report([(header, rows)], figure, found, f"scikit-learn's 1,797 digits, {options.runs()}")


@torch.no_grad()
def pooled_attention(model: VanillaForImageClassification, images: list) -> torch.Tensor:
    """What the mean of the last layer's outputs looks at: `(B, rows, columns)`, each summing to 1."""
    processor = image_processor(model.config.image_size, model.config.num_channels)
    pixels = processor([image.convert("RGB") for image in images], return_tensors="pt")["pixel_values"]
    attention = model(pixels, output_attentions=True).attentions[-1]  # (B, heads, S, S)
    side = model.config.image_size // model.config.patch_size
    return attention.mean((1, 2)).view(-1, side, side)


def drawn(model: VanillaForImageClassification, images, shown: int = 6) -> tuple[Figure, float]:
    """Images above, attention below; and the share of attention that the half of the patches with most ink gets."""
    attention = pooled_attention(model, images["image"])
    size, P = model.config.image_size, model.config.patch_size
    pixels = (
        torch.tensor([list(image.convert("L").getdata()) for image in images["image"]]).view(-1, size, size).float()
    )
    bright = torch.nn.functional.avg_pool2d(pixels[:, None], P)[:, 0].flatten(1)  # (B, S)
    half = bright.topk(bright.shape[1] // 2, dim=1).indices
    share = float(attention.flatten(1).gather(1, half).sum(1).mean())
    figure = Figure(figsize=(1.3 * shown + 0.8, 3), layout="constrained")
    axes = figure.subplots(2, shown)
    for column in range(shown):
        axes[0, column].imshow(pixels[column], cmap="Greys")
        picture = axes[1, column].imshow(attention[column], cmap="Greys", vmin=0, vmax=float(attention[:shown].max()))
        axes[0, column].set_title(f"label {images['label'][column]}", fontsize="small")
        for row in (0, 1):
            axes[row, column].set(xticks=[], yticks=[])
    axes[0, 0].set_ylabel("image")
    axes[1, 0].set_ylabel("attention")
    figure.colorbar(picture, ax=axes[1, :].tolist(), label="share")
    return figure, share
