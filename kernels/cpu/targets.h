/// The instruction sets that vector code is compiled for: AVX2 and AVX-512, and scalars
/// for what has neither.
/// Comes before any Highway header.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
