// The alignments of robocache_ros/alignments, as types.
//
// resample/alignment_table.cuh is generated from that package when a kernel is compiled (ops/cuda/kernels.py). It
// includes the header of each alignment that blends, and defines ALIGNMENTS, a list of BLENDS(name, group) and
// COPIES(name, selects).
#pragma once
#include "resample/alignment_table.cuh"

namespace robocache {

#define NAME(NAME_, ...) NAME_,
enum class Method { ALIGNMENTS(NAME, NAME) };
#undef NAME

enum class Selects { neighbours, newest, nearest, next };  // the samples that a tick uses

template <Method METHOD>
struct Alignment;

#define BLENDS(NAME, GROUP_)                                                                        \
  template <>                                                                                       \
  struct Alignment<Method::NAME> {                                                                  \
    static constexpr Selects SELECTS = Selects::neighbours;                                         \
    static constexpr int GROUP = GROUP_; /* columns that are blended together */                    \
    static HD void blend(const float* before, const float* after, float weight, float* out) {       \
      alignments::NAME(before, after, weight, out);                                                 \
    }                                                                                               \
  };
#define COPIES(NAME, SELECTS_)                              \
  template <>                                               \
  struct Alignment<Method::NAME> {                          \
    static constexpr Selects SELECTS = Selects::SELECTS_;   \
    static constexpr int GROUP = 1;                         \
  };
ALIGNMENTS(BLENDS, COPIES)
#undef BLENDS
#undef COPIES

}  // namespace robocache
