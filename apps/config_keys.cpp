#include <array>

#include "apps/config_schema.h"

namespace troupe {
namespace {

using enum ConfigType;
using enum ConfigPresence;

constexpr double max_u32 = 4294967295.0;
constexpr double max_evaluation_batches = 1048575.0;  // evaluation_key has 20 bits for them
constexpr double max_count = 1e12;
constexpr std::string_view model_families =
    "gpt2|llama|arctic|bloom|dbrx|deepseek|falcon|gemma|gemma2|gemma3|glm4-moe|gpt-j|gpt-neox|"
    "gpt-oss|granite|granitemoe|grok|mistral|mixtral|nemotron|olmo2|olmoe|opt|phi|phi3|phimoe|"
    "qwen2|qwen2-moe|qwen3|qwen3-moe|stablelm|other";

constexpr std::array tables{
    ConfigTable{"run", false, "The run: its name, where its files go, how long it trains."},
    ConfigTable{"model", false, "The shape of the transformer."},
    ConfigTable{"data", false, "Where tokens come from."},
    ConfigTable{"training", false, "How a step is cut and computed."},
    ConfigTable{"optimizer", false, "AdamW and gradient clipping."},
    ConfigTable{"learning_rate", false, "The learning rate over the steps."},
    ConfigTable{"plan", false, "What runs where: left to the planner or pinned, and the schedule."},
    ConfigTable{"plan.stage", true, "One pinned stage: its layers and its device, in layer order."},
    ConfigTable{"cluster", false, "What is known of the machines."},
    ConfigTable{"node", true, "One process of the cluster."},
    ConfigTable{"node.device", true, "One device of the node above it."},
    ConfigTable{"emulation", false, "How emulated devices relate to the hardware they play."},
    ConfigTable{
        "emulation.disturbance", true,
        "Something that an emulated device, or a link, does and no plan is told: to see what "
        "a run makes of it."},
    ConfigTable{"link", false, "The links between devices."},
    ConfigTable{"link.same_process", false, "Links between devices of one process."},
    ConfigTable{"link.between_processes", false, "Links between devices of two processes."},
    ConfigTable{"link.override", true, "An exception for one directed link."},
    ConfigTable{"checkpoint", false, "When checkpoints are written and how many are kept."},
    ConfigTable{"evaluation", false, "When the validation loss is measured."},
    ConfigTable{"network", false, "How nodes find and watch each other."},
};

constexpr ConfigKey keys[] = {
    {"run", "name", text, required, "\"demo\"", 0, 0, "",
     "The name of the run and of its folder: 1 to 128 letters, digits, '.', '_' or '-'."},
    {"run", "folder", text, has_default, "\"runs\"", 0, 0, "",
     "The run's files go to folder/name; relative to the directory troupe is started in."},
    {"run", "steps", integer, has_default, "100", 1, max_count, "",
     "Optimizer steps of the whole run."},
    {"run", "seed", integer, has_default, "0", 0, 9.0e18, "",
     "Every random number depends on it: parameters, sample order, dropout."},
    {"run", "state_hash_every", integer, has_default, "1", 0, max_count, "",
     "Steps between hashes of weights and optimizer state in metrics.jsonl; 0: never."},

    {"model", "file", text, optional, "\"models/gpt2.toml\"", 0, 0, "",
     "A model that this one starts from: a file with a [model] table, or config.json of Hugging "
     "Face or a folder that holds one. Keys written here win. Relative to this file."},
    {"model", "family", choice, has_default, "\"gpt2\"", 0, 0, model_families,
     "Decides what the keys below are when absent, and what can be trained. gpt2: LayerNorm, GELU, "
     "learned positions, biases. llama: RMSNorm, SwiGLU, rotary positions, grouped heads. The "
     "others start from llama's keys and can be planned only."},
    {"model", "blocks", integer, required, "6", 1, 10000, "", "Transformer blocks."},
    {"model", "width", integer, required, "128", 1, 1048576, "",
     "Width of the residual stream; a multiple of heads, unless head_width is given."},
    {"model", "heads", integer, required, "4", 1, 65536, "", "Attention heads."},
    {"model", "kv_heads", integer, optional, "4", 1, 65536, "",
     "Key and value heads, a divisor of heads (llama). Absent: as many as heads."},
    {"model", "head_width", integer, optional, "32", 1, 1048576, "",
     "Width of one head. Absent: width / heads, or nope_width + rope_width. Trained: width / "
     "heads."},
    {"model", "q_rank", integer, optional, "1536", 0, 1048576, "",
     "Latent attention (with kv_rank): rank of the queries. 0 or absent: projected directly."},
    {"model", "kv_rank", integer, optional, "512", 0, 1048576, "",
     "Rank of keys and values in multi-head latent attention. 0 or absent: ordinary attention. "
     "Planned only."},
    {"model", "nope_width", integer, optional, "128", 0, 65536, "",
     "Latent attention: width per head of queries and keys without position."},
    {"model", "rope_width", integer, optional, "64", 0, 65536, "",
     "Latent attention: rotated width per head of queries, and of the one key of all heads."},
    {"model", "value_width", integer, optional, "128", 0, 65536, "",
     "Latent attention: width per head of values."},
    {"model", "qk_norm", choice, optional, "\"none\"", 0, 0, "none|per_head|full",
     "Norms of queries and keys: one gain per head width, or over all heads. Absent: none. "
     "Trained: none."},
    {"model", "qkv_bias", boolean, optional, "false", 0, 0, "",
     "Whether queries, keys and values have biases. Absent: as the family does."},
    {"model", "out_bias", boolean, optional, "false", 0, 0, "",
     "Whether the attention's output projection has a bias. Absent: as the family does."},
    {"model", "sinks", boolean, optional, "false", 0, 0, "",
     "One learned logit per head that takes weight from the softmax. Absent: false. Planned "
     "only."},
    {"model", "ffn_width", integer, optional, "512", 1, 16777216, "",
     "Inner width of the MLP. Absent: 4 x width for gpt2; for llama 8/3 x width, rounded up to a "
     "multiple of 32. Blocks with experts have expert_ffn_width instead."},
    {"model", "ffn_matrices", integer, optional, "3", 2, 3, "",
     "Matrices of an MLP or expert: 2, up and down, or 3, with a gate. Absent: as the family "
     "does."},
    {"model", "mlp_bias", boolean, optional, "false", 0, 0, "",
     "Whether MLPs and routed experts have biases. Absent: as the family does."},
    {"model", "experts", integer, optional, "8", 0, 65536, "",
     "Routed experts of a block. 0 or absent: a dense model. Planned only."},
    {"model", "top_k", integer, optional, "2", 0, 65536, "", "Routed experts per token."},
    {"model", "expert_ffn_width", integer, optional, "1408", 0, 16777216, "",
     "Inner width of one routed expert."},
    {"model", "shared_experts", integer, optional, "1", 0, 4096, "",
     "Experts that every token meets. Absent: none."},
    {"model", "shared_ffn_width", integer, optional, "1408", 0, 16777216, "",
     "Inner width of all shared experts together."},
    {"model", "shared_gate", boolean, optional, "false", 0, 0, "",
     "Whether a learned gate scales the output of the shared experts. Absent: false."},
    {"model", "first_dense_blocks", integer, optional, "1", 0, 10000, "",
     "Blocks at the start without experts. Absent: 0."},
    {"model", "moe_every", integer, optional, "1", 1, 10000, "",
     "Of the blocks after those, the last of every so many has experts. Absent: 1."},
    {"model", "router_bias", boolean, optional, "false", 0, 0, "",
     "Whether the router has a bias per expert. Absent: false."},
    {"model", "vocabulary", integer, required, "256", 2, 16777216, "",
     "Rows of the token table; at least the tokenizer's number of tokens."},
    {"model", "context", integer, optional, "128", 1, 16777216, "",
     "Longest sequence the model takes. Absent: training.sequence_length."},
    {"model", "tied", boolean, has_default, "true", 0, 0, "",
     "Whether the output head uses the token embedding's table."},
    {"model", "head_bias", boolean, optional, "false", 0, 0, "",
     "Whether the output head has a bias. Absent: false. Planned only."},
    {"model", "position", choice, optional, "\"rotary\"", 0, 0, "learned|rotary|alibi",
     "How positions enter. Absent: as the family does."},
    {"model", "rotary_share", number, optional, "0.5", 0, 1, "",
     "Share of the head width that is rotated. Absent: 1. Trained: 1."},
    {"model", "position_rows", integer, optional, "1024", 0, 16777216, "",
     "Rows of the table of learned positions. Absent: context."},
    {"model", "norm", choice, optional, "\"rms_norm\"", 0, 0,
     "layer_norm|layer_norm_no_bias|rms_norm", "The kind of norm. Absent: as the family does."},
    {"model", "norms_per_block", integer, optional, "2", 0, 16, "",
     "Norms of the residual stream in a block. Absent: 2. Trained: 2."},
    {"model", "final_norm", boolean, optional, "true", 0, 0, "",
     "Whether a norm precedes the output head. Absent: true. Trained: true."},
    {"model", "extra_parameters", integer, optional, "28672", 0, 1099511627776.0, "",
     "Parameters beside the embedding's tables that are used with them, such as a norm of the "
     "embedding. Absent: 0. Trained: 0."},
    {"model", "norm_epsilon", number, has_default, "1e-5", 1e-12, 0.1, "",
     "Added to the variance in norms."},
    {"model", "rope_theta", number, has_default, "10000.0", 1, 1e9, "",
     "Base of the rotary position frequencies (llama)."},
    {"model", "dropout", number, has_default, "0.0", 0, 0.95, "",
     "Share of activations dropped after embedding, attention output and MLP output."},

    {"data", "files", texts, required, "[\"data/moby-dick.txt\"]", 0, 0, "",
     "Text or JSONL files, relative to this file; joined in this order."},
    {"data", "format", choice, has_default, "\"text\"", 0, 0, "text|jsonl",
     "text: a file is one document. jsonl: one JSON object a line."},
    {"data", "jsonl_field", text, has_default, "\"text\"", 0, 0, "",
     "The field of each JSONL object that holds the text."},
    {"data", "tokenizer", choice, has_default, "\"bytes\"", 0, 0, "bytes|gpt2",
     "bytes: 256 tokens, one a byte. gpt2: byte-level BPE from tokenizer_folder."},
    {"data", "tokenizer_folder", text, optional, "\"gpt2\"", 0, 0, "",
     "Folder with encoder.json and vocab.bpe, relative to this file; needed by the gpt2 "
     "tokenizer."},
    {"data", "cache_folder", text, optional, "\"runs/token-cache\"", 0, 0, "",
     "Where token caches are kept; relative to the directory troupe is started in. Absent: "
     "token-cache in run.folder."},
    {"data", "validation_fraction", number, has_default, "0.1", 0, 0.9, "",
     "The last part of each file that is never trained on."},

    {"training", "batch_size", integer, required, "16", 1, 16777216, "",
     "Sequences per step, over all microbatches and devices."},
    {"training", "microbatches", integer_or_word, optional, "4", 1, 65536, "auto",
     "Microbatches per step; the last may be smaller. auto: as many as make the step that the "
     "planner predicts shortest; the run's config.toml has the number, and a resumed run keeps it, "
     "as the bits of losses depend on it. Absent: from microbatch_size, or 1."},
    {"training", "microbatch_size", integer, optional, "4", 1, 16777216, "",
     "Sequences per microbatch; instead of microbatches."},
    {"training", "sequence_length", integer, required, "128", 1, 16777216, "",
     "Tokens per sequence; at most model.context."},
    {"training", "compute", choice, has_default, "\"f32\"", 0, 0, "f32|bf16",
     "Type of activations and matrix products; bf16 keeps f32 master weights and accumulates in "
     "f32."},

    {"optimizer", "beta1", number, has_default, "0.9", 0, 0.9999999, "",
     "Decay of AdamW's first moment."},
    {"optimizer", "beta2", number, has_default, "0.999", 0, 0.9999999, "",
     "Decay of AdamW's second moment."},
    {"optimizer", "epsilon", number, has_default, "1e-8", 1e-30, 1, "",
     "Added to the root of the second moment."},
    {"optimizer", "weight_decay", number, has_default, "0.01", 0, 10, "",
     "Decoupled weight decay of matrices and tables; norms and biases have none."},
    {"optimizer", "clip_norm", number, has_default, "1.0", 0, 1e9, "",
     "Gradients are scaled down to this norm over the whole model; 0: no clipping."},

    {"learning_rate", "shape", choice, has_default, "\"cosine\"", 0, 0, "constant|linear|cosine",
     "What follows the warm-up: a constant rate, or a fall to minimum."},
    {"learning_rate", "learning_rate", number, has_default, "1e-3", 0, 100, "",
     "The highest rate, reached at the end of the warm-up."},
    {"learning_rate", "minimum", number, has_default, "0.0", 0, 100, "",
     "The rate at the last step of a linear or cosine fall."},
    {"learning_rate", "warmup_steps", integer, has_default, "0", 0, max_count, "",
     "Steps of the linear rise at the start."},
    {"learning_rate", "total_steps", integer, optional, "100", 1, max_count, "",
     "Step at which the fall ends. Absent: run.steps."},

    {"plan", "plan", choice, has_default, "\"auto\"", 0, 0, "auto|pinned",
     "auto: the planner cuts the model. pinned: [[plan.stage]] tables or cuts say it."},
    {"plan", "schedule", choice, has_default, "\"1f1b\"", 0, 0, "gpipe|1f1b|interleaved|zb-h1|auto",
     "Order of forward and backward work. auto: the one, with its chunks, that makes the step that "
     "the planner predicts shortest."},
    {"plan", "chunks", integer, has_default, "1", 1, 64, "",
     "Virtual stages per device; more than 1 only with the interleaved schedule."},
    {"plan", "transfer_slots", integer, has_default, "2", 1, 64, "",
     "Receive buffers per edge between stages."},
    {"plan", "recompute", choice, has_default, "\"none\"", 0, 0, "none|selective|full|auto",
     "What blocks compute again in the backward instead of keeping it, with the same bits. "
     "selective: outputs of norms and activations. full: everything but their own output. auto: as "
     "little as fits, by stage."},
    {"plan", "cuts", integers, optional, "[7, 13, 19]", 1, 100001, "",
     "Pinned: the first layer of every stage but the first. Layer 0 is the embedding, then the "
     "blocks, then the head."},
    {"plan", "devices", texts, optional, "[\"gpu0\", \"gpu1\"]", 0, 0, "",
     "With cuts: the device of each stage. Absent: the cluster's devices in order."},
    {"plan.stage", "layers", text, required, "\"0-3\"", 0, 0, "",
     "First and last layer of the stage, or one layer. Layer 0 is the embedding, then the blocks, "
     "then the head."},
    {"plan.stage", "device", text, required, "\"gpu0\"", 0, 0, "", "Name of the stage's device."},
    {"plan.stage", "recompute", choice, optional, "\"full\"", 0, 0, "none|selective|full",
     "What the blocks of this stage compute again. Absent: plan.recompute."},

    {"cluster", "profile", text, optional, "\"profile.toml\"", 0, 0, "",
     "A file that troupe profile wrote, relative to this one: its rates replace the measurement of "
     "CPU devices at the start, its links the defaults of links, its memory and disk those of "
     "nodes "
     "without rates. Absent: CPU devices are measured."},

    {"node", "name", text, required, "\"n0\"", 0, 0, "",
     "Name of the node: 1 to 128 letters, digits, '.', '_' or '-'."},
    {"node", "process", boolean, has_default, "false", 0, 0, "",
     "true: a process of its own; false: inside the process of troupe train."},
    {"node", "joins", boolean, has_default, "false", 0, 0, "",
     "true: troupe train waits for `troupe node --join`; false: it starts the process itself. Only "
     "with process = true."},
    {"node", "host_memory", size, optional, "\"256 GiB\"", 0, 1e16, "",
     "Memory of the node, beside that of its devices, that states of training may fill. Absent or "
     "0: none. Taken as it is written: emulation.memory_scale is for devices."},
    {"node", "host", text, optional, "\"epyc_7763\"", 0, 0, "",
     "Catalogue row [cpu.id] of the node's processor, which works on states in host memory: it is "
     "taken to reach 0.8 of the row's memory rate. A node with an emulated device plays the row, "
     "emulation.time_scale times slower; on any other a rate that cluster.profile measured wins."},
    {"node", "host_memory_rate", rate, optional, "\"20 GB/s\"", 1, 1e15, "",
     "What the node's cores reach together in host memory, in the run's own time: "
     "emulation.time_scale leaves it alone. Absent: from host, or cluster.profile's with the most "
     "threads."},
    {"node", "disk_space", size, optional, "\"2 TiB\"", 0, 1e18, "",
     "Space on a disk of the node that states of training may fill; they pass through host memory. "
     "Absent or 0: none."},
    {"node", "disk", text, optional, "\"nvme4_980_pro\"", 0, 0, "",
     "Catalogue row [disk.id] of that disk, or the row of cluster.profile that measured it. A node "
     "with an emulated device plays it, emulation.time_scale times slower; on any other the first "
     "disk that cluster.profile measured wins over a catalogue row."},
    {"node", "disk_read", rate, optional, "\"3 GB/s\"", 1, 1e15, "",
     "What the disk is read with, in the run's own time: emulation.time_scale leaves it alone. "
     "Absent: from disk, or cluster.profile."},
    {"node", "disk_write", rate, optional, "\"2 GB/s\"", 1, 1e15, "",
     "What the disk is written with, in the run's own time: emulation.time_scale leaves it alone. "
     "Absent: from disk, or cluster.profile."},
    {"node.device", "name", text, required, "\"gpu0\"", 0, 0, "",
     "Name of the device, unique in the cluster: 1 to 128 letters, digits, '.', '_' or '-'."},
    {"node.device", "kind", choice, has_default, "\"cpu\"", 0, 0, "cpu|emulated",
     "cpu: real arithmetic at full speed. emulated: real arithmetic with the memory and the pace "
     "of "
     "a device of the catalogue."},
    {"node.device", "model", text, optional, "\"v100_pcie_16\"", 0, 0, "",
     "Catalogue row that an emulated device plays."},
    {"node.device", "memory", size, optional, "\"24 MiB\"", 1, 1e16, "",
     "Hard cap of the device's memory. Needed by cpu devices; absent for an emulated one: the "
     "catalogue's times emulation.memory_scale."},
    {"node.device", "threads", integer, has_default, "1", 1, 16, "",
     "Compute threads of the device."},
    {"node.device", "host_link", rate, optional, "\"12 GB/s\"", 1, 1e15, "",
     "Bandwidth of an emulated device's way to its node's memory, one direction, in the run's own "
     "time: emulation.time_scale leaves it alone. Absent: 0.8 of its row's pcie_gbs_dir, "
     "emulation.time_scale times slower. Its latency is emulation.launch. A cpu device works in "
     "that memory itself."},

    {"emulation", "time_scale", number, has_default, "1.0", 1e-6, 1e12, "",
     "Emulated devices take this many times the time that the catalogue predicts, and so do the "
     "hosts and disks of their nodes: a plan is the same at every scale. Rates that are written as "
     "keys, links among them, stay as they are."},
    {"emulation", "memory_scale", number, has_default, "1.0", 1e-9, 1, "",
     "Emulated devices have this share of the catalogue's memory."},
    {"emulation", "launch", time, has_default, "\"5 us\"", 0, 1, "",
     "What starting one op costs an emulated device, before time_scale."},
    {"emulation", "catalogue", text, optional, "\"devices.toml\"", 0, 0, "",
     "Another device catalogue, relative to this file. Absent: the built-in one."},

    {"emulation.disturbance", "device", text, optional, "\"gpu0\"", 0, 0, "",
     "The emulated device that is slower or faster than planned; instead of from and to."},
    {"emulation.disturbance", "from", text, optional, "\"gpu0\"", 0, 0, "",
     "The sending device of the link that is."},
    {"emulation.disturbance", "to", text, optional, "\"gpu1\"", 0, 0, "",
     "The receiving device of that link."},
    {"emulation.disturbance", "factor", number, required, "1.3", 0.001, 1000, "",
     "Its actions or transfers last so many times as long as planned."},
    {"emulation.disturbance", "first_step", integer, has_default, "1", 1, max_count, "",
     "The first step that is disturbed."},
    {"emulation.disturbance", "last_step", integer, optional, "40", 1, max_count, "",
     "The last one. Absent: the last step of the run."},

    {"link", "copy_in_process", boolean, has_default, "false", 0, 0, "",
     "true: links within a process copy tensors; false: they pass them by reference."},
    {"link.same_process", "latency", time, has_default, "\"0 s\"", 0, 3600, "",
     "Time of an empty transfer."},
    {"link.same_process", "bandwidth", rate, optional, "\"10 GB/s\"", 1, 1e15, "",
     "Bytes per second of one link. Absent: tensors pass by reference, no bytes move."},
    {"link.between_processes", "latency", time, has_default, "\"200 us\"", 0, 3600, "",
     "Time of an empty transfer, for predictions."},
    {"link.between_processes", "bandwidth", rate, has_default, "\"1 GB/s\"", 1, 1e15, "",
     "Bytes per second of one link, for predictions."},
    {"link.override", "from", text, required, "\"gpu0\"", 0, 0, "", "Name of the sending device."},
    {"link.override", "to", text, required, "\"gpu1\"", 0, 0, "", "Name of the receiving device."},
    {"link.override", "latency", time, has_default, "\"200 us\"", 0, 3600, "",
     "Time of an empty transfer."},
    {"link.override", "bandwidth", rate, required, "\"1 GB/s\"", 1, 1e15, "",
     "Bytes per second of this link."},

    {"checkpoint", "every_steps", integer, has_default, "0", 0, max_count, "",
     "Steps between checkpoints; 0: only at the end."},
    {"checkpoint", "keep", integer, has_default, "2", 1, 100000, "",
     "Newest complete checkpoints that are kept."},
    {"checkpoint", "resume_from", text, optional, "\"runs/demo/checkpoints/step-10\"", 0, 0, "",
     "A checkpoint folder to continue from, relative to the directory troupe is started in. "
     "Absent: "
     "start fresh. --resume sets it."},

    {"evaluation", "every_steps", integer, has_default, "0", 0, max_count, "",
     "Steps between measurements of the validation loss; 0: only at the end."},
    {"evaluation", "batches", integer, has_default, "8", 1, max_evaluation_batches, "",
     "Validation batches per measurement, the same ones each time."},

    {"network", "listen", text, has_default, "\"127.0.0.1:0\"", 0, 0, "",
     "Address that nodes join at. Loopback only; port 0: any free one."},
    {"network", "request_timeout", time, has_default, "\"30 s\"", 0.001, 86400, "",
     "A peer that does not answer for so long is lost."},
    {"network", "join_timeout", time, has_default, "\"10 min\"", 0.001, 604800, "",
     "Nodes with joins = true that have not joined by then end the run."},
};

}  // namespace

std::span<const ConfigKey> config_keys() {
  return keys;
}

std::span<const ConfigTable> config_tables() {
  return tables;
}

}  // namespace troupe
