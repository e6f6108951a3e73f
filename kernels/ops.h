/// All ops, with what they have in common.
///
/// An op takes the stream first, then views. `stream.body()` picks the naive definition (plain
/// loops), the fast CPU body or meta, where nothing is computed and flops, bytes and one launch per
/// op are counted. Rank 0 means "not there". Matrices are row-major, statistics and gradients f32.
///
/// Results depend on shapes and values alone, never on the number of threads (up to
/// max_pool_threads) nor on timing. Shapes that do not fit together stop the process: they are
/// checked by whoever takes input from outside.
///
/// Workspace is passed in. Its size is a function of the shape alone: scratch is kept for
/// max_pool_threads lanes whatever the pool's size. One workspace may serve all ops of a stream,
/// sized by the largest.
#pragma once

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/random.h"
#include "kernels/update.h"
