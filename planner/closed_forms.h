/// Published closed forms of transformers and pipelines, for checks and for answers that need no
/// simulation: activations by recompute policy, parameters, flops, and bubbles of schedules.
///
/// Sources: Korthikanti et al. 2022 (arXiv:2205.05198, table 2, section 4.3, appendix A); Narayanan
/// et al. 2021 (SC'21, arXiv:2104.04473, sections 2.2 and 5.1, equations 2 and 3); Qi et al. 2024
/// (zero bubble); DualPipe's README; Li and Hoefler 2021 (Chimera, table 2); Narayanan et al. 2021
/// (PipeDream-2BW, appendix A).
#pragma once

#include "planner/recompute.h"

namespace troupe {

/// A GPT of Megatron's kind: ffn of 4 h, biases, dropout, multi-head attention. Values are real so
/// that the forms can be asked between whole numbers.
struct GptShape {
  double layers = 1, hidden = 1, heads = 1, sequence = 1, vocabulary = 1;
};

/// How the activations of a block are cut: `tensor` ranks, and whether what tensor parallelism
/// leaves whole is cut along the sequence.
struct ActivationCut {
  double tensor = 1;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
};

/// Bytes that one block keeps for `batch` sequences, in 16 bits with masks of 1 byte.
double block_activation_bytes(const GptShape& shape, double batch, const ActivationCut& cut);
/// Of the first of `pipeline` stages, in units of a block's bytes: L under 1F1B, and
/// L (1 + (p - 1) / (p v)) with v chunks a device.
double first_stage_blocks(double layers, double pipeline, double chunks = 1);
/// s b h p / t: the dropout mask of the embedding, of the microbatches in flight on the first
/// stage.
double embedding_activation_bytes(const GptShape& shape,
                                  double batch,
                                  double pipeline,
                                  double tensor);
/// (4 s b h / t)(1 + V / h): the last norm, the input of the output layer and the f32 logits.
double output_activation_bytes(const GptShape& shape, double batch, double tensor);

/// 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)).
double gpt_parameters(const GptShape& shape);
/// Flops of one step on `batch` sequences: what the model needs, or with what is recomputed.
/// none: 72 B s l h^2 (1 + s/(6h) + V/(12lh)); selective: s/(3h) in place of s/(6h);
/// full: 96 B s l h^2 (1 + s/(6h) + V/(16lh)).
double gpt_step_flops(const GptShape& shape, double batch, Recompute recompute);
/// 8 T P / (n X) seconds: tokens, parameters, devices, achieved flop/s with full recompute.
double training_seconds(double tokens, double parameters, double devices, double flops_per_second);

/// Seconds of one microbatch on one stage. `backward` is both halves, `weight` its second half,
/// `pair` a forward and a backward of two microbatches that run together.
struct StageSeconds {
  double forward = 1, backward = 2, weight = 1, pair = 3;
};

/// Idle seconds of a device in one step on equal stages without transfers.
double bubble_1f1b(double stages, const StageSeconds& seconds);  ///< (p - 1)(F + B), as GPipe
double bubble_interleaved(double stages, double chunks, const StageSeconds& seconds);  ///< / v
double bubble_zb1p(double stages, const StageSeconds& seconds);       ///< (p - 1)(F + B - 2W)
double bubble_dual_pipe(double stages, const StageSeconds& seconds);  ///< (p/2 - 1)(F&B + B - 3W)

/// The bubble as a share of the whole step.
double bubble_share_1f1b(double stages, double microbatches);     ///< (p-1)/(m+p-1)
double bubble_share_chimera(double stages, double microbatches);  ///< (D-2)/(2N+D-2)
/// Where F, I and W take the same time.
double bubble_share_zb1p(double stages, double microbatches);    ///< a third of 1F1B's
double bubble_share_v_half(double stages, double microbatches);  ///< half of 1F1B's

/// Bytes on the worst of `depth` stages: weights W and activations A of the whole model for one
/// microbatch, and the input I of a stage.
struct StageLoad {
  double weights = 0, activations = 0, input = 0;
};
/// Two versions of weights: 2 W/d + A/d + d I with recomputation, 2 W/d + A without.
double two_buffered_bytes(const StageLoad& load, double depth, bool recompute);
/// W/d + A/d + m I, with recomputation.
double gpipe_bytes(const StageLoad& load, double depth, double microbatches);

}  // namespace troupe
