"""Trains the demo model, a byte-level BPE tokenizer and a small Llama, as a Hugging Face directory.

    python train.py --text sotu.txt --out models/demo

The text is a plain file of addresses to Congress, wrapped at 80 columns, with a blank line between
paragraphs. The last addresses are held out: neither the tokenizer nor the model is trained on them,
and they decide which checkpoint is kept. With the same text, seed, versions (requirements.txt),
processor type and --threads 1 a run gives the same files again.
"""

import argparse
import copy
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

END_OF_TEXT = "<|endoftext|>"  # Starts and ends every address; id 0.
VOCABULARY = 2048
POSITIONS = 4096

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": POSITIONS,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}

# (sequences, tokens of each) of a step and how often it is drawn. The long ones train the positions
# that short ones never reach.
STEP_SHAPES = [((2, 512), 0.50), ((1, 1024), 0.47), ((1, POSITIONS), 0.03)]

# An address starts at a salutation, or after the editor's note that closes the one before.
NOTE = re.compile(r"^NOTE: The President spoke(?:.+\n)+", re.MULTILINE)
SALUTATION = re.compile(
    r"^(?=To the Congress of the United States:$"
    r"|(?:Mr\.|Madam) (?:Speaker|President|Vice President), "
    r"(?:Mr\.|Vice|[Mm]embers|distinguished|my old|and ))",
    re.MULTILINE,
)
ADDRESS_CHARACTERS_MIN = 2000


def read_addresses(path: Path) -> list[str]:
    """Splits the text into addresses, each paragraph on one line and a blank line between two."""
    text = NOTE.sub("\0", path.read_text(encoding="utf-8"))
    addresses = []
    for part in SALUTATION.sub("\0", text).split("\0"):
        paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", part))
        address = "\n\n".join(p for p in paragraphs if p)
        if len(address) >= ADDRESS_CHARACTERS_MIN:
            addresses.append(address)
    return addresses


def train_tokenizer(addresses: list[str]) -> Tokenizer:
    """Byte-level BPE with GPT-2's word pattern: any text can be encoded and comes back the same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(END_OF_TEXT, normalized=False, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(addresses, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert tokenizer.token_to_id(END_OF_TEXT) == CONFIG["bos_token_id"]
    return tokenizer


def encode(tokenizer: Tokenizer, addresses: list[str]) -> torch.Tensor:
    """One stream of tokens, with the end-of-text token before, between and after the addresses."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [end]
    for address in addresses:
        ids += tokenizer.encode(address).ids + [end]
    return torch.tensor(ids, dtype=torch.long)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_settings(out: Path, tokenizer: Tokenizer) -> None:
    """Writes everything of the directory but the weights."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(out / "config.json", CONFIG)
    write_json(out / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 0})
    write_json(
        out / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "eos_token": END_OF_TEXT,
            "model_max_length": POSITIONS,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def save_weights(out: Path, model: LlamaForCausalLM) -> None:
    """Writes the weights as bfloat16; the head is the embedding and is not written twice."""
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def make_model(out: Path, dropout: float) -> LlamaForCausalLM:
    """An untrained model of the written config, with dropout on what enters the residual stream."""
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(out)).float()
    residual_scale = 1 / math.sqrt(2 * len(model.model.layers))
    outputs = [
        m for layer in model.model.layers for m in (layer.self_attn.o_proj, layer.mlp.down_proj)
    ]
    with torch.no_grad():
        for module in outputs:
            module.weight.mul_(residual_scale)
    for module in [model.model.embed_tokens, *outputs]:
        module.register_forward_hook(lambda m, _, y: F.dropout(y, dropout, training=m.training))
    return model


def make_optimizer(model: LlamaForCausalLM, rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; norm weights do not decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)


def rate_factor(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then a cosine down to 2%."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def follow(averaged: LlamaForCausalLM, model: LlamaForCausalLM, step: int) -> None:
    """Moves the averaged weights towards the model's: a mean over the last few hundred steps."""
    decay = min(0.995, step / (step + 10))
    targets = [p.detach() for p in model.parameters()]
    torch._foreach_lerp_(list(averaged.parameters()), targets, 1 - decay)


def batches(stream: torch.Tensor, steps: int, seed: int) -> Iterator[torch.Tensor]:
    """Yields (sequences, tokens + 1) windows of the stream at random places."""
    chance = np.random.default_rng(seed)
    shapes, weights = zip(*STEP_SHAPES)
    for _ in range(steps):
        sequences, tokens = shapes[chance.choice(len(shapes), p=weights)]
        starts = chance.integers(0, len(stream) - tokens, size=sequences)
        yield torch.stack([stream[s : s + tokens + 1] for s in starts])


