"""The decoder: against Hugging Face's own, through block tables of any kind, from files."""

import json

import numpy as np
import pytest
from _record_logits import PATH, tokens, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_backend.shape import PRESETS, ModelShape, load_shape, shape_from_config
from sim.errors import UsageError
from sim.presets import load_preset

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from gpu_backend import paged  # noqa: E402 - they need torch
from gpu_backend.kv_cache import Chunk, KVCache  # noqa: E402
from gpu_backend.model import Decoder  # noqa: E402
from gpu_backend.weights import assemble, load_weights, random_weights  # noqa: E402

CPU = torch.device("cpu")
RECORDED = json.loads(PATH.read_text())
SHAPE = ModelShape(61, 32, 48, 2, 4, 2, 8, rope_theta=1e4)
TOLERANCE = 2e-5


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def random_decoder(shape=SHAPE):
    return Decoder(shape, random_weights(shape, seed=1, device=CPU, dtype=torch.float32))


def cache_of(num_blocks, block_size, shape=SHAPE):
    return KVCache(shape, num_blocks, block_size, CPU, torch.float32)


# The arithmetic


@pytest.mark.parametrize("name", RECORDED)
def test_logits_are_those_of_hugging_face(name):
    shape = shape_from_config(RECORDED[name]["config"], name)
    weights = assemble(shape, lambda key, size: torch.from_numpy(weight(key, size)))
    decoder = Decoder(shape, weights)
    logits = decoder.logits(decoder.plain_states(torch.tensor(tokens(shape.vocab_size))))
    recorded = np.array(RECORDED[name]["logits"])
    assert recorded.std() > 1
    np.testing.assert_allclose(logits[:, ::8].numpy(), recorded, atol=5e-5)


def test_parameters_are_counted_as_they_are_stored():
    for shape in (SHAPE, *(shape_from_config(r["config"], n) for n, r in RECORDED.items())):
        weights = random_weights(shape, seed=0, device=CPU, dtype=torch.float32)
        assert weights.num_bytes == 4 * shape.num_params


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-8b"])
def test_presets_have_the_sizes_of_the_cost_presets(name):
    facts = load_preset(name, "h200").model
    assert PRESETS[name].num_params == facts.num_params
    assert 2 * PRESETS[name].kv_values_per_token == facts.kv_bytes_per_token


def test_a_seed_is_a_model():
    first, same, other = (
        random_weights(SHAPE, seed=s, device=CPU, dtype=torch.float32) for s in (3, 3, 4)
    )
    assert torch.equal(first.layers[1].down, same.layers[1].down)
    assert not torch.equal(first.layers[1].down, other.layers[1].down)


# Block tables


class Case:
    """Sequences cut into steps at random, their blocks scattered over the pool."""

    def __init__(self, seed, block_size):
        self.rng = np.random.default_rng(seed)
        lengths = self.rng.integers(1, 70, size=self.rng.integers(1, 6))
        self.prompts = [self.rng.integers(0, SHAPE.vocab_size, int(n)) for n in lengths]
        counts = [-(-len(prompt) // block_size) for prompt in self.prompts]
        self.num_blocks = sum(counts) + 3
        ids = self.rng.permutation(self.num_blocks)
        self.tables = np.split(ids, np.cumsum(counts))[:-1]

    def steps(self):
        """Chunks of every step, with the sequences that they are of."""
        done = [0] * len(self.prompts)
        while True:
            left = [i for i, prompt in enumerate(self.prompts) if done[i] < len(prompt)]
            if not left:
                return
            chosen = [i for i in left if self.rng.random() < 0.7] or left[:1]
            chunks = []
            for i in chosen:
                num = int(min(self.rng.choice([1, 1, 2, 9, 50]), len(self.prompts[i]) - done[i]))
                new = self.prompts[i][done[i] : done[i] + num]
                chunks.append(Chunk(new, done[i], self.tables[i].tolist()))
                done[i] += num
            yield chosen, chunks


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), block_size=st.integers(1, 64))
def test_any_steps_over_any_tables_give_the_logits_of_the_whole(seed, block_size):
    decoder, case = random_decoder(), Case(seed, block_size)
    whole = [decoder.logits(decoder.plain_states(torch.from_numpy(p))) for p in case.prompts]
    cache = cache_of(case.num_blocks, block_size)
    for chosen, chunks in case.steps():
        logits = decoder.logits(paged.run_step(decoder, cache, chunks))
        parts = logits.split([len(chunk.token_ids) for chunk in chunks])
        for i, chunk, part in zip(chosen, chunks, parts, strict=True):
            expected = whole[i][chunk.num_computed_tokens : chunk.num_tokens]
            assert (part - expected).abs().max() < TOLERANCE
        last = logits[paged.last_rows(chunks)]
        assert torch.equal(last, torch.stack([part[-1] for part in parts]))


