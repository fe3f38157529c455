// Selects the samples of one target, in the same way as robocache_ros/ops/resample/selection.py.
#pragma once
#include "resample/arguments.cuh"
#include "resample/item.cuh"

namespace robocache {

const int64 FOREVER = 0x7fffffffffffffffLL;
const int64 NEVER = -FOREVER - 1;  // marks a sample or a target as absent

// Converts float seconds to nanoseconds: seconds * 1e9 in float64, rounded to nearest, clamped to 2^62; NaN becomes
// NEVER.
HD int64 nanoseconds(double seconds) {
  const double limit = 4611686018427387904.0;
  if (!(seconds == seconds)) return NEVER;
  double whole = nearest_whole(seconds * 1e9);
  return (int64)(whole > limit ? limit : whole < -limit ? -limit : whole);
}
HD int64 nanoseconds(float seconds) { return nanoseconds((double)seconds); }
HD int64 nanoseconds(int64 stamp) { return stamp; }

HD int64 minus(int64 a, int64 b) { return (int64)((unsigned long long)a - (unsigned long long)b); }

// Times in device memory, as given by the caller.
template <class Time>
struct Stamps {
  const Time* at;
  HD int64 operator[](int i) const { return nanoseconds(at[i]); }
};

// Times in shared memory as ns, padded with FOREVER to 2^STEPS - 1.
template <int STEPS_>
struct Staged {
  static constexpr int STEPS = STEPS_;
  const int64* at;
  HD int64 operator[](int i) const { return at[i]; }
};

// The number of increasing stamps that are at or before t.
template <int STEPS>
HD int count_until(const Staged<STEPS>& stamps, int size, int64 t) {
  int count = 0;  // not a moving pointer: with it, NVRTC 13 merges two of the loads and uses the wrong one
  UNROLL
  for (int step = 1 << STEPS >> 1; step > 0; step >>= 1) {
    if (stamps[count + step - 1] <= t) count += step;
  }
  return count < size ? count : size;
}
template <class Time>
HD int count_until(const Stamps<Time>& stamps, int size, int64 t) {
  int count = 0;
  ROLLED
  while (size > 0) {
    int half = size >> 1;
    bool right = stamps[count + half] <= t;
    count = right ? count + half + 1 : count;
    size = right ? size - half - 1 : half;
  }
  return count;
}

// The neighbours of t among stamps in any order, by a linear scan: lower in the high half of the result, upper in the low half.
// Not inlined: it is rarely needed, and inlining it slows down the usual path.
template <class Times>
NOINLINE int64 scan(const Times stamps, int size, int64 t) {
  int64 before = NEVER, after = 0;
  int lower = -1, upper = -1;
  ROLLED
  for (int i = 0; i < size; ++i) {
    int64 stamp = stamps[i];
    if (stamp == NEVER) continue;
    if (stamp <= t) {
      if (lower < 0 || stamp > before) lower = i, before = stamp;
    } else if (upper < 0 || stamp < after) {
      upper = i, after = stamp;
    }
  }
  return (int64)lower * 0x100000000 | (uint32)upper;
}

// The neighbours of t: the latest sample at or before it, and the earliest sample after it. Of equal stamps, the first
// sample is used. -1 means none. A binary search is used if all stamps increase and none is NEVER, else a linear scan.
template <class Times>
HD void neighbours(const Times& stamps, int size, bool rising, int64 t, int& lower, int& upper) {
  if (!rising) {
    int64 both = scan(stamps, size, t);
    lower = (int)(both >> 32), upper = (int)both;
    return;
  }
  int count = count_until(stamps, size, t);
  upper = count < size ? count : -1;
  lower = count - 1;
}

template <Selects SELECTS, class Times>
HD Selection select(const Times& stamps, int size, bool rising, int64 t, const Limits& limits, int64& age) {
  const Selection found = no_selection();
  age = 0;
  if (t == NEVER) return found;
  int lower, upper;
  neighbours(stamps, size, rising, t, lower, upper);
  int64 behind = lower < 0 ? 0 : minus(t, stamps[lower]), ahead = upper < 0 ? 0 : minus(stamps[upper], t);
  if (SELECTS == Selects::nearest || SELECTS == Selects::next) {
    // if equally near, the earlier one
    bool earlier = lower >= 0 && (SELECTS == Selects::next ? behind == 0 : upper < 0 || behind <= ahead);
    int row = earlier ? lower : upper;
    if (row < 0 || (earlier ? behind : ahead) > limits.max_age) return found;
    age = earlier ? behind : -ahead;
    return Selection{row, row, 0.0f, 1};
  }
  if (lower < 0) return found;
  if (SELECTS == Selects::neighbours) {
    int64 gap = upper < 0 ? 0 : minus(stamps[upper], stamps[lower]);
    if (behind == 0) return Selection{lower, lower, 0.0f, 1};
    if (upper >= 0 && gap <= limits.max_gap) {
      age = behind;
      return Selection{lower, upper, (float)ratio(behind, gap), 1};
    }
  }
  if (behind > limits.max_age) return found;
  age = behind;
  return Selection{lower, lower, 0.0f, SELECTS == Selects::newest ? 1 : 2};
}

}  // namespace robocache
