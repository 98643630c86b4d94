"""Makes the golden logits: what Hugging Face transformers answers for small models.

    python make_golden_logits.py                            # the tiny models beside this script
    python make_golden_logits.py --demo ../../models/demo   # demo_greedy.json for the demo model

Each tiny model is a directory: config.json, model.safetensors and logits.json. Everything is
computed in float32 (bfloat16 weights are widened first), with eager attention, no KV cache, on one
thread.

Requires the versions that made the files (also in models/demo/requirements.txt):
    numpy==2.4.6 safetensors==0.8.0 tokenizers==0.23.3 torch==2.15.0 transformers==5.24.0
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

HERE = Path(__file__).resolve().parent
INIT_STD = 0.2  # Large, so that logits are far apart.
PROMPT_LENGTHS = (1, 17, 100)
GREEDY_TOKENS = 16
MARGIN_MIN = 1e-2  # Between the best and the second logit at every greedy step: no near-ties.
VOCABULARY = 128

# In the form that transformers 5 saves: rope_theta inside rope_parameters, dtype.
LLAMA_GQA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}

# In the form of the published Llama 3 checkpoints: rope_theta beside rope_scaling, torch_dtype.
LLAMA_TIED_BF16 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": INIT_STD,
    "intermediate_size": 80,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}

GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "bos_token_id": 0,
    "eos_token_id": 1,
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 32,
    "n_layer": 2,
    "n_positions": 256,
    "vocab_size": VOCABULARY,
}

DEMO_TOKENS = 32
DEMO_TOP = 20
DEMO_PROMPTS = [
    (
        "<|endoftext|>Mr. Speaker, Members of Congress, and my fellow citizens: I come before "
        "you tonight to report on the work of this Government and on the hopes of the people "
        "we serve. The state of our Union"
    ),
    (
        "<|endoftext|>Members of Congress, this past year has asked much of the American "
        "people. Families in every State have worked longer hours to pay for the same food, "
        "the same fuel, and the same medicine.\n\n"
        "I do not ask you tonight to do what is easy. I ask you to do what is right. First, "
        "we must balance our budget without placing the burden upon those who can least "
        "afford it. Second, we must see to it that every child who is ready to learn finds a "
        "school that is ready to teach. And finally, we must be strong enough to keep the "
        "peace, and wise enough to seek it with every nation that will join us.\n\n"
        "None of this will be done in a single day. But let it be said of this Congress that "
        "when the work was hard, we did not turn away. Let us begin"
    ),
]


def randomize(model: PreTrainedModel, seed: int) -> None:
    """Draws every parameter, biases and norm weights too, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm_weight = parameter.dim() == 1 and name.endswith("weight")
            parameter.normal_(1.0 if is_norm_weight else 0.0, INIT_STD, generator=generator)


def load(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """(tokens, vocabulary) logits of one forward pass over the whole sequence."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """The most likely continuation. Fails where two tokens are nearly equal or at an end token."""
    tokens = list(prompt)
    for _ in range(count):
        top = logits_of(model, tokens)[-1].topk(2)
        best, second = top.values.tolist()
        assert best - second > MARGIN_MIN, (
            f"near-tie after {len(tokens)} tokens: {best - second:.6f}"
        )
        tokens.append(int(top.indices[0]))
        assert tokens[-1] != model.config.eos_token_id, f"end token after {len(tokens) - 1} tokens"
    return tokens[len(prompt) :]


def rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def write_cases(path: Path, cases: list[dict]) -> None:
    """Writes {"cases": [...]}, one member of a case a line, one row of logits a line."""
    written = []
    for case in cases:
        members = []
        for key, value in case.items():
            is_table = isinstance(value, list) and value and isinstance(value[0], list)
            text = json.dumps(value, separators=(",", ":"))
            members.append(f'"{key}": ' + (text.replace("],[", "],\n[") if is_table else text))
        written.append("{" + ",\n".join(members) + "}")
    path.write_text('{"cases": [\n' + ",\n".join(written) + "\n]}\n", encoding="utf-8")


def make_tiny(name: str, model: PreTrainedModel, published_config: dict | None, seed: int) -> None:
    """Writes one tiny model and its golden logits at a few positions of each prompt."""
    directory = HERE / name
    randomize(model, seed)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if published_config:
        text = json.dumps(published_config, indent=2) + "\n"
        (directory / "config.json").write_text(text, encoding="utf-8")

    model = load(directory)
    chance = torch.Generator().manual_seed(seed)
    cases = []
    for length in PROMPT_LENGTHS:
        prompt = torch.randint(0, VOCABULARY, (length,), generator=chance).tolist()
        positions = sorted({0, length // 2, max(0, length - 2), length - 1})
        continuation = greedy(model, prompt, GREEDY_TOKENS)
        assert len(set(continuation)) > GREEDY_TOKENS // 4, f"{name}: the continuation only repeats"
        logits = logits_of(model, prompt)
        cases.append(
            {
                "prompt": prompt,
                "positions": positions,
                "logits": [rounded(logits[position]) for position in positions],
                "greedy": continuation,
            }
        )
    write_cases(directory / "logits.json", cases)


def make_all_tiny() -> None:
    make_tiny("tiny_llama_gqa", LlamaForCausalLM(LlamaConfig(**LLAMA_GQA)), None, seed=2)

    config = LlamaConfig.from_dict(LLAMA_TIED_BF16)
    assert config.rope_parameters["rope_type"] == "llama3"
    assert config.rope_parameters["rope_theta"] == 500000.0
    tied = LlamaForCausalLM(config).to(torch.bfloat16)
    make_tiny("tiny_llama_tied_bf16", tied, LLAMA_TIED_BF16, seed=6)

    make_tiny("tiny_gpt2", GPT2LMHeadModel(GPT2Config(**GPT2)), None, seed=2)


def make_demo(directory: Path) -> None:
    """Writes demo_greedy.json: prompts, the highest logits after them, greedy continuations."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = load(directory)
    cases = []
    for text in DEMO_PROMPTS:
        prompt = tokenizer.encode(text).ids
        continuation = greedy(model, prompt, DEMO_TOKENS)
        top = logits_of(model, prompt)[-1].topk(DEMO_TOP)
        cases.append(
            {
                "text": text,
                "prompt": prompt,
                "top_ids": top.indices.tolist(),
                "top_logits": rounded(top.values),
                "greedy": continuation,
                "greedy_text": tokenizer.decode(continuation),
            }
        )
    write_cases(HERE / "demo_greedy.json", cases)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo", type=Path, help="directory of the demo model; makes only its file"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.demo:
        make_demo(arguments.demo)
    else:
        make_all_tiny()


if __name__ == "__main__":
    main()
