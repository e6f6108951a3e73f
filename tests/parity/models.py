"""GPT-2 and Llama in PyTorch, with parameters under Hugging Face's names and shapes.

A model is a function of (parameters, tokens), written from the published formulas: GPT-2 (Radford et
al. 2019) with LayerNorm, learned positions and tanh-GELU; Llama (Touvron et al. 2023) with RMSNorm,
rotary positions on half-split pairs, grouped key/value heads and SwiGLU.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    """The [model] table of a configuration, with its defaults filled in."""

    family: str
    blocks: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocabulary: int
    context: int
    tied: bool
    norm_epsilon: float
    rope_theta: float

    @staticmethod
    def of(table, sequence_length):
        family = table.get("family", "gpt2")
        width = table["width"]
        ffn = 4 * width if family == "gpt2" else -(-(8 * width // 3) // 32) * 32
        return Shape(
            family=family,
            blocks=table["blocks"],
            width=width,
            heads=table["heads"],
            kv_heads=table.get("kv_heads", table["heads"]),
            ffn_width=table.get("ffn_width", ffn),
            vocabulary=table["vocabulary"],
            context=table.get("context", sequence_length),
            tied=table.get("tied", True),
            norm_epsilon=table.get("norm_epsilon", 1e-5),
            rope_theta=table.get("rope_theta", 10000.0),
        )


def parameter_shapes(shape):
    """Name -> shape of every parameter, in the model's order."""
    d, f, v = shape.width, shape.ffn_width, shape.vocabulary
    kv = d // shape.heads * shape.kv_heads
    names = {}
    if shape.family == "gpt2":
        names["transformer.wte.weight"] = (v, d)
        names["transformer.wpe.weight"] = (shape.context, d)
        for block in range(shape.blocks):
            at = f"transformer.h.{block}."
            for norm in ("ln_1", "ln_2"):
                names[at + norm + ".weight"] = names[at + norm + ".bias"] = (d,)
            for matrix, size in (  # stored (in, out)
                ("attn.c_attn", (d, 3 * d)),
                ("attn.c_proj", (d, d)),
                ("mlp.c_fc", (d, f)),
                ("mlp.c_proj", (f, d)),
            ):
                names[at + matrix + ".weight"] = size
                names[at + matrix + ".bias"] = size[1:]
        names["transformer.ln_f.weight"] = names["transformer.ln_f.bias"] = (d,)
    else:
        names["model.embed_tokens.weight"] = (v, d)
        for block in range(shape.blocks):
            at = f"model.layers.{block}."
            names[at + "input_layernorm.weight"] = (d,)
            names[at + "post_attention_layernorm.weight"] = (d,)
            for matrix, size in (  # stored (out, in)
                ("self_attn.q_proj", (d, d)),
                ("self_attn.k_proj", (kv, d)),
                ("self_attn.v_proj", (kv, d)),
                ("self_attn.o_proj", (d, d)),
                ("mlp.gate_proj", (f, d)),
                ("mlp.up_proj", (f, d)),
                ("mlp.down_proj", (d, f)),
            ):
                names[at + matrix + ".weight"] = size
        names["model.norm.weight"] = (d,)
    if not shape.tied:
        names["lm_head.weight"] = (v, d)
    return names


def decays(name):
    """Matrices and tables decay; norms and biases do not."""
    return name.endswith(".weight") and "ln_" not in name and "norm" not in name


def random_parameters(shape, seed=0, dtype=torch.float32):
    """Some parameters to try the model with."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for name, size in parameter_shapes(shape).items():
        if decays(name):
            value = 0.02 * torch.randn(size, generator=generator, dtype=torch.float64)
        else:
            value = torch.zeros(size) if name.endswith(".bias") else torch.ones(size)
        parameters[name] = value.to(dtype).requires_grad_(True)
    return parameters


def attention(q, k, v, fused):
    """q: (batch, heads, T, head width); k, v: (batch, kv heads, T, head width)."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if fused:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    length = q.shape[2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def split_heads(x, heads):
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


def gpt2_logits(shape, p, tokens, fused):
    def norm(x, name):
        return F.layer_norm(
            x, (shape.width,), p[name + ".weight"], p[name + ".bias"], shape.norm_epsilon
        )

    def linear(x, name):
        return F.linear(x, p[name + ".weight"].t(), p[name + ".bias"])

    x = F.embedding(tokens, p["transformer.wte.weight"])
    x = x + p["transformer.wpe.weight"][: tokens.shape[1]]
    for block in range(shape.blocks):
        at = f"transformer.h.{block}."
        q, k, v = linear(norm(x, at + "ln_1"), at + "attn.c_attn").chunk(3, -1)
        heads = attention(*(split_heads(part, shape.heads) for part in (q, k, v)), fused)
        x = x + linear(merge_heads(heads), at + "attn.c_proj")
        inner = F.gelu(linear(norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh")
        x = x + linear(inner, at + "mlp.c_proj")
    head = p["transformer.wte.weight" if shape.tied else "lm_head.weight"]
    return F.linear(norm(x, "transformer.ln_f"), head)


def rotary_tables(shape, length, dtype):
    half = shape.width // shape.heads // 2
    frequency = shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, cosine, sine):
    """Turns the pairs (x[i], x[i + half]) by the angle of their position."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def llama_logits(shape, p, tokens, fused):
    def norm(x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + shape.norm_epsilon)
        return x * scale * p[name + ".weight"]

    def linear(x, name):
        return F.linear(x, p[name + ".weight"])

    x = F.embedding(tokens, p["model.embed_tokens.weight"])
    tables = rotary_tables(shape, tokens.shape[1], x.dtype)
    for block in range(shape.blocks):
        at = f"model.layers.{block}."
        y = norm(x, at + "input_layernorm")
        q = rotate(split_heads(linear(y, at + "self_attn.q_proj"), shape.heads), *tables)
        k = rotate(split_heads(linear(y, at + "self_attn.k_proj"), shape.kv_heads), *tables)
        v = split_heads(linear(y, at + "self_attn.v_proj"), shape.kv_heads)
        x = x + linear(merge_heads(attention(q, k, v, fused)), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        inner = F.silu(linear(y, at + "mlp.gate_proj")) * linear(y, at + "mlp.up_proj")
        x = x + linear(inner, at + "mlp.down_proj")
    head = p["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    return F.linear(norm(x, "model.norm"), head)


def logits(shape, parameters, tokens, fused=False):
    """tokens: (batch, T) -> (batch, T, vocabulary)."""
    model = gpt2_logits if shape.family == "gpt2" else llama_logits
    return model(shape, parameters, tokens, fused)


def mean_loss(shape, parameters, tokens, targets, fused=False):
    """Mean over the trained tokens; a target of -1 is not trained."""
    out = logits(shape, parameters, tokens, fused)
    return F.cross_entropy(out.flatten(0, 1), targets.flatten(), ignore_index=-1)