def plain_varlen(  # noqa: PLR0917 - as torch has it
    query,
    key,
    value,
    ends_q,
    ends_k,
    max_q,
    max_k,
    *,
    window_size,
    enable_gqa,
    seqused_k,
    block_table,
):
    """What `torch.nn.attention.varlen.varlen_attn` is documented to do, written out."""
    assert window_size == (-1, 0)
    assert enable_gqa
    assert ends_q.dtype == seqused_k.dtype == torch.int32
    attended = torch.empty_like(query)
    group = query.shape[1] // key.shape[-2]
    for i, num_keys in enumerate(seqused_k.tolist()):
        rows = slice(int(ends_q[i]), int(ends_q[i + 1]))
        if block_table is None:
            keys, values = (part[int(ends_k[i]) :][:num_keys] for part in (key, value))
        else:
            assert ends_k is None
            assert block_table.dtype == torch.int32
            keys, values = (part[block_table[i]].flatten(0, 1)[:num_keys] for part in (key, value))
        keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        num_new = rows.stop - rows.start
        assert num_new <= max_q
        assert num_keys <= max_k
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * query.shape[-1] ** -0.5
        seen = torch.ones(num_new, num_keys, dtype=torch.bool).tril(num_keys - num_new)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        attended[rows] = torch.einsum("hqk,khd->qhd", weights, values)
    return attended


