"""Records what Hugging Face's own Llama, Qwen2 and Qwen3 compute: the fixture data/logits.json.

``pip install transformers`` and run ``python tests/_record_logits.py``; the tests compare our
decoder with the file and need neither. Weights come from a formula, so that the file holds none.
"""

import json
from pathlib import Path

import numpy as np

PATH = Path(__file__).parent / "data" / "logits.json"
NUM_TOKENS = 12

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
CONFIGS = {
    "llama": {**COMMON, "model_type": "llama", "rope_theta": 10_000.0},
    "llama-3.1": {
        **COMMON,
        "model_type": "llama",
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {**COMMON, "model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": {**COMMON, "model_type": "qwen3", "rope_theta": 1e6, "head_dim": 16},
}


def weight(name, shape):
    """A weight as fp32: the same numbers for the same name and shape, on any machine."""
    seed = [ord(letter) for letter in name]
    drawn = np.random.Generator(np.random.PCG64(seed)).uniform(-1, 1, shape)
    return (1 + 0.3 * drawn if "norm" in name else 0.4 * drawn).astype(np.float32)


def tokens(vocab_size):
    return [(7 * i * i + 3 * i) % vocab_size for i in range(NUM_TOKENS)]


def record():
    import torch  # noqa: PLC0415
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    found = {}
    for name, config in CONFIGS.items():
        settings = {key: value for key, value in config.items() if key != "model_type"}
        made = AutoConfig.for_model(config["model_type"], **settings)
        model = AutoModelForCausalLM.from_config(made).float().eval()
        state = model.state_dict()
        for key, tensor in state.items():
            tied = key == "lm_head.weight" and config.get("tie_word_embeddings")
            source = "model.embed_tokens.weight" if tied else key
            state[key] = torch.from_numpy(weight(source, tuple(tensor.shape)))
        model.load_state_dict(state)
        with torch.inference_mode():
            logits = model(torch.tensor([tokens(config["vocab_size"])])).logits[0]
        found[name] = {
            "config": config,
            "logits": [[round(float(x), 5) for x in row] for row in logits[:, ::8]],
        }
    PATH.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    record()