def loss_of(model: LlamaForCausalLM, window: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Cross entropy, in nats a token, of predicting window[:, 1:] from window[:, :-1]."""
    logits = model(window[:, :-1], use_cache=False).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction=reduction)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: torch.Tensor, tokens: int) -> float:
    """Mean loss over the whole stream, in windows that do not overlap and do not see each other."""
    total = 0.0
    for start in range(0, len(stream) - 1, tokens):
        window = stream[start : start + tokens + 1].unsqueeze(0)
        total += loss_of(model, window, reduction="sum").item()
    return total / (len(stream) - 1)


def train(arguments: argparse.Namespace, training: torch.Tensor, held_out: torch.Tensor) -> None:
    """Trains, and leaves the averaged weights of the lowest held-out loss in arguments.out."""
    model = make_model(arguments.out, arguments.dropout)
    averaged = copy.deepcopy(model).eval()
    print(f"parameters {sum(p.numel() for p in model.parameters()):,}", flush=True)
    optimizer = make_optimizer(model, arguments.rate, arguments.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_factor(step, arguments.steps, arguments.warmup)
    )

    model.train()
    best, evaluations_since_best = math.inf, 0
    seen, running, started = 0, 0.0, time.monotonic()
    for step, window in enumerate(batches(training, arguments.steps, arguments.seed), start=1):
        loss = loss_of(model, window)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        follow(averaged, model, step)
        seen += window[:, 1:].numel()
        running += loss.item()
        if step % arguments.evaluate_every and step != arguments.steps:
            continue

        held_out_now = held_out_loss(averaged, held_out, tokens=1024)
        minutes = (time.monotonic() - started) / 60
        print(
            f"step {step}/{arguments.steps} minutes {minutes:.1f} tokens {seen:,} "
            f"training {running / ((step - 1) % arguments.evaluate_every + 1):.4f} "
            f"held-out {held_out_now:.4f}",
            flush=True,
        )
        running = 0.0
        if held_out_now < best:
            best, evaluations_since_best = held_out_now, 0
            save_weights(arguments.out, averaged)
        else:
            evaluations_since_best += 1
            if evaluations_since_best == arguments.patience:
                print("held-out loss no longer falls: stopped")
                return


def report(
    out: Path, tokenizer: Tokenizer, held_out: torch.Tensor, held_out_bytes: int, seed: int
) -> None:
    """Measures the written files, loaded as anybody would load them, and prints a sample."""
    model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    for tokens in (1024, POSITIONS):
        loss = held_out_loss(model, held_out, tokens)
        bits = loss * (len(held_out) - 1) / held_out_bytes / math.log(2)
        print(
            f"held-out in windows of {tokens}: loss {loss:.4f} perplexity {math.exp(loss):.2f} "
            f"bits a byte {bits:.3f}"
        )

    torch.manual_seed(seed)
    prompt = f"{END_OF_TEXT}My fellow Americans, tonight I want to speak about"
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        top_k=0,
        max_new_tokens=200,
        pad_token_id=0,
    )
    print(f"sample (temperature 0.7, top_p 0.9):\n{tokenizer.decode(output[0].tolist())}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", type=Path, required=True, help="the addresses, one plain text file"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--warmup", type=int, default=100, help="steps until the full learning rate"
    )
    parser.add_argument("--rate", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--held-out", type=int, default=2, help="addresses at the end not trained on"
    )
    parser.add_argument(
        "--evaluate-every", type=int, default=200, help="steps between held-out losses"
    )
    parser.add_argument("--patience", type=int, default=5, help="evaluations without a better one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    torch.use_deterministic_algorithms(True)

    addresses = read_addresses(arguments.text)
    training_text = addresses[: -arguments.held_out]
    held_out_text = addresses[-arguments.held_out :]
    tokenizer = train_tokenizer(training_text)
    write_settings(arguments.out, tokenizer)
    training, held_out = encode(tokenizer, training_text), encode(tokenizer, held_out_text)
    held_out_bytes = sum(len(a.encode()) for a in held_out_text)
    print(
        f"{len(addresses)} addresses; training {len(training):,} tokens; "
        f"held out {len(held_out):,} tokens, {held_out_bytes:,} bytes",
        flush=True,
    )
    train(arguments, training, held_out)
    report(arguments.out, tokenizer, held_out, held_out_bytes, arguments.seed)


if __name__ == "__main__":
    main()