@pytest.mark.parametrize("block_size", [1, 5, 16, paged.NATIVE_BLOCK])
def test_the_layout_for_the_cuda_kernel_means_the_same(block_size):
    rng = np.random.default_rng(block_size)
    decoder = random_decoder()
    prompts = [rng.integers(0, SHAPE.vocab_size, n) for n in (300, 40, 1, 17)]
    computed = [290, 0, 0, 16]
    counts = [-(-len(prompt) // block_size) for prompt in prompts]
    tables = np.split(rng.permutation(sum(counts) + 2), np.cumsum(counts))[:-1]
    cache = cache_of(sum(counts) + 2, block_size)
    before = [
        Chunk(prompt[:c], 0, table)
        for prompt, c, table in zip(prompts, computed, tables, strict=True)
        if c
    ]
    paged.run_step(decoder, cache, before)
    chunks = [
        Chunk(prompt[c:], c, table.tolist())
        for prompt, c, table in zip(prompts, computed, tables, strict=True)
    ]
    query = torch.randn(sum(len(c.token_ids) for c in chunks), 4, 8)
    key, value = torch.randn(2, len(query), 2, 8)
    expected = paged.SdpaAttention(cache, chunks)(1, query, key, value)
    attended = paged.VarlenAttention(cache, chunks, plain_varlen)(1, query, key, value)
    assert (attended - expected).abs().max() < TOLERANCE


def test_the_call_of_the_cuda_kernel_fits_its_signature():
    kernel = paged._varlen_kernel()
    if kernel is None:
        pytest.skip("this torch has no kernel for mixed lengths that reads blocks")
    chunks = [Chunk(np.arange(3), 5, [0, 1]), Chunk(np.arange(1), 0, [2])]
    for block_size in (4, paged.NATIVE_BLOCK):
        attend = paged.VarlenAttention(cache_of(3, block_size), chunks, on_shapes_alone(kernel))
        attended = attend(0, torch.zeros(4, 4, 8), *torch.zeros(2, 4, 2, 8))
        assert attended.shape == (4, 4, 8)


def on_shapes_alone(kernel):
    """The kernel as torch dispatches it, computing nothing: there is none for the CPU."""

    def call(*args, **kwargs):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:

            def fake(value):
                return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

            return kernel(*map(fake, args), **{name: fake(v) for name, v in kwargs.items()})

    return call


def test_half_precision_on_cuda_takes_that_kernel_and_all_else_takes_sdpa(monkeypatch):
    monkeypatch.setattr(paged, "VarlenAttention", lambda cache, chunks, kernel: "varlen")
    monkeypatch.setattr(paged, "SdpaAttention", lambda cache, chunks: "sdpa")

    class Cache:
        def __init__(self, device, dtype):
            self.device, self.keys = torch.device(device), torch.empty(0, dtype=dtype)

    assert paged.plan_attention(Cache("cuda", torch.bfloat16), []) == "varlen"
    assert paged.plan_attention(Cache("cuda", torch.float32), []) == "sdpa"
    assert paged.plan_attention(Cache("cpu", torch.bfloat16), []) == "sdpa"
    monkeypatch.setattr(paged, "_varlen_kernel", lambda: None)
    assert paged.plan_attention(Cache("cuda", torch.bfloat16), []) == "sdpa"


def test_decodes_are_padded_with_those_of_like_length():
    groups = paged.groups_of_like_length([100, 10, 51, 49, 9, 4], list("abcdef"))
    assert groups == [["a", "c"], ["d"], ["b", "e"], ["f"]]
    assert paged.groups_of_like_length([], []) == []
    # 4,096 tokens at once, but a longer one alone.
    groups = paged.groups_of_like_length([2048, 2048, 2040, 5000], list("abcd"))
    assert groups == [["d"], ["b", "a"], ["c"]]


@pytest.mark.parametrize(
    ("table", "words"),
    [([0], "holds 1 blocks of 4 tokens but 7 tokens need 2"), ([0, 9], "a pool with ids 0 to 2")],
)
def test_an_impossible_table_is_named(table, words):
    with pytest.raises(UsageError, match=words):
        cache_of(3, 4).slots(Chunk(np.arange(7), 0, table))


# Files


def write_model(folder, shards):
    """Write a model as Hugging Face does, in one file or several."""
    from safetensors.torch import save_file  # noqa: PLC0415

    tensors = {}

    def keep(name, size):
        tensors[name] = torch.from_numpy(weight(name, size))
        return tensors[name]

    made = assemble(SHAPE, keep)
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        where = {name: f"part-{i % shards}.safetensors" for i, name in enumerate(names)}
        for file in set(where.values()):
            save_file({n: tensors[n] for n in names if where[n] == file}, folder / file)
        index = {"weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


@pytest.mark.parametrize("shards", [1, 3])
def test_weights_come_from_safetensors(tmp_path, shards):
    pytest.importorskip("safetensors")
    written = write_model(tmp_path, shards)
    read = load_weights(SHAPE, tmp_path, device=CPU, dtype=torch.float32)
    assert torch.equal(read.output, written.output)
    for one, other in zip(read.layers, written.layers, strict=True):
        assert torch.equal(one.qkv, other.qkv)
        assert torch.equal(one.gate_up, other.gate_up)


def test_weights_of_another_model_are_refused(tmp_path):
    pytest.importorskip("safetensors")
    write_model(tmp_path, 1)
    for shape, words in (
        (ModelShape(61, 32, 48, 3, 4, 2, 8), "model.layers.2.input_layernorm.weight is not there"),
        (
            ModelShape(61, 32, 50, 2, 4, 2, 8),
            r"of shape \(48, 32\) but the model has \(50, 32\)",
        ),
    ):
        with pytest.raises(UsageError, match=words):
            load_weights(shape, tmp_path, device=CPU, dtype=torch.float32)
    with pytest.raises(UsageError, match=r"holds 0 \.safetensors files"):
        load_weights(SHAPE, tmp_path / "nothing", device=CPU, dtype=torch.float32)


def test_a_shape_is_read_from_a_config_file(tmp_path):
    config = RECORDED["qwen3"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = load_shape(str(tmp_path / "config.json"))
    assert shape == load_shape(str(tmp_path))
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.qk_norm) == (4, 2, 16, True)
    # As newer releases of transformers write it.
    rope = {"rope_type": "default", "rope_theta": 1e6}
    newer = {k: v for k, v in config.items() if k != "rope_theta"} | {"rope_parameters": rope}
    assert shape_from_config(newer, "newer") == shape


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral' but must be one of llama, qwen2"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide' but must be a whole number"),
        ({"num_key_value_heads": 3}, "cannot be grouped"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "of type 'yarn' but only"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4}}, "lacks 'low_freq_factor'"),
        ({"use_sliding_window": True}, "use_sliding_window is true"),
    ],
)
def test_what_is_not_modelled_is_refused(change, words):
    with pytest.raises(UsageError, match=words):
        shape_from_config(RECORDED["llama"]["config"] | change, "config.json")


def test_an_unknown_model_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"neither a preset \(tiny, small, llama-3-8b, qwen3-8b\)"):
        load_shape("llama-9")
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        load_shape(str(broken))
