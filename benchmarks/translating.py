"""
`Translator` with its defaults beside `generate()` of the library's Marian with the same weights, over real sentences.

python -m benchmarks.translating MODEL --source F F [--target F F] [--engines ours FOLDER ...]
"""

import argparse
import statistics
from pathlib import Path

import sacrebleu
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

from benchmarks.common import in_turn, machine, ratio, table
from modeling_vanilla.data.text_files import read_lines
from modeling_vanilla.decoding import Translator
from modeling_vanilla.decoding.lengths import max_new_tokens

BATCH_SIZE, NUM_BEAMS = 64, 4


def as_marian(model: torch.nn.Module) -> MarianMTModel:
    """Marian's class with a post-norm model's weights, and its table of positions."""
    c = model.config
    names = [
        "vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "encoder_ffn_dim",
        "decoder_attention_heads", "decoder_ffn_dim", "pad_token_id", "eos_token_id", "decoder_start_token_id",
        "scale_embedding", "activation_function", "max_position_embeddings",
    ]  # fmt: skip
    twin = MarianMTModel(MarianConfig(**{name: getattr(c, name) for name in names}, dropout=0.0)).eval()
    weights = {name.replace("encoder.embed_tokens", "shared"): w for name, w in model.state_dict().items()}
    missing, unexpected = twin.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("embed_" in name or "lm_head" in name or "final" in name for name in missing), missing
    with torch.no_grad():
        for side in (twin.model.encoder, twin.model.decoder):
            side.embed_positions.weight.copy_(model.model.encoder.embed_positions.table[: c.max_position_embeddings])
    twin.generation_config.num_beams = 1
    return twin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder of `vanilla train`, of the paper's post-norm kind")
    parser.add_argument("--source", nargs="+", type=Path, required=True)
    parser.add_argument("--target", nargs="+", type=Path)
    parser.add_argument("--engines", nargs="+", default=["ours"], help="ours, or folders of `vanilla convert`")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    texts = [line for file in args.source for line in read_lines(file, strict=True)]
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    twin = as_marian(model)
    output: dict[str, list[str]] = {}

    @torch.inference_mode()
    def reference(_: int) -> None:
        lines = []
        for start in range(0, len(texts), BATCH_SIZE):
            batch = tokenizer(texts[start : start + BATCH_SIZE], return_tensors="pt", padding=True)
            batch.pop("token_type_ids", None)
            longest = max_new_tokens(batch["input_ids"].shape[1]) + 1
            ids = twin.generate(**batch, num_beams=NUM_BEAMS, max_length=longest, length_penalty=penalty)
            lines += tokenizer.batch_decode(ids, skip_special_tokens=True)
        output["Marian"] = lines

    penalty = model.generation_config.length_penalty or 1.0
    timed = {"Marian": reference}
    for name in args.engines:
        translator = Translator.from_pretrained(args.model if name == "ours" else name)

        def run(_: int, translator: Translator = translator, name: str = name) -> None:
            output[name] = [t.text for t in translator.translate(texts, num_beams=NUM_BEAMS, progress=False)]

        timed[name] = run
    print(f"{len(texts):,} sentences, beam {NUM_BEAMS}, {machine()}\n")
    seconds = in_turn(timed, args.rounds, warm_up=0)
    references = [line for file in args.target for line in read_lines(file, strict=True)] if args.target else None
    rows = []
    for name, times in seconds.items():
        middle, low, high = ratio(seconds["Marian"], times)
        same = statistics.mean(a == b for a, b in zip(output[name], output["Marian"], strict=True))
        bleu = f"{sacrebleu.corpus_bleu(output[name], [references]).score:.2f}" if references else ""
        seconds_each = statistics.median(times)
        rows.append((Path(name).name, f"{seconds_each:.1f}", f"{len(texts) / seconds_each:,.0f}",
                     f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{100 * same:.2f} %", bleu))  # fmt: skip
    print(table(("who", "seconds", "sentences/s", "faster by (lowest to highest)", "same translations", "BLEU"), rows))


if __name__ == "__main__":
    main()
